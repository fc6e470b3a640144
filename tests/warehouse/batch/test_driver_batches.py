"""Small batches, which the driver writes itself: the same tables as Spark makes, through conflicts and crashes."""

from __future__ import annotations

import random
import resource
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap

from spark_queries import most_in_driver, started, wait_until
from tailrace.settings import WarehouseSettings
from tailrace.spark.checkpoint import records_between
from tailrace.spark.from_kafka import kafka_records
from tailrace.warehouse.batch import driver_batch
from tailrace.warehouse.batch.compaction import Compaction, Source, chosen, compact
from tailrace.warehouse.batch.driver_batch import HistoryRows, append_events
from tailrace.warehouse.batch.key_index import Change, KeyIndex
from tailrace.warehouse.batch.table_files import RecentFiles
from tailrace.warehouse.history import COLUMNS as HISTORY_COLUMNS
from tailrace.warehouse.job import COLUMNS, WarehouseJob
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.summary import Part
from tailrace.warehouse.tables.conflicts import Conflict
from tailrace.warehouse.tables.deletion_vectors import decoded, encoded, puffin
from tailrace.warehouse.tables.driver_table import DataFile, DriverTable
from tailrace.warehouse.tables.format import Commit
from tailrace.warehouse.tables.names import TableKind
from warehouse_load import Load, Topic, differences, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
SECONDS = 600.0
TABLE = ("d", "t")
EVENT_TYPES = {
    **dict.fromkeys(("token", "op", "db", "coll", "document_key", "full_document"), pa.string()),
    **dict.fromkeys(("full_document_before", "update_description"), pa.string()),
    **dict.fromkeys(("_key", "raw"), pa.binary()),
    "cluster_time": pa.int64(),
    "wall_time": pa.timestamp("us", tz="UTC"),
}


@pytest.fixture
def settings(spark, tmp_path):
    def make(**values: Any) -> WarehouseSettings:
        name = f"lake_{uuid.uuid4().hex[:8]}"  # a session never forgets a catalog
        made = WarehouseSettings(folder=str(tmp_path / name), catalog=name, **{"maintain_batches": 0, **values})
        configure_catalog(spark, made)
        return made

    return make


def run(job: WarehouseJob, records: Any, checkpoint: Path) -> None:
    query = job.start(records, str(checkpoint), availableNow=True)
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def by_driver(spark: Any, settings: WarehouseSettings, table: tuple[str, str]) -> list[bool]:
    """Whether the driver made each snapshot; Spark's name the application."""
    lake: Any = open_lake(spark, settings)
    return ["spark.app.id" not in dict(one.summary()) for one in lake._java(table).snapshots()]


def contents(spark: Any, settings: WarehouseSettings, table: tuple[str, str], *order: str) -> list[str]:
    return [repr(row) for row in open_lake(spark, settings).table(table).orderBy(*order).collect()]


def test_both_ways_make_the_same_tables(spark, kafka, database, settings, tmp_path):
    """Every kind of change and value, with documents and without, each delivered twice; then a batch again."""
    start = now(database.client)
    Load(database.orders, 3).run(60)
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}")
    count = topic.fill(database, start, copies=2)
    start = now(database.client)
    Load(database.orders, 4).run(120)
    count += topic.fill(database, start, full_document="updateLookup")
    start = now(database.client)
    Load(database.orders, 5).run(60)
    count += topic.fill(database, start)
    records = kafka_records(spark, kafka.bootstrap_servers, topic.name, format="bson", limit=40)
    ways = {"driver": settings(), "spark": settings(driver_events=0)}
    for way, chosen_ in ways.items():
        run(WarehouseJob(chosen_, format="bson"), records, tmp_path / way)
    mirror, history = (database.name, "orders"), (database.name, "orders_history")
    assert differences(open_lake(spark, ways["driver"]).table(mirror), database.orders) == []
    assert open_lake(spark, ways["driver"]).table(history).count() == count
    for table, order in ((mirror, ["_key"]), (history, ["token", "_key"])):
        assert contents(spark, ways["driver"], table, *order) == contents(spark, ways["spark"], table, *order)
        assert not any(by_driver(spark, ways["spark"], table))
        # Batches that need new columns are Spark's; the others are not.
        assert any(by_driver(spark, ways["driver"], table))
    before = {table: len(by_driver(spark, ways["driver"], table)) for table in (mirror, history)}
    last = max(int(file.name) for file in (tmp_path / "driver" / "commits").glob("[0-9]*"))
    (tmp_path / "driver" / "commits" / str(last)).unlink()
    run(WarehouseJob(ways["driver"], format="bson"), records, tmp_path / "driver")
    assert {table: len(by_driver(spark, ways["driver"], table)) for table in before} == before


