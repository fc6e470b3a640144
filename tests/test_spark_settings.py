"""Wrong settings of the Spark jobs are named before a JVM is started, by the job and by `doctor` alike."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.app import run
from tailrace.errors import SettingsError
from tailrace.settings import Settings, SparkSettings
from tailrace.spark.failures import permanent_error
from tailrace.spark_settings import check_folder, check_spark

DEFINITION = Path(__file__).parents[1] / "examples" / "fraud_signals" / "features.toml"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


WRONG: list[tuple[str, str]] = [
    ("[spark]\njars = ['missing.jar']", "spark.jars: {folder}/missing.jar does not exist"),
    ("[spark]\njars = ['.']", "spark.jars: {folder} is not a file"),
    ("[spark]\njars = ['wrong.toml']", "spark.jars: {folder}/wrong.toml is not a jar"),
    ("[spark]\nmaster = 'locale[4]'", "settings key spark.master: must be a Spark master"),
    ("[spark.config]\n'spark.driver.memory' = 'lots'", "spark.config: spark.driver.memory must be a size"),
    ("[spark.config]\n'spark.sql.shuffle.partitions' = 'many'", "spark.sql.shuffle.partitions must be a number"),
    ("[spark.config]\n'spark.ui.enabled' = 'yes'", "spark.config: spark.ui.enabled must be true or false"),
    ("[spark.config]\n'spark.driver.extraJavaOptions' = '-Xmx1g'", "must not set the heap"),
    ("[spark.config]\n'spark.jars' = '/no/such.jar'", "spark.config: spark.jars: /no/such.jar does not exist"),
    ("[spark.config]\n'' = 'x'", "spark.config: '' is not the name of a property"),
    ("[spark.config]\n'spark.a = b' = 'x'", "spark.config: 'spark.a = b' is not the name of a property"),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_a_session_that_cannot_be_made_is_refused_by_job_and_doctor(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a JVM was started")

    monkeypatch.setattr("tailrace.spark.session.start_jvm", started)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = folder / "wrong.toml"
    file.write_text(f"{text}\n[capture]\nsink = 'stdout:'\n[mongodb]\nuri = 'mongodb://127.0.0.1:1/'\n")
    expected = complaint.format(folder=folder)
    assert run(["--config", str(file), "sql", "SELECT 1", "--engine", "spark"]) == 64
    assert expected in capsys.readouterr().err
    monkeypatch.setattr("tailrace.diagnosis._SECONDS_TO_ANSWER", 0.1)
    code = run(["--config", str(file), "doctor", "--json"])
    printed = capsys.readouterr()
    if code == 64:
        assert expected in printed.err
    else:
        assert any(expected in each["found"] for each in json.loads(printed.out)), printed.out


def test_what_spark_takes_is_taken(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "")
    config = {
        "spark.driver.memory": "2g",
        "spark.executor.memoryOverhead": "384",
        "spark.kubernetes.executor.request.cores": "500m",
        "spark.sql.adaptive.enabled": "TRUE",
        "spark.jars": f"{jar},s3a://bucket/b.jar,https://host/c.jar",
        "spark.driver.extraJavaOptions": "-Xss16m",
    }
    check_spark(SparkSettings(jars=(jar,), config=config))
    masters = ["local", "local[2]", "local[*]", "local[*,4]", "local[4, 2]", "local-cluster[2,1,1024]", "yarn"]
    for master in [*masters, "spark://a:7077,b:7077", "k8s://https://host:6443", "sc://host:15002"]:
        assert Settings.model_validate({"spark": {"master": master}}).spark.master == master


@pytest.mark.parametrize(
    ("location", "complaint"),
    [
        ("", "an empty text is not a folder"),
        ("topic", "topic is not a folder"),
        ("kafka://broker:9092/bad", "kafka://broker:9092/bad is not a folder"),
        ("{folder}/file/below", "{folder}/file is a file"),
        ("file:{folder}/file", "{folder}/file is a file"),
        ("file://{folder}/file", "{folder}/file is a file"),
    ],
)
def test_dead_letters_of_features_need_a_folder(
    location: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    settings = tmp_path / "tailrace.toml"
    settings.write_text(f"[features]\ndead_letters = '{location.format(folder=tmp_path)}'\n")
    assert run(["features", "run", str(DEFINITION), "--topics", "a", "--servers", "127.0.0.1:1"]) == 64
    assert f"features.dead_letters: {complaint.format(folder=tmp_path)}" in capsys.readouterr().err


def test_folders_that_may_be_written_or_are_elsewhere_are_left_to_the_job(tmp_path: Path) -> None:
    for location in ("dead-letters", f"{tmp_path}/a/b", f"file:{tmp_path}/a", "s3a://bucket/a", "hdfs://host/a"):
        check_folder("features.dead_letters", location)


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.IllegalArgumentException: spark.sql.autoBroadcastJoinThreshold should be long, but was much",
        "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
    ],
)
def test_what_only_spark_knows_is_an_error_of_the_settings_too(text: str) -> None:
    """As Spark 4.0.1 says it; a restart would only repeat it."""
    assert isinstance(permanent_error(RuntimeError(text)), SettingsError)
