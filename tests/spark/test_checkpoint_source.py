"""A checkpoint goes on with the source that it was begun with, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import SettingsError
from tailrace.spark.checkpoint import QueryCheckpoint

MONGODB = '{"token": "826AFD", "clusterTime": "1794984492:2"}'
TOPICS = '{"tailrace.shop.orders":{"0":23,"1":7}}'


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueryCheckpoint:
    monkeypatch.setattr("tailrace.spark.checkpoint.HadoopFiles.of", lambda _: None)
    spark: Any = None
    return QueryCheckpoint(spark, str(tmp_path))


@pytest.mark.parametrize(("line", "topics"), [(MONGODB, False), (TOPICS, True)])
def test_offsets_of_the_other_source_are_refused(
    line: str, topics: bool, checkpoint: QueryCheckpoint, tmp_path: Path
) -> None:
    """Spark failed on them ten times in a minute, and then said what it had expected instead."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "9").write_text("")  # older, and of a batch that was never written
    (tmp_path / "offsets" / "10").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
    checkpoint.require_source(topics=topics)
    with pytest.raises(SettingsError, match=f"reads {'topics' if topics else 'MongoDB'}, and this one") as refused:
        checkpoint.require_source(topics=not topics)
    assert "--checkpoint" in (refused.value.hint or "")


def test_one_that_has_only_its_start_is_of_a_job_that_reads_mongodb(checkpoint: QueryCheckpoint) -> None:
    checkpoint.begin_at({"startAtOperationTime": "1794984492:2"})
    checkpoint.require_source(topics=False)
    with pytest.raises(SettingsError):
        checkpoint.require_source(topics=True)


def test_a_new_one_is_anybodys(checkpoint: QueryCheckpoint) -> None:
    checkpoint.require_source(topics=True)
    checkpoint.require_source(topics=False)