def test_a_crash_between_history_and_mirror(spark, kafka, database, settings, tmp_path, monkeypatch):
    start = now(database.client)
    database.orders.insert_many([{"_id": number, "n": 1} for number in range(10)])
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}")
    topic.fill(database, start)
    start = now(database.client)
    database.orders.update_many({"_id": {"$lt": 5}}, {"$set": {"n": 2}})
    database.orders.delete_many({"_id": {"$gte": 8}})
    topic.fill(database, start)
    records = kafka_records(spark, kafka.bootstrap_servers, topic.name, format="bson", limit=10)
    chosen_, calls, merge = settings(), [], driver_batch._merge

    def failing(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("the disk is full")
        merge(*arguments)

    monkeypatch.setattr(driver_batch, "_merge", failing)
    with pytest.raises(Exception, match="the disk is full"):
        run(WarehouseJob(chosen_, format="bson"), records, tmp_path / "c")
    run(WarehouseJob(chosen_, format="bson"), records, tmp_path / "c")
    assert len(calls) == 2
    lake = open_lake(spark, chosen_)
    assert differences(lake.table((database.name, "orders")), database.orders) == []
    assert lake.table((database.name, "orders_history")).count() == 17


def test_a_batch_of_documents_too_large_for_the_driver_is_sparks(spark, kafka, database, settings, tmp_path):
    """Few events may be many megabytes: a batch that the driver cannot take must not end the job for ever."""
    topic, chosen_ = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}"), settings()
    for sizes in ([10], [300_000] * 3, [20]):
        start = now(database.client)
        database.orders.insert_many(
            [{"text": "".join(map(chr, random.choices(range(33, 5000), k=size)))} for size in sizes]
        )
        topic.fill(database, start)
        with most_in_driver(spark, "1m"):
            records = kafka_records(spark, kafka.bootstrap_servers, topic.name, format="bson")
            run(WarehouseJob(chosen_, format="bson"), records, tmp_path / "c")
    assert differences(open_lake(spark, chosen_).table((database.name, "orders")), database.orders) == []
    assert by_driver(spark, chosen_, (database.name, "orders_history")) == [False, False, True]


def test_directly_from_mongodb(spark, mongodb, database, settings, tmp_path):
    """The first batch may be everything, so it is Spark's; the ones after it are the driver's."""
    chosen_ = settings()
    database.orders.insert_many([{"_id": number, "n": 1} for number in range(10)])
    job = WarehouseJob(chosen_, uri=mongodb.uri)
    start = job.backfill(spark, mongodb.uri, [database.name])
    options = {"uri": mongodb.uri, "namespaces": database.name, "startAtOperationTime": start}
    database.orders.update_many({"_id": {"$lt": 5}}, {"$set": {"n": 2}})
    stream = spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load()
    query = started(lambda: job.start(stream, str(tmp_path / "c"), processingTime="1 second"))
    mirror, history = (database.name, "orders"), (database.name, "orders_history")
    try:
        wait_until(lambda: len(by_driver(spark, chosen_, history)) > 1, query, SECONDS)
        database.orders.update_many({"_id": {"$gt": 2}}, {"$set": {"n": 3}})
        database.orders.delete_many({"_id": {"$gte": 8}})
        wait_until(lambda: any(by_driver(spark, chosen_, mirror)), query, SECONDS)
        lake = open_lake(spark, chosen_)
        wait_until(lambda: not differences(lake.table(mirror), database.orders), query, SECONDS)
    finally:
        query.stop()


@pytest.fixture
def table(spark, settings):
    """A mirror of one own column, and its settings."""
    chosen_ = settings()
    lake: Any = open_lake(spark, chosen_)
    columns = "_key binary, _version bigint, _token string, _rest string, _bson binary, x int, tags array<string>"
    lake.create(TABLE, TableKind.MIRROR, "d.t", columns)
    return lake


