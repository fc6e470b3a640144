"""The options of `format("tailrace")` that are times and pipelines: read as the command line reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from bson.timestamp import Timestamp

from tailrace.errors import SettingsError
from tailrace.spark.options import SourceOptions


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time zone is not UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("text", ["2026-05-01T12:00:00", "2026-05-01T12:00:00Z", "1777636800", "1777636800:0"])
def test_a_time_without_a_zone_is_utc_on_every_machine(text: str) -> None:
    start = SourceOptions.parse({"uri": "mongodb://h/", "startAtOperationTime": text}).start
    assert start is not None
    assert start.token is not None
    assert start.token.cluster_time == Timestamp(1_777_636_800, 0)


@pytest.mark.parametrize("text", ["soon", str(2**40), f"1:{2**40}", "1960-01-01T00:00:00Z"])
def test_what_is_no_time_is_refused_by_the_option(text: str) -> None:
    with pytest.raises(SettingsError, match="option endAtOperationTime is not a time"):
        SourceOptions.parse({"uri": "mongodb://h/", "endAtOperationTime": text})


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '["$match"]'])
def test_a_pipeline_that_is_no_list_of_stages_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="option pipeline is not"):
        SourceOptions.parse({"uri": "mongodb://h/", "pipeline": text})
