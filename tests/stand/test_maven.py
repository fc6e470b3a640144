from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ChecksumMismatch, DownloadFailed, MissingExtra
from tailrace.stand import maven

COORDINATES = ["org.slf4j:slf4j-simple:1.7.36"]
PINS = {
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "slf4j-simple-1.7.36.jar": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
}


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without jars; Java, which may have to be fetched too, still comes from the usual one."""
    home = maven.java_home()
    monkeypatch.setattr(maven, "java_home", lambda: home)
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_fetches_pinned_jars_once(
    empty_cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = maven.fetch_jars("logging", COORDINATES, PINS)
    assert [jar.name for jar in jars] == sorted(PINS)
    assert all(empty_cache in jar.parents for jar in jars)
    assert "fetched 2 of 2 jars" in capfd.readouterr().err

    monkeypatch.setattr(maven, "java_home", lambda: pytest.fail("asked the registry again"))
    assert maven.fetch_jars("logging", COORDINATES, PINS) == jars
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "pins",
    [
        pytest.param({**PINS, "slf4j-api-1.7.36.jar": "0" * 64}, id="another file"),
        pytest.param({"slf4j-simple-1.7.36.jar": PINS["slf4j-simple-1.7.36.jar"]}, id="one too many"),
        pytest.param({**PINS, "slf4j-extra-1.7.36.jar": "0" * 64}, id="one missing"),
    ],
)
def test_other_files_than_the_pinned_ones_are_never_used(empty_cache: Path, pins: dict[str, str]) -> None:
    with pytest.raises(ChecksumMismatch, match=r"slf4j-(api|extra)-1\.7\.36\.jar"):
        maven.fetch_jars("logging", COORDINATES, pins)
    assert not list(empty_cache.rglob("*.jar"))


@pytest.mark.usefixtures("empty_cache")
def test_a_classifier_names_one_jar_alone() -> None:
    pins = {"slf4j-simple-1.7.36-sources.jar": "c11b4197b7100eb4c4986c93493d4230f1efccfc53f39fbdbb84573493722379"}
    assert [jar.name for jar in maven.fetch_jars("sources", [f"{COORDINATES[0]}:sources"], pins)] == list(pins)


def test_an_override_is_fetched_in_place_of_what_is_asked_for(tmp_path: Path) -> None:
    maven.resolve(COORDINATES, tmp_path, ["org.slf4j:slf4j-api:1.7.35"])
    assert sorted(jar.name for jar in tmp_path.iterdir()) == ["slf4j-api-1.7.35.jar", "slf4j-simple-1.7.36.jar"]


@pytest.mark.usefixtures("empty_cache")
def test_an_artifact_that_does_not_exist_is_named() -> None:
    with pytest.raises(DownloadFailed, match="no-such-thing"):
        maven.fetch_jars("nothing", ["org.slf4j:no-such-thing:1.0"], {})


@pytest.mark.usefixtures("empty_cache")
def test_without_pyspark_the_hint_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra) as caught:
        maven.fetch_jars("logging", COORDINATES, PINS)
    assert "tailrace[spark]" in caught.value.hint