class Writer:
    """Puts rows into a table, as batches do."""

    def __init__(self, table: DriverTable) -> None:
        self.table = table
        self.index = KeyIndex(table)
        self.index.refresh()

    def put(self, numbers: list[int], version: int) -> None:
        rows = self.rows(numbers, version)
        keys, change = rows["_key"].combine_chunks(), Change()
        for found in self.index.find(keys, keys[0].as_py(), keys[-1].as_py()):
            change.gone[found.path] = self.index.gone_with(found.path, found.positions)
        change.added.append(self.index.write_rows(rows))
        change.keys.append((keys, rows["_version"].to_numpy()))
        self.index.commit(change, {"tailrace.batch": str(version)})

    def rows(self, numbers: list[int], version: int) -> pa.Table:
        values: dict[str, list[Any]] = {
            "_key": [b"k%06d" % number for number in numbers],
            "_version": [version] * len(numbers),
            "_token": ["t"] * len(numbers),
            "x": numbers,
            "tags": [["a", None]] * len(numbers),
            **{name: [None] * len(numbers) for name in ("_rest", "_bson", "z")},
        }
        schema = self.table.schema
        return pa.table({name: values[name] for name in schema.names}, schema=schema)


def found_by_spark(lake: Any) -> list[tuple[bytes, int]]:
    return sorted((bytes(row._key), row._version) for row in lake.table(TABLE).select("_key", "_version").collect())


def test_files_are_put_together_while_batches_change_them(spark, table):
    """In the middle a column is added and another widened; at last the old snapshots leave."""
    writer, chance, truth = Writer(table.driver_table(TABLE)), random.Random(1), {}
    compaction, replaced, lost = Compaction(writer.table, "_key", 1.0), 0, 0
    for version in range(1, 60):
        numbers = sorted(chance.sample(range(1_500), 100))
        writer.put(numbers, version)
        truth |= {b"k%06d" % number: version for number in numbers}
        if (done := compaction.take()) is not None:
            gone = {source.file.path: source.gone for source in writer.index.sources()}
            lost += len(done.gone_since({one.file.path: gone[one.file.path] for one in done.sources}))
            writer.index.replace(done, {})
            replaced += 1
        compaction.begin(writer.index.sources())
        if version == 30:
            compaction.wait()
            spark.sql(f"ALTER TABLE {table.sql_name(TABLE)} ADD COLUMNS (z string)")
            spark.sql(f"ALTER TABLE {table.sql_name(TABLE)} ALTER COLUMN x TYPE bigint")
            writer.index.refresh()
        if version == 45:
            compaction.wait()
    assert replaced >= 2
    assert lost
    assert found_by_spark(table) == sorted(truth.items())
    writer.table.expire(0)
    assert found_by_spark(table) == sorted(truth.items())  # a file of vectors stays while one in it is in use
    assert len(by_driver_snapshots(table)) <= 11
    again = Writer(table.driver_table(TABLE)).index
    assert {one.file.path: set(one.gone) for one in again.sources()} == {
        one.file.path: set(one.gone) for one in writer.index.sources()
    }


def by_driver_snapshots(lake: Any) -> list[Any]:
    return list(lake._java(TABLE).snapshots())


def test_a_snapshot_that_somebody_named_stays(spark, table):
    writer, name = Writer(table.driver_table(TABLE)), table.sql_name(TABLE)
    writer.put(list(range(5)), 1)
    spark.sql(f"ALTER TABLE {name} CREATE TAG january")
    for version in range(2, 15):
        writer.put([version], version)
    writer.table.refresh()
    writer.table.expire(0)
    assert len(by_driver_snapshots(table)) == 11
    assert spark.sql(f"SELECT count(*) FROM {name} VERSION AS OF 'january'").first()[0] == 5


def test_who_is_overtaken_commits_nothing(spark, table):
    first, second = Writer(table.driver_table(TABLE)), Writer(table.driver_table(TABLE))
    first.put(list(range(100)), 1)
    second.index.refresh()
    first.put(list(range(50)), 2)
    with pytest.raises(Conflict):
        second.put(list(range(25, 75)), 3)
    second.index.refresh()
    second.put(list(range(25, 75)), 3)
    expected = [(b"k%06d" % number, 2 if number < 25 else 3 if number < 75 else 1) for number in range(100)]
    assert found_by_spark(table) == expected
    first.index.refresh()
    old = first.index.sources()
    spark.sql(f"CALL {table.catalog}.system.rewrite_data_files(table => 'd.t', options => map('rewrite-all', 'true'))")
    with pytest.raises(Conflict):
        first.put(list(range(60, 100)), 4)
    assert old
    assert found_by_spark(table) == expected


