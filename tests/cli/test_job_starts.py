"""Where the jobs begin: after a backfill, after a death in the first batch, and without the checkpoint they had.

The verbs share the Spark session of the tests. A job that fails in its first batch leaves what a killed one leaves.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from feature_load import Load as Transactions
from feature_load import equal_now, transactions_toml
from tailrace.cli.app import run
from tailrace.errors import SettingsError
from tailrace.features.job import FeatureJob
from tailrace.warehouse.job import WarehouseJob
from warehouse_load import differences

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.fixture
def verb(spark, monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    """Run a verb, and give its exit code and what it printed."""

    @contextmanager
    def shared(_: Any, **__: Any) -> Iterator[Any]:
        yield spark

    def call(*words: str) -> tuple[int, str]:
        code = run(list(words))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", shared)
    return call


def dies_in_the_first_batch(patch: pytest.MonkeyPatch, job: type, happens: Callable[[], None]) -> None:
    """Let something happen right after the backfill, and the process end in the batch that has it."""
    filled = job.backfill

    def backfill(self: Any, *arguments: Any) -> str:
        start: str = filled(self, *arguments)
        happens()
        return start

    def apply(self: Any, *_: Any) -> None:
        raise SettingsError("killed")

    patch.setattr(job, "backfill", backfill)
    patch.setattr(job, "_apply" if job is FeatureJob else "_commit", apply)


def test_features_from_a_backfill_on(verb, mongodb, database, redis_server, tmp_path, monkeypatch):
    definition, name = tmp_path / "features.toml", "starts"
    definition.write_text(transactions_toml(f"{database.name}.tx", name))
    load = Transactions(database.tx, 21)
    load.run(30)
    checkpoint = tmp_path / "c"
    job = ["features", str(definition), "--uri", mongodb.uri, "--redis", redis_server.url, "--once"]
    job += ["--checkpoint", checkpoint.as_uri()]
    with redis.Redis.from_url(redis_server.url) as features:
        with monkeypatch.context() as patch:
            dies_in_the_first_batch(patch, FeatureJob, lambda: load.run(30))
            assert verb(*job, "--backfill")[0] != 0
        assert (checkpoint / "offsets" / "0").exists()
        code, printed = verb(*job, "--backfill")
        assert (code, "without a backfill" in printed) == (0, True), printed
        assert equal_now(features, database.tx, name), "what came between the backfill and the first batch is there"

        load.run(5)
        shutil.rmtree(checkpoint)
        code, printed = verb(*job)
        assert code != 0, "a job without its checkpoint would leave out what came meanwhile"
        assert all(part in printed for part in ("error[checkpoint-missing]", "--backfill", "--resume")), printed
        code, printed = verb(*job, "--resume")
        assert code == 0, printed
        assert equal_now(features, database.tx, name)

        database.tx.delete_many({"_id": {"$lt": 20}})
        shutil.rmtree(checkpoint)
        code, printed = verb(*job, "--backfill")
        assert code == 0, printed
        assert equal_now(features, database.tx, name), "what was deleted in the gap is gone"

        load.run(30)
        monkeypatch.setattr("tailrace.features.job.EVENTS_PER_BATCH", 10)
        assert_one_run_takes_several_batches(lambda: verb(*job), checkpoint, 3)
        assert equal_now(features, database.tx, name)


def assert_one_run_takes_several_batches(run: Callable[[], tuple[int, str]], checkpoint: Path, least: int) -> None:
    """What there is when a run begins is done in limited batches; a run that finds nothing makes none, and ends."""

    def batches() -> int:
        return sum(file.name.isdigit() for file in (checkpoint / "commits").iterdir())

    before = batches()
    code, printed = run()
    assert code == 0, printed
    assert batches() >= before + least
    # An idle server writes the time down every ten seconds, so that some of the next runs have a mark to go to.
    before, code = batches(), run()[0]
    assert (code, batches() <= before + 1) == (0, True)


def test_tables_from_a_backfill_on(spark, verb, mongodb, database, tmp_path, monkeypatch):
    catalog = f"lake_{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("TAILRACE_WAREHOUSE__CATALOG", catalog)
    orders, table = database.orders, f"{catalog}.{database.name}.orders"
    orders.insert_many({"_id": number, "n": number} for number in range(20))
    database.gone.insert_one({"_id": 1})
    checkpoint = tmp_path / "c"
    job = ["warehouse", "run", database.name, "--uri", mongodb.uri, "--once"]
    job += ["--folder", str(tmp_path / "lake"), "--checkpoint", checkpoint.as_uri()]

    def insert(first: int) -> None:
        orders.insert_many({"_id": number, "n": number} for number in range(first, first + 10))

    with monkeypatch.context() as patch:
        dies_in_the_first_batch(patch, WarehouseJob, lambda: insert(100))
        assert verb(*job, "--backfill")[0] != 0
    code, printed = verb(*job, "--backfill")
    assert (code, "without a backfill" in printed) == (0, True), printed
    assert differences(spark.table(table), orders) == []

    insert(200)
    shutil.rmtree(checkpoint)
    code, printed = verb(*job)
    assert code != 0, "a job without its checkpoint would leave out what came meanwhile"
    assert all(part in printed for part in ("error[checkpoint-missing]", "--backfill", "--resume")), printed
    code, printed = verb(*job, "--resume")
    assert code == 0, printed
    assert differences(spark.table(table), orders) == []

    orders.delete_many({"_id": {"$lt": 5}})
    database.gone.drop()
    shutil.rmtree(checkpoint)
    code, printed = verb(*job, "--backfill")
    assert code == 0, printed
    assert differences(spark.table(table), orders) == [], "what was deleted in the gap is gone"
    assert spark.table(f"{catalog}.{database.name}.gone").isEmpty(), "and so is a collection that was dropped in it"

    insert(300)
    monkeypatch.setenv("TAILRACE_WAREHOUSE__EVENTS_PER_BATCH", "4")
    assert_one_run_takes_several_batches(lambda: verb(*job), checkpoint, 3)
    assert differences(spark.table(table), orders) == []


def test_a_load_that_was_cut_off_is_made_anew(spark, verb, mongodb, database, tmp_path, monkeypatch):
    """Its histories are full and its mirrors empty: going on from there would leave all documents out."""
    catalog = f"lake_{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("TAILRACE_WAREHOUSE__CATALOG", catalog)
    orders, table = database.orders, f"{catalog}.{database.name}.orders"
    orders.insert_many({"_id": number, "n": number} for number in range(20))
    job = ["warehouse", "run", f"{database.name}.orders", "--uri", mongodb.uri, "--once"]
    job += ["--folder", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "c")]

    def merge(*_: Any) -> None:
        raise SettingsError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("tailrace.warehouse.mirror.mirror.Mirror.merge", merge)
        assert verb(*job, "--backfill")[0] != 0
    assert spark.table(f"{table}_history").count() == 20
    for flags in ((), ("--resume",)):
        code, printed = verb(*job, *flags)
        assert (code != 0, "error[checkpoint-missing]" in printed) == (True, True), printed
        assert "start again: --backfill" in printed
    orders.delete_many({"_id": {"$lt": 5}})
    orders.insert_one({"_id": 100})
    code, printed = verb(*job, "--backfill")
    assert code == 0, printed
    assert differences(spark.table(table), orders) == []
