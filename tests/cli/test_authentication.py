"""How verbs log in to a real MongoDB server with TLS by a private authority, by each mechanism."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from aws_signatures import SECRET_KEY
from mongodb_logins import MECHANISMS, TOKEN_FILE, Logins, ca_file, guarded_server
from tailrace.cli.app import run


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with guarded_server(tmp_path_factory.mktemp("guarded")) as made:
        with made.server.client() as client:
            client.shop.orders.insert_many([{"_id": 1}, {"_id": 2}])
        yield made


@pytest.mark.parametrize("source", ["change-stream", "oplog"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_producer_and_a_check_log_in(
    logins: Logins, tmp_path: Path, capsys: pytest.CaptureFixture[str], mechanism: str, source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(TOKEN_FILE, str(logins.token_file))
    secret = tmp_path / "uri"
    secret.write_text(logins.uris[mechanism])
    file = tmp_path / "tailrace.toml"
    file.write_text(
        f'[mongodb]\nuri_file = "uri"\n[capture]\nnamespaces = ["shop.orders"]\nsource = "{source}"\n'
        f'sink = "file:{tmp_path}/out"\nposition_store = "file:{tmp_path}/positions"\n'
    )
    assert run(["--config", str(file), "produce", "--until-idle"]) == 0
    assert [json.loads(line)["value"]["documentKey"]["_id"] for line in (tmp_path / "out").open()] == [1, 2]
    assert run(["--config", str(file), "check", "--json"]) in (0, 1)
    printed = "".join(capsys.readouterr())
    assert "p%3Aw" not in printed
    assert "p%40w" not in printed
    assert quote_plus(SECRET_KEY) not in printed
    if mechanism in logins.scripted:
        assert logins.scripted[mechanism].logins


@pytest.mark.parametrize("wrong", ["another password", "another authority"])
def test_who_may_not_come_in_is_told_why(
    logins: Logins, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    uri = logins.uris["SCRAM-SHA-256"]
    if wrong == "another password":
        uri = uri.replace("p%40w", "Hunter2")
    else:
        uri = uri.replace(f"tlsCAFile={quote_plus(str(ca_file(logins.server)))}&", "")
    words = ["produce", "shop.orders", "--uri", uri, "--sink", "stdout:", "--store", f"file:{tmp_path}", "--until-idle"]
    assert run(words) in (64, 69)
    printed = capsys.readouterr().err
    assert ("Authentication failed" if wrong == "another password" else "certificate") in printed
    assert "Hunter2" not in printed