def test_what_somebody_else_does_between_a_look_and_a_commit_is_seen_by_the_next(spark, table):
    """A rewrite of all files conflicts with no new row, but a row that is changed later is somewhere else then."""
    writer = Writer(table.driver_table(TABLE))
    writer.put(list(range(100)), 1)
    spark.sql(f"CALL {table.catalog}.system.rewrite_data_files(table => 'd.t', options => map('rewrite-all', 'true'))")
    writer.put(list(range(100, 110)), 2)
    writer.index.refresh()
    writer.put(list(range(50, 105)), 3)
    versions = {number: 1 if number < 50 else 3 if number < 105 else 2 for number in range(110)}
    assert found_by_spark(table) == [(b"k%06d" % number, version) for number, version in versions.items()]


def test_two_who_insert_the_same_documents_do_not_both(table):
    """Neither takes a row of the other away, so only the rows that were added tell."""
    first, second = Writer(table.driver_table(TABLE)), Writer(table.driver_table(TABLE))
    first.put(list(range(10)), 1)
    with pytest.raises(Conflict):
        second.put(list(range(10)), 1)
    assert found_by_spark(table) == [(b"k%06d" % number, 1) for number in range(10)]


HISTORY = ("d", "t_history")


class Appender:
    """Puts events into a history, as batches do."""

    def __init__(self, lake: Any) -> None:
        self.table = lake.driver_table(HISTORY)
        self.recent = RecentFiles(self.table)
        self.recent.refresh()

    def append(self, numbers: range) -> None:
        at = int(time.time()) << 32
        columns = {name: pa.nulls(len(numbers), kind) for name, kind in EVENT_TYPES.items()}
        columns |= {
            "token": pa.array([f"{number:06d}" for number in numbers]),
            "cluster_time": pa.array([at + number for number in numbers]),
            "_key": pa.array([b"%d" % number for number in numbers]),
        }
        events = pa.table(columns)
        token = {"least_token": f"{numbers[0]:06d}", "greatest_token": f"{numbers[-1]:06d}"}
        part = Part(
            "d", "t", len(numbers), 0, 0, 0, least_key=None, greatest_key=None, least_time=at, repeated=False, **token
        )
        append_events(HistoryRows(part, self.table, self.recent, events), Commit(uuid.uuid4().hex, 0))


def tokens(lake: Any) -> list[int]:
    return sorted(int(row.token) for row in lake.table(HISTORY).select("token").collect())


@pytest.fixture
def history(table):
    table.create(HISTORY, TableKind.HISTORY, "d.t", HISTORY_COLUMNS, day="cluster_time")
    return table


def test_two_who_append_the_same_events_do_so_once(history):
    first, second = Appender(history), Appender(history)
    first.append(range(10))
    second.append(range(5, 15))
    first.append(range(20, 25))
    second.append(range(16, 20))
    assert tokens(history) == list(range(25))[:15] + list(range(16, 25))
    operations = [str(one.operation()) for one in history._java(HISTORY).snapshots()]
    assert operations == ["append"] * 4


@pytest.fixture
def looked(history, monkeypatch):
    """How often Iceberg was asked which files have tokens of a range."""
    asked: list[Any] = []
    files_between = DriverTable.files_between

    def counted(self: DriverTable, inside: Any) -> list[str]:
        asked.append(inside)
        return files_between(self, inside)

    monkeypatch.setattr(DriverTable, "files_between", counted)
    return asked


def test_events_behind_all_others_are_looked_for_in_no_file(history, looked):
    appender = Appender(history)
    appender.append(range(10))
    looked.clear()
    appender.append(range(10, 20))
    appender.append(range(20, 30))
    assert not looked
    appender.append(range(25, 35))
    assert len(looked) == 1
    assert tokens(history) == list(range(35))


def test_where_the_tokens_end_is_read_from_the_files_that_are_there(spark, history, looked):
    """As after a restart, and after somebody else wrote: what was known before does not count then."""
    Appender(history).append(range(20))
    again, other = Appender(history), Appender(history)
    looked.clear()
    again.append(range(15, 25))
    assert len(looked) == 1
    other.append(range(30, 40))
    again.recent.refresh()
    again.append(range(35, 45))
    again.append(range(45, 50))
    assert len(looked) >= 2
    assert tokens(history) == [*range(25), *range(30, 50)]


