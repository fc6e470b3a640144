"""PostgreSQL and Redis over TLS with a private authority: positions, features, the page's sources, `doctor`.

The servers are real; their builds have no TLS, which a proxy before them speaks (`tls_front.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from pymongo.database import Database

from feature_changes import every_kind, moment, put
from tailrace.cli.app import run
from tailrace.dashboard.sources.features import FeaturesSource
from tailrace.dashboard.sources.positions import PositionsSource
from tailrace.features import FeatureStore
from tailrace.stand import Postgres, Redis, ReplicaSet
from tailrace.stand.node import ThrowAwayCA
from tls_front import tls_front

PASSWORD = "p%40ss"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> ThrowAwayCA:
    return ThrowAwayCA.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def redis_url(shared_redis: Redis, certificates: ThrowAwayCA) -> Iterator[str]:
    with tls_front(shared_redis.port, certificates) as port:
        yield f"rediss://127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def postgres_url(postgres: Postgres, certificates: ThrowAwayCA) -> Iterator[str]:
    with tls_front(postgres.port, certificates, postgresql=True) as port:
        yield f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/postgres"


def with_authority(url: str, certificates: ThrowAwayCA) -> str:
    if url.startswith("rediss"):
        return f"{url}?{urlencode({'ssl_ca_certs': certificates.ca_file})}"
    return f"{url}?{urlencode({'sslmode': 'verify-full', 'sslrootcert': certificates.ca_file})}"


@pytest.mark.parametrize("store", ["redis_url", "postgres_url"])
def test_positions_are_kept_over_tls(
    request: pytest.FixtureRequest,
    certificates: ThrowAwayCA,
    mongodb: ReplicaSet,
    database: Database,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    store: str,
) -> None:
    secret = tmp_path / "store"
    secret.write_text(with_authority(request.getfixturevalue(store), certificates))
    file = tmp_path / "tailrace.toml"
    file.write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n[capture]\nname = "{database.name}"\nnamespaces = ["{database.name}.a"]\n'
        f'sink = "file:{tmp_path}/out"\nposition_store_file = "store"\n'
    )
    database.a.insert_one({"_id": 1})
    assert run(["--config", str(file), "produce", "--until-idle"]) == 0
    database.a.insert_one({"_id": 2})
    assert run(["--config", str(file), "produce", "--until-idle"]) == 0
    assert [json.loads(line)["value"]["documentKey"]["_id"] for line in (tmp_path / "out").open()] == [1, 2]
    assert run(["--config", str(file), "position", "show"]) == 0
    printed = capsys.readouterr().out
    assert database.name in printed
    page = PositionsSource(secret.read_text())
    assert database.name in {stream.consumer.stream for stream in page.poll().streams}
    page.close()
    run(["--config", str(file), "doctor"])
    checked = capsys.readouterr().out
    assert re.search(r": \d+ streams?$", next(line for line in checked.splitlines() if "position store" in line))
    assert PASSWORD not in printed + checked


@pytest.mark.parametrize("store", ["redis_url", "postgres_url"])
def test_a_server_that_another_authority_vouches_for_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    url = with_authority(request.getfixturevalue(store), ThrowAwayCA.make(tmp_path))
    assert run(["position", "show", "--store", url]) == 69
    printed = capsys.readouterr().err
    assert "certificate verify failed" in printed
    assert PASSWORD not in printed


def test_features_are_written_read_and_shown_over_tls(
    redis_url: str, certificates: ThrowAwayCA, redis_server: Redis, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = with_authority(redis_url, certificates)
    store = FeatureStore.connect(url, every_kind("tls"))
    store.begin()
    store.apply([put(1, {"_id": 1, "user": "ann", "amount": 5, "at": moment(1_780_000_000_000)})])
    source = FeaturesSource(url)
    assert [found.definition.name for found in source.poll()] == ["tls"]
    source.close()
    assert run(["lookup", "tls", "ann", "--redis", url]) == 0
    settings = tmp_path / "tailrace.toml"
    settings.write_text(f'[capture]\nsink = "{url}&key=cart:{{documentKey._id}}"\n')
    run(["--config", str(settings), "doctor"])
    assert "answers" in next(line for line in capsys.readouterr().out.splitlines() if "sink" in line)
