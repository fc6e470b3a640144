"""`tailrace dashboard` as a process of its own: where it listens, how it ends, and what it refuses."""

from __future__ import annotations

import signal
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
import trustme

from dashboard_site import TOKEN, free_port, running, write_settings
from tailrace.cli.app import EXIT_INTERRUPTED, EXIT_USAGE, run
from waiting import SECONDS


def settings_without_servers(folder: Path, **dashboard: object) -> Path:
    """Settings under which nothing is there to look at."""
    port = free_port()
    return write_settings(
        folder,
        mongodb={"uri": f"mongodb://127.0.0.1:{port}/", "timeout_seconds": 1},
        capture={"sink": f"file:{folder / 'out.jsonl'}", "position_store": f"file:{folder / 'positions'}"},
        dashboard={"producers": [], **dashboard},
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, EXIT_INTERRUPTED)])
def test_it_serves_until_it_is_told_to_stop_also_while_somebody_looks(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with running("dashboard", settings_without_servers(tmp_path), "--port", "0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}api/stream", timeout=120) as stream:
            assert stream.readline() == b"event: state\n"
            process.send_signal(number)
            assert process.wait(timeout=SECONDS) == code
        assert not (tmp_path / "positions").exists(), "looking must not make anything"


def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    settings = settings_without_servers(tmp_path, certificate=tmp_path / "own.pem", token=TOKEN)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with running("dashboard", settings, "--port", "0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert url.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(f"{url}healthz", timeout=120, context=context) as answer:
            assert answer.headers["Strict-Transport-Security"]


def test_a_port_that_is_taken_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["--config", str(settings_without_servers(tmp_path)), "dashboard", "--port", port]) == EXIT_USAGE
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_it_is_not_opened_to_everybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = str(settings_without_servers(tmp_path))
    assert run(["--config", settings, "dashboard", "--address", "0.0.0.0"]) == EXIT_USAGE
    assert "dashboard.token" in capsys.readouterr().err


def test_an_address_that_nobody_knows_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = str(settings_without_servers(tmp_path, token=TOKEN, behind_proxy=True))
    for address in ("nonsense", "a" * 400):
        assert run(["--config", settings, "dashboard", "--port", "0", "--address", address]) == EXIT_USAGE
        assert "cannot listen at" in capsys.readouterr().err


def test_a_file_that_is_no_certificate_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.pem").write_text("nothing")
    settings = settings_without_servers(tmp_path, certificate=tmp_path / "own.pem")
    assert run(["--config", str(settings), "dashboard", "--port", "0"]) == EXIT_USAGE
    assert "is not a certificate" in capsys.readouterr().err