def test_events_that_somebody_deleted_do_not_come_back_by_a_compaction(spark, history):
    appender = Appender(history)
    for number in range(16):
        appender.append(range(number * 10, number * 10 + 10))
    compaction = Compaction(appender.table, "token", 1.0)
    compaction.begin(appender.recent.sources())
    compaction.wait()
    name = history.sql_name(HISTORY)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM {name} WHERE token = '000017'")
    done = compaction.take()
    assert done is not None
    assert appender.recent.replace(done, {})
    left = [number for number in range(160) if number != 17]
    assert tokens(history) == left
    spark.sql(f"DELETE FROM {name} WHERE token = '000023'")
    appender.append(range(200, 201))
    left = [*(number for number in left if number != 23), 200]
    again = compact(appender.table, Appender(history).recent.sources(), "token")
    assert appender.recent.replace(again, {})
    assert tokens(history) == left


def test_files_elsewhere_are_read_and_written_through_iceberg(table, monkeypatch):
    """As those of an object store: nothing is a file of this machine then."""
    monkeypatch.setattr("tailrace.warehouse.tables.driver_table.local_path", lambda _: None)
    writer = Writer(table.driver_table(TABLE))
    for version in range(1, 4):
        writer.put(list(range(version, 10)), version)
    again = Writer(table.driver_table(TABLE))
    again.index.replace(compact(again.table, again.index.sources(), "_key"), {})
    again.put([9], 4)
    assert found_by_spark(table) == [
        (b"k%06d" % number, min(number, 3) if number < 9 else 4) for number in range(1, 10)
    ]
    kept = [source for source in again.index.sources() if source.gone]
    assert [list(source.gone) for source in kept] == [[8]]
    assert isinstance(again.table.open(kept[0].file.path), pa.PythonFile)


def test_a_file_that_cannot_be_written_whole_is_not_left(table):
    """The system refuses to let a file grow, as a full disk does."""
    writer = Writer(table.driver_table(TABLE))
    writer.put([1], 1)
    folder, limit = Path(table.location(TABLE).removeprefix("file:")), resource.getrlimit(resource.RLIMIT_FSIZE)
    before = set(folder.rglob("*.*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.put(list(range(5_000)), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert set(folder.rglob("*.*")) == before
    writer.put([1, 2], 2)
    assert found_by_spark(table) == [(b"k000001", 2), (b"k000002", 2)]


def test_deletion_vectors():
    rows = BitMap([0, 7, 70_000, 2**32 - 1])
    assert decoded(encoded(rows)) == rows
    assert decoded(encoded(BitMap())) == BitMap()
    damaged = bytearray(encoded(rows))
    damaged[-6] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        decoded(bytes(damaged))
    data, blobs = puffin({"a": rows, "b": BitMap([3])})
    read = [decoded(data[blob.offset : blob.offset + blob.size]) for blob in blobs]
    assert (read, [blob.rows for blob in blobs]) == ([rows, BitMap([3])], [4, 1])


def test_deletion_vectors_are_what_pyiceberg_reads():
    puffins = pytest.importorskip("pyiceberg.table.puffin")
    data, _ = puffin({"a": BitMap([1, 2, 100_000])})
    assert puffins.PuffinFile(data).to_vector()["a"].to_pylist() == [1, 2, 100_000]


def test_tiers_fill_before_they_are_put_together():
    def source(rows: int, gone: int = 0, partition: str | None = None) -> Source:
        return Source(DataFile(uuid.uuid4().hex, rows, None, partition=partition), BitMap(range(gone)))

    small = [source(1_000) for _ in range(15)]
    assert chosen(small) == []
    assert chosen([*small, source(1_000, partition="other")]) == []
    assert len(chosen([*small, source(1_000), source(100_000)])) == 16
    worn = source(100_000, 40_000)
    assert chosen([*small, worn]) == [worn]
    assert chosen([source(900_000) for _ in range(16)]) == []


def test_records_between_two_offsets():
    assert records_between('{"t":{"0":5,"1":2}}', '{"t":{"0":9,"1":2,"2":3}}') == 7
    assert records_between("", '{"t":{"0":9}}') is None
    assert records_between('{"token":"82"}', '{"token":"83"}') is None


def test_a_compaction_stays_within_its_budget(monkeypatch):
    compaction = Compaction(None, "_key", 0.1)  # type: ignore[arg-type]
    monkeypatch.setattr("tailrace.warehouse.batch.compaction.compact", lambda *_: burn(0.2))
    sources = [Source(DataFile(str(number), 10, None), BitMap()) for number in range(16)]
    began = time.monotonic()
    compaction.begin(sources)
    compaction.wait()
    assert compaction.take() == "done"
    assert compaction._not_before >= began + 0.2 / 0.1
    compaction._not_before = time.monotonic() + 60
    compaction.begin(sources)
    assert compaction._running is None


def burn(seconds: float) -> Any:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return "done"
