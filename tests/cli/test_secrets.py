"""A marked secret in every setting that can hold one; every output, log, page and metric is searched for the mark."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from pymongo.database import Database

from dashboard_site import dashboard, free_port, running
from tailrace.cli.app import run
from tailrace.errors import SettingsError
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import Settings
from tailrace.settings_source import file_keys, secret_keys
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS
from waiting import wait_until as until

MARK = "Hunter2-Hunter2-Hunter2"
OTHER_SECRETS = {
    "telemetry.endpoint": f"http://u:{MARK}@127.0.0.1:9",
    "capture.shards": {"rs0": f"mongodb://u:{MARK}@h/?tlsCertificateKeyFilePassword={MARK}"},
    "capture.sink": f"kafka://u:{MARK}@h:9092/t?sasl.password={MARK}&ssl.key.pem={MARK}",
    "capture.position_store": f"postgresql://u:{MARK}@h/db?password={MARK}",
    "gateway.shards": {"rs0": f"mongodb://u:{MARK}@h/?authMechanismProperties=AWS_SESSION_TOKEN:{MARK}"},
    "spark.config": {"spark.hadoop.fs.s3a.secret.key": MARK, "spark.x": f"jdbc:postgresql://h/db?password={MARK}"},
    "warehouse.catalog_config": {"uri": f"https://u:{MARK}@h", "token": MARK, "s3.secret-access-key": MARK},
    "dashboard.producers": [f"http://u:{MARK}@127.0.0.1:9"],
    "dashboard.gateways": [f"http://u:{MARK}@127.0.0.1:9/metrics"],
    "features.redis_url": f"redis://h/0?password={MARK}",
    "monitor.webhook_url": f"https://hooks.example/services/{MARK}",
    "mongodb.uri": f"mongodb://u:{MARK}@127.0.0.1:9/?replicaSet=rs0&proxyPassword={MARK}",
}


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def write(file: Path, values: dict[str, Any]) -> Path:
    sections = itertools.groupby(sorted(values.items()), key=lambda item: item[0].partition(".")[0])
    lines = []
    for section, given in sections:
        lines += [f"[{section}]", *(f"{key.partition('.')[2]} = {toml(value)}" for key, value in given)]
    file.write_text("\n".join(lines) + "\n")
    return file


def all_secrets() -> dict[str, Any]:
    """Every setting that is a secret by its type, and every other that may hold one."""
    typed = dict.fromkeys(secret_keys(Settings), MARK)
    assert len(typed) >= 8
    return typed | OTHER_SECRETS


def test_no_output_about_the_settings_has_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "tailrace.toml", all_secrets())
    for flags in (["--json"], []):
        assert run(["--config", str(file), "settings", *flags]) == 0
        printed = "".join(capsys.readouterr())
        assert "capture.sink" in printed
        assert MARK not in printed
    loaded = Settings.load(file)
    assert loaded.capture.sink.get_secret_value().count(MARK) == 3
    assert MARK not in repr(loaded)
    assert MARK not in str(loaded)


@pytest.mark.parametrize(
    ("changed", "verb"),
    [
        ({"mongodb.timeout_seconds": 0.2}, ["produce"]),
        ({"mongodb.timeout_seconds": 0.2}, ["check", "--json"]),
        ({"capture.position_store": f"redis://127.0.0.1:9/0?password={MARK}"}, ["position", "show"]),
        ({"capture.position_store": f"redis://127.0.0.1:9/x?password={MARK}"}, ["position", "show"]),
        ({"capture.position_store": f"postgresql://127.0.0.1:9/d?password={MARK}"}, ["position", "show"]),
        ({"capture.position_store": f"mongodb://u:{MARK}@127.0.0.1:9/?serverSelectionTimeoutMS=1"}, ["gaps"]),
        ({"capture.position_store": f"mongodb://u:{MARK}@@h/"}, ["position", "show"]),
        ({"capture.position_store": f"nothing://u?password={MARK}"}, ["position", "show"]),
        ({"capture.position_store": f"kafka://?sasl.password={MARK}"}, ["position", "show"]),
    ],
)
def test_no_error_has_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], verb: list[str]
) -> None:
    file = write(tmp_path / "tailrace.toml", all_secrets() | changed)
    assert run(["--config", str(file), *verb]) != 0
    printed = "".join(capsys.readouterr())
    assert "error[" in printed
    assert "settings key" not in printed, "the settings are good ones"
    assert MARK not in printed


def test_a_running_producer_and_its_dashboard_show_no_secret(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    database.orders.insert_one({"_id": 1})
    address = f"http://127.0.0.1:{(port := free_port())}"
    sink = f"kafka://{kafka.bootstrap_servers}?ssl.key.password={MARK}"
    values = {
        "mongodb.uri": mongodb.uri,
        "capture.namespaces": [database.name],
        "capture.topic_prefix": f"{database.name}-secrets",
        "capture.sink": sink,
        "capture.webhook_secret": MARK,
        "capture.position_store": "file:positions",
        "monitor.metrics_port": port,
        "monitor.control_token": MARK,
        "monitor.webhook_url": f"http://127.0.0.1:9/{MARK}",
        "log.level": "debug",
        "dashboard.producers": [address],
        "dashboard.token": MARK,
        "dashboard.control_token": MARK,
        "features.redis_url": f"redis://127.0.0.1:9/0?password={MARK}",
    }
    file = write(tmp_path / "tailrace.toml", values)
    with running("produce", file, "--json") as producer:
        until(lambda: _events(address), "the producer delivers")
        with dashboard(file) as site:
            until(lambda: "key.password=***" in site.http.get("/api/state").text, "the dashboard shows the sink")
            pages = [site.http.get(path).text for path in ("/api/state", "/api/flow", "/", "/readyz")]
        pages += [httpx.get(f"{address}{path}").text for path in ("/state", "/metrics", "/healthz")]
        refused = httpx.post(f"{address}/pause", headers={"Authorization": f"Bearer x{MARK}"})
        pages.append(refused.text)
        producer.terminate()
        assert producer.stdout is not None
        pages.append(producer.stdout.read())
    pages += [log.read_text() for log in tmp_path.glob("*.log")]
    assert any("ssl.key.password=***" in page for page in pages), "the sink is shown, without its password"
    for page in pages:
        assert MARK not in page


def _events(address: str) -> int:
    try:
        return int(httpx.get(f"{address}/state").json()["events"])
    except httpx.HTTPError:
        return 0


def test_secrets_of_files_are_not_shown_either(tmp_path: Path) -> None:
    (tmp_path / "sink").write_text(f"kafka://h?sasl.password={MARK}\n")
    file = write(tmp_path / "tailrace.toml", {"capture.sink_file": "sink"})
    command = [sys.executable, "-m", "tailrace.cli.app", "--config", str(file), "settings", "--json"]
    printed = run_guarded(command, capture_output=True, text=True, check=True, cwd="/", timeout=SECONDS).stdout
    assert "sasl.password=***" in printed
    assert MARK not in printed


@pytest.mark.parametrize("key", list(file_keys(Settings)))
def test_every_setting_that_may_hold_a_secret_can_be_a_file(tmp_path: Path, key: str) -> None:
    table = key in ("capture.shards", "gateway.shards", "spark.config", "warehouse.catalog_config")
    text = f"http://{MARK}" if key in ("telemetry.endpoint", "monitor.webhook_url") else MARK
    (tmp_path / "secret").write_text(f'"name" = "{MARK}"\n' if table else f"{text}\n")
    section, name = key.split(".")
    loaded = Settings.load(write(tmp_path / "tailrace.toml", {f"{key}_file": "secret"}))
    found = getattr(getattr(loaded, section), name)
    plain = found.get_secret_value() if hasattr(found, "get_secret_value") else found
    if key != "capture.sink" and key != "capture.position_store" and key != "audit.log":
        assert plain == ({"name": MARK} if table else text)
    assert MARK in str(plain)


def test_a_table_in_a_file_that_is_no_toml_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MARK)
    with pytest.raises(SettingsError) as refused:
        Settings.load(write(tmp_path / "tailrace.toml", {"spark.config_file": "secret"}))
    assert MARK not in str(refused.value)


def test_a_password_in_a_flag_does_not_stay_on_the_command_line(tmp_path: Path) -> None:
    """What other users see in `ps` is /proc/PID/cmdline."""
    uri = f"mongodb://u:{MARK}@127.0.0.1:9/?serverSelectionTimeoutMS=60000"
    words = ["watch", "shop.orders", "--uri", uri, "--debug"]
    environment = {**os.environ, "TAILRACE_MONGODB__TIMEOUT_SECONDS": "60"}
    program = "import sys; from tailrace.cli.app import main; main()"
    with GuardedProcess[str]([sys.executable, "-c", program, *words], env=environment) as process:
        shown = Path(f"/proc/{process.program_pid}/cmdline")
        until(lambda: b"u:***@127.0.0.1" in shown.read_bytes(), "the password is hidden")
        assert MARK.encode() not in shown.read_bytes()
        assert b"--debug" in shown.read_bytes()
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_secret_of_spark_is_in_no_command_line(tmp_path: Path) -> None:
    """`make secrets`: Spark's own launcher writes every property into the arguments of the JVM."""
    program = f"""
from pathlib import Path
from tailrace.settings import SparkSettings
from tailrace.spark.session import open_session
chosen = SparkSettings(master="local[1]", config={{"spark.hadoop.fs.s3a.secret.key": "{MARK}", "spark.x": "kept"}})
with open_session(chosen) as spark:
    assert spark.conf.get("spark.x") == "kept"
    assert spark._jsparkSession.sessionState().newHadoopConf().get("fs.s3a.secret.key") == "{MARK}"
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if b"spark.x=kept" in file.read_bytes()]
    assert lines, "the JVM is not there"
    assert not any(b"{MARK}" in line for line in lines)
"""
    script = tmp_path / "session.py"
    script.write_text(program)
    run_guarded([sys.executable, str(script)], check=True, timeout=240)
