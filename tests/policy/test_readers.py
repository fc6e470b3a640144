"""A policy holds for those who read MongoDB themselves: the page, and Spark jobs under any settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pymongo.database import Database

from tailrace.cli.app import run
from tailrace.dashboard.observed_event import ObservedEvent
from tailrace.dashboard.sources.change_stream import ChangeStreamSource
from tailrace.settings import Settings
from tailrace.stand import ReplicaSet

MARK = "canary-4711"
RULES = [{"fields": ["secret"], "action": "mask"}]


def test_the_page_shows_what_the_policy_shows(mongodb: ReplicaSet, database: Database[Any]) -> None:
    """Where the sink cannot be followed, the dashboard watches MongoDB itself."""
    found: list[ObservedEvent] = []
    given = {"mongodb": {"uri": mongodb.uri}, "policy": {"rules": RULES}}
    source = ChangeStreamSource(Settings.model_validate(given), found.append)
    try:
        source.poll()
        database.people.insert_one({"_id": 1, "secret": MARK})
        while not any(event.line.namespace == f"{database.name}.people" for event in found):
            source.poll()
    finally:
        source.close()
    assert MARK not in repr(found)


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_tables_hold_what_the_policy_of_the_named_settings_shows(
    spark: Any, mongodb: ReplicaSet, database: Database[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", lambda _: nullcontext(spark))
    lake = tmp_path / "lake"
    settings = tmp_path / "governed.toml"
    settings.write_text(
        f'[mongodb]\nuri = "{mongodb.uri}"\n[warehouse]\nfolder = "{lake}"\ncatalog = "{tmp_path.name}"\n'
        '[[policy.rules]]\nfields = ["secret"]\naction = "mask"\n'
    )
    database.people.insert_many([{"_id": n, "secret": MARK} for n in range(5)])
    words = ["warehouse", "run", f"{database.name}.people", "--backfill", "--once"]
    assert run(["--config", str(settings), *words, "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    rows = [row for file in lake.rglob("*.parquet") for row in parquet.read_table(file).to_pylist()]
    assert len(rows) >= 5
    assert MARK not in repr(rows)
