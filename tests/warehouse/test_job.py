"""The warehouse job on real servers: mirrors that equal their collections byte for byte, and every event once."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from bson_strategies import DOCUMENTS
from tailrace import raw
from tailrace.capture.formats.made_events import snapshot_event
from tailrace.capture.source.namespaces import EVERYTHING, Namespaces
from tailrace.dashboard.sources.job_dead_letters import WarehouseDeadLetters
from tailrace.errors import RebuildIncomplete, SchemaDrifted, SettingsError, SqlRefused
from tailrace.settings import WarehouseSettings
from tailrace.spark import from_kafka
from tailrace.spark.columns import EventColumns
from tailrace.token import ResumeToken
from tailrace.warehouse import TableKind, read_tables
from tailrace.warehouse.batch.driver_batch import DriverWriter
from tailrace.warehouse.columns.contract import Rules
from tailrace.warehouse.job import COLUMNS, WarehouseJob
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.mirror.mirror import Mirror
from tailrace.warehouse.mirror.staging import Report
from tailrace.warehouse.query import ask
from tailrace.warehouse.rebuild import rebuild_mirrors
from tailrace.warehouse.summary import summarise
from tailrace.warehouse.tables.format import Commit
from warehouse_load import Load, Topic, differences, mirrored, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
SECONDS = 600.0
NO_TEXT = (3).to_bytes(4, "little") + b"\xff\xfe\0"


@pytest.fixture(params=["iceberg", pytest.param("delta", marks=pytest.mark.long)])
def settings(request, spark, tmp_path):
    """The settings of a new warehouse in a folder of its own: every test holds for each of the formats."""

    def make(**chosen: Any) -> WarehouseSettings:
        name = f"lake_{uuid.uuid4().hex[:8]}"  # a session never forgets a catalog
        defaults = {"maintain_batches": 0, "format": request.param}
        made = WarehouseSettings(folder=str(tmp_path / name), catalog=name, **{**defaults, **chosen})
        configure_catalog(spark, made)
        return made

    return make


def topic_events(spark: Any, kafka: Any, topic: str) -> Any:
    servers = kafka.bootstrap_servers
    return from_kafka(spark, servers, topic, schema=COLUMNS, keep_bad_records=True, max_events_per_batch=200)


def run(job: WarehouseJob, events: Any, checkpoint: Path) -> None:
    """Bring the tables to the end of a topic."""
    query = job.start(events, str(checkpoint), availableNow=True)
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def rows_of(spark: Any, chosen: WarehouseSettings, table: str) -> Any:
    """The rows of `database.table` as they are now."""
    database, _, name = table.partition(".")
    return open_lake(spark, chosen).table((database, name))


def snapshots(chosen: WarehouseSettings) -> dict[str, int]:
    return {table.name: len(table.snapshots) for table in read_tables(chosen.folder)}


def frame(spark: Any, events: list[bytes]) -> Any:
    """Events as a data frame, without a server."""
    schema = StructType.fromDDL(COLUMNS)
    return spark.createDataFrame(pa.Table.from_batches([EventColumns(schema).batch(events)]))


def read_events(namespace: str, documents: list[dict[str, Any]], second: int = 1) -> list[bytes]:
    at = Timestamp(second, 1)
    token = ResumeToken.high_water_mark(at).to_bson()
    return [snapshot_event(namespace, bson.encode(document), token, at) for document in documents]


def event(namespace: str, operation: str, key: Any, second: int, **parts: Any) -> bytes:
    at, (database, _, collection) = Timestamp(second, 1), namespace.partition(".")
    token = bson.decode(ResumeToken.high_water_mark(at).to_bson())
    place = {"_id": token, "operationType": operation, "clusterTime": at, "ns": {"db": database, "coll": collection}}
    return bson.encode({**place, "documentKey": {"_id": key}, **parts})


def test_deltas_duplicates_and_replays(spark, kafka, database, settings, tmp_path):
    """Updates without documents, each delivered twice; then the last batch again, then everything again."""
    chosen, start = settings(), now(database.client)
    Load(database.orders, 1).run(200)
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}")
    count = topic.fill(database, start, copies=2)
    topic.write_bad(b"no BSON")
    events = topic_events(spark, kafka, topic.name)
    run(WarehouseJob(chosen), events, tmp_path / "c")

    def mirror() -> Any:
        return rows_of(spark, chosen, f"{database.name}.orders")

    def history() -> Any:
        return rows_of(spark, chosen, f"{database.name}.orders_history")

    assert differences(mirror(), database.orders) == []
    assert history().count() == history().select("token").distinct().count() == count
    (letter,) = rows_of(spark, chosen, "tailrace.dead_letters").collect()
    assert (bytes(letter.record), "no BSON" not in letter.cause) == (b"no BSON", True)
    tables = {table.name: table for table in read_tables(chosen.folder)}
    (shown,) = WarehouseDeadLetters(str(chosen.folder), lambda: tables["tailrace.dead_letters"].rows).poll().newest
    assert (shown.cause, shown.bytes) == ("event-unconvertible", len(b"no BSON"))
    newest = tables[f"{database.name}.orders"].snapshots[-1].properties
    assert json.loads(newest["tailrace.offsets.end"]) == {topic.name: {"0": 2 * count + 1}}
    assert newest["tailrace.token"] == history().agg({"token": "max"}).first()[0]
    assert tables[f"{database.name}.orders"].rows == database.orders.count_documents({})
    # The last batch was done, but Spark did not come to write that down.
    before = snapshots(chosen)
    last = max(int(file.name) for file in (tmp_path / "c" / "commits").glob("[0-9]*"))
    (tmp_path / "c" / "commits" / str(last)).unlink()
    run(WarehouseJob(chosen), events, tmp_path / "c")
    assert snapshots(chosen) == before
    # A job without a checkpoint reads everything again.
    run(WarehouseJob(chosen), events, tmp_path / "again")
    assert differences(mirror(), database.orders) == []
    assert history().count() == count


def test_ends_of_collections_and_unknown_documents(spark, kafka, database, settings, tmp_path):
    chosen = settings()
    database.late.insert_one({"_id": 1})
    start = now(database.client)
    database.late.update_one({"_id": 1}, {"$set": {"a": 1}})
    database.a.insert_many([{"_id": number, "x": number} for number in range(5)])
    database.a.update_one({"_id": 1}, {"$set": {"x": 1.5}})
    database.b.insert_many([{"_id": number} for number in range(5)])
    database.a.rename("c")
    database.c.update_one({"_id": 3}, {"$set": {"x": "text"}})
    database.c.delete_one({"_id": 4})
    database.b.drop()
    database.b.insert_one({"_id": 100})
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}")
    count = topic.fill(database, start)
    run(WarehouseJob(chosen), topic_events(spark, kafka, topic.name), tmp_path / "c")
    for name in ("a", "b", "c"):
        assert differences(rows_of(spark, chosen, f"{database.name}.{name}"), database[name]) == []
    histories = [table for table in read_tables(chosen.folder) if table.kind == TableKind.HISTORY]
    assert sum(table.rows for table in histories) == count
    (letter,) = rows_of(spark, chosen, "tailrace.dead_letters").collect()
    assert (letter.cause, letter.namespace) == ("base-unknown", f"{database.name}.late")
    assert bson.decode(letter.record)["updateDescription"]["updatedFields"] == {"a": 1}
    assert mirrored(rows_of(spark, chosen, f"{database.name}.late")) == {}
    row = rows_of(spark, chosen, f"{database.name}.c").where("_id = 3").collect()[0]
    assert (row.x, row._rest) == (None, '{"x":"text"}')


def test_directly_from_mongodb(spark, mongodb, database, settings, tmp_path):
    chosen = settings()
    load = Load(database.orders, 4)
    load.run(60)
    job = WarehouseJob(chosen)
    start = job.backfill(spark, mongodb.uri, [database.name])
    table = f"{database.name}.orders"
    assert differences(rows_of(spark, chosen, table), database.orders) == []
    load.run(60)
    options = {"uri": mongodb.uri, "namespaces": database.name, "startAtOperationTime": start}
    run(job, spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load(), tmp_path / "c")
    assert differences(rows_of(spark, chosen, table), database.orders) == []


def test_contracts(spark, settings):
    first = [{"_id": 1, "n": 5, "o": {"x": 1}, "a": [{"y": 1}]}, {"_id": 2, "n": 6, "o": {"x": 2}}]
    drifted = [{"_id": 2, "n": bson.Int64(2**40), "o": {"x": 1.5}, "new": True}, {"_id": 3, "n": "text"}]
    longer = [{"_id": 4, "a": [{"y": bson.Int64(2), "z": "added"}]}]

    def written(*batches: list[dict[str, Any]], **rules: Any) -> tuple[WarehouseSettings, Any]:
        chosen = settings(**rules)
        job = WarehouseJob(chosen)
        for number, documents in enumerate(batches):
            job.write(frame(spark, read_events("d.c", documents, number + 1)), Commit("q", number))
        return chosen, rows_of(spark, chosen, "d.c")

    chosen, mirror = written(first, longer, [*drifted, {"_id": 5, "n": "text"}])
    rows = {row._id: row for row in mirror.collect()}
    assert [(rows[key].n, rows[key].o and rows[key].o.x, rows[key].new) for key in (1, 2, 3)] == [
        (5, 1.0, None), (2**40, 1.5, True), (None, None, None),
    ]  # fmt: skip
    assert mirror.schema["n"].dataType.simpleString() == "bigint"
    assert (rows[4].a, rows[1].a, rows[3]._rest) == ([(2, "added")], [(1, None)], '{"n":"text"}')
    (table,) = (one for one in read_tables(chosen.folder) if one.kind == TableKind.MIRROR)
    seen = {(one.field, one.change, one.found): one.count for one in table.drift}
    assert seen == {
        ("n", "promoted", "long"): 1, ("o.x", "promoted", "double"): 1, ("new", "added", "bool"): 1,
        ("n", "rest", "string"): 2, ("a[].y", "promoted", "long"): 1, ("a[].z", "added", "string"): 1,
    }  # fmt: skip

    chosen, mirror = written(drifted, contract="json")
    assert {row._id: json.loads(row.document) for row in mirror.collect()}["3"] == {"_id": 3, "n": "text"}
    other = WarehouseJob(chosen.model_copy(update={"contract": "evolve"}))
    with pytest.raises(SettingsError, match="made with the contract json"):
        other.write(frame(spark, read_events("d.c", first, 9)), Commit("q", 9))

    chosen, mirror = written(first, drifted, contract="strict", on_drift="dead-letter")
    rows = {row._id: row for row in mirror.collect()}
    assert (sorted(rows), rows[2].n, rows[2]._refused is not None, rows[1]._refused) == ([1, 2], 6, True, None)
    causes = sorted(row.cause for row in rows_of(spark, chosen, "tailrace.dead_letters").collect())
    assert causes == ["schema-drift: n (long), o.x (double), new (bool)", "schema-drift: n (string)"]

    with pytest.raises(SchemaDrifted, match=r"d\.c has fields .*: a\[\]\.y int$"):
        written(first, contract="strict", declared={"d.c": "n int, o.x int, a string[]"})


def test_chosen_columns_excluded_fields_and_variants(spark, settings):
    first = [{"_id": 1, "user": {"name": "Ann", "phone": "1"}, "total": 5, "card": "4"}, {"_id": 2, "total": "n/a"}]
    update = {"updatedFields": {"user.phone": "2", "total": 6, "card": {"n": 4}}, "removedFields": []}

    def written(**rules: Any) -> tuple[WarehouseSettings, dict[Any, Any]]:
        chosen = settings(**rules)
        job = WarehouseJob(chosen)
        job.write(frame(spark, read_events("d.c", first, 1)), Commit("q", 0))
        job.write(frame(spark, [event("d.c", "update", 1, 10, updateDescription=update)]), Commit("q", 1))
        return chosen, {bson.decode(row._bson)["_id"]: row for row in rows_of(spark, chosen, "d.c").collect()}

    columns, excluded = {"d.c": {"name": "user.name string", "total": "long"}}, {"d.c": "card, user.phone"}
    chosen, rows = written(columns=columns, excluded=excluded)
    assert [(rows[key].name, rows[key].total, rows[key]._rest) for key in (1, 2)] == [
        ("Ann", 6, None), (None, None, '{"total":"n/a"}'),
    ]  # fmt: skip
    assert bson.decode(rows[1]._bson) == {"_id": 1, "user": {"name": "Ann"}, "total": 6}
    assert not {"card", "user"} & set(rows_of(spark, chosen, "d.c").columns)
    other = WarehouseJob(chosen.model_copy(update={"excluded": {}}))
    with pytest.raises(SettingsError, match=r"made with other columns: name=user\.name;total=total;-card;-user\.phone"):
        other.write(frame(spark, read_events("d.c", first, 9)), Commit("q", 9))

    chosen, rows = written(columns=columns, contract="strict", on_drift="dead-letter")
    assert rows.keys() == {1}
    (letter,) = rows_of(spark, chosen, "tailrace.dead_letters").collect()
    assert letter.cause == "schema-drift: total (string)"

    chosen, rows = written(contract="variant", excluded=excluded)
    assert [json.loads(rows[key].document.toJson()) for key in (1, 2)] == [
        {"_id": 1, "user": {"name": "Ann"}, "total": 6}, {"_id": 2, "total": "n/a"},
    ]  # fmt: skip
    found = rows_of(spark, chosen, "d.c").selectExpr("variant_get(document, '$.user.name', 'string')")
    assert {row[0] for row in found.collect()} == {"Ann", None}
    with pytest.raises(SqlRefused, match="contract variant"), ask("SELECT count(*) FROM d.c", chosen):
        pass


@examples(max_examples=1, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
@given(generated=st.lists(DOCUMENTS, min_size=40, max_size=40))
def test_every_document_comes_back_from_its_row(spark, settings, generated):
    chosen = settings(max_columns=25)
    documents = [{**document, "_id": number} for number, document in enumerate(generated)]
    WarehouseJob(chosen).write(frame(spark, read_events("d.c", documents)), Commit("q", 0))
    table = rows_of(spark, chosen, "d.c")
    assert mirrored(table) == {repr(document["_id"]): bson.encode(document) for document in documents}


@pytest.mark.parametrize("settings", ["iceberg"], indirect=True)
def test_batches_of_queries_that_nobody_knows_are_all_written(spark, settings):
    """Two queries of a program of its own may give batches of the same number."""
    chosen = settings()
    for number in range(2):
        WarehouseJob(chosen).apply(frame(spark, read_events("d.c", [{"_id": number}], number + 1)), 0)
    assert sorted(row._id for row in rows_of(spark, chosen, "d.c").collect()) == [0, 1]


@pytest.mark.parametrize(("driver_events", "is_between"), [(0, False), (5_000, False), (5_000, True)])
def test_a_job_that_was_overtaken_brings_nothing_back(spark, settings, monkeypatch, driver_events, is_between):
    """Two jobs with one checkpoint run for a while, as when a deployment is replaced; what one has not heard of yet, a
    delete, the other has done: before the batch of the first begins, or between its plan and its commit."""
    chosen, namespace = settings(driver_events=driver_events), "d.c"
    behind, ahead = WarehouseJob(chosen), WarehouseJob(chosen)
    inserted = read_events(namespace, [{"_id": 1, "n": 1}, {"_id": 2, "n": 1}], 3)

    def put(job: WarehouseJob, events: list[bytes], number: int) -> None:
        batch = frame(spark, events), Commit("q", number)
        if not driver_events or not job._write_in_driver(*batch):
            job.write(*batch)

    put(behind, read_events(namespace, [{"_id": 0, "n": 1}], 2), 0)

    def overtake() -> None:
        put(ahead, inserted, 1)
        put(ahead, [event(namespace, "delete", 1, 4)], 2)

    def planned(writer: Any, *arguments: Any) -> Any:
        monkeypatch.undo()
        try:
            return writer.planned(*arguments)
        finally:
            overtake()  # also where the plan is that Spark writes it, as it does all of Delta's

    if is_between:
        monkeypatch.setattr(DriverWriter, "planned", planned)
    else:
        overtake()
    put(behind, inserted, 1)
    assert sorted(row.n for row in rows_of(spark, chosen, namespace).collect()) == [1, 1]
    assert sorted(row._id for row in rows_of(spark, chosen, namespace).collect()) == [0, 2]
    assert rows_of(spark, chosen, f"{namespace}_history").count() == 4


def test_collections_whose_names_are_alike_when_joined_are_kept_apart(spark, settings, monkeypatch):
    """Mirrors are merged several at once: each from its own rows."""
    chosen, both, statement = settings(driver_events=0), threading.Barrier(2, timeout=SECONDS), Mirror.merge_statement

    def after_both(*arguments: Any) -> str:
        both.wait()
        return statement(*arguments)

    monkeypatch.setattr(Mirror, "merge_statement", after_both)
    events = [*read_events("a_b.c", [{"_id": 1}]), *read_events("a.b_c", [{"_id": 2}])]
    WarehouseJob(chosen).write(frame(spark, events), Commit("q", 0))
    assert [[row._id for row in rows_of(spark, chosen, name).collect()] for name in ("a_b.c", "a.b_c")] == [[1], [2]]


@pytest.mark.parametrize("is_first", [True, False])
def test_two_jobs_that_append_the_same_events_do_so_once(spark, settings, monkeypatch, is_first):
    """Each has a checkpoint of its own; one commits after the other has looked what the history has."""
    chosen = settings(driver_events=0)
    lake = type(open_lake(spark, chosen))
    if not is_first:
        WarehouseJob(chosen).write(frame(spark, read_events("d.c", [{"_id": 0}], 1)), Commit("before", 0))
    look = lake.has_rows_between

    def look_before_the_other(*arguments: Any) -> bool:
        monkeypatch.undo()
        found = look(*arguments)
        other = read_events("d.c", [{"_id": number} for number in range(4)], 2)
        WarehouseJob(chosen).write(frame(spark, other), Commit("other", 0))
        return found

    monkeypatch.setattr(lake, "has_rows_between", look_before_the_other)
    own = read_events("d.c", [{"_id": number} for number in range(2, 6)], 2)
    WarehouseJob(chosen).write(frame(spark, own), Commit("own", 0))
    found = sorted(json.loads(row.document_key)["_id"] for row in rows_of(spark, chosen, "d.c_history").collect())
    assert found == [*([] if is_first else [0]), *range(6)]
    if chosen.format == "iceberg":
        history = next(one for one in read_tables(chosen.folder) if one.name == "d.c_history")
        assert {one.operation for one in history.snapshots} == {"append"}, "streams refuse to read anything else"


@pytest.mark.parametrize("settings", ["iceberg"], indirect=True)
def test_a_merge_reads_keys_and_versions_alone(spark, settings):
    """Unless a row keeps something of itself: then all columns of all rows that are compared have to be read.

    Delta plans what a MERGE reads while it runs: the plan of the statement says nothing of it.
    """
    chosen = settings()
    batch = frame(spark, read_events("d.c", [{"_id": 1, "n": 5}]))
    WarehouseJob(chosen).write(batch, Commit("q", 0))
    mirror = Mirror(open_lake(spark, chosen), "d.c", Rules())

    def plan(report: Report) -> str:
        return str(spark.sql(f"EXPLAIN {mirror.merge_statement('staged_plan', report)}").first()[0])

    def read(plan: str) -> str:
        return next(line for line in plan.splitlines() if "BatchScan" in line and "_pos" in line)

    (part,) = summarise(batch, EVERYTHING).parts
    with mirror.staged(batch, part) as staged:
        staged.rows.createOrReplaceTempView("staged_plan")
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)  # as if the mirror were large
        usual = plan(Report(rows=1, deleted=1, least=b"a", greatest=b"b"))
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
        assert "_key" in read(usual)
        assert "_bson" not in read(usual)
        assert "might_contain" in usual, "rows that no key of the batch matches are not shuffled"
        assert "ColumnarToRow" not in usual, "the vectorised reader of Iceberg 1.11 loses memory with every MERGE"
        assert "_bson" in read(plan(Report(rows=1, refused=1, least=b"a", greatest=b"b")))


def test_marks_and_maintenance(spark, settings):
    chosen = settings(deletes="mark", maintain_batches=4, keep_hours=0)
    job = WarehouseJob(chosen)
    for number in range(4):
        job.write(
            frame(spark, read_events("d.c", [{"_id": number}, {"_id": "x", "n": number}], number + 1)),
            Commit("q", number),
        )
    job.write(frame(spark, [event("d.c", "delete", 3, 50)]), Commit("q", 4))
    job.write(frame(spark, read_events("d.c", [{"_id": 3, "late": True}], 40)), Commit("q", 5))
    table = rows_of(spark, chosen, "d.c")
    assert len(mirrored(table)) == 4
    assert [row._id for row in table.where("_is_deleted").collect()] == [3]
    state = {one.name: one for one in read_tables(chosen.folder)}
    assert {one.operation for one in state["d.c"].snapshots} >= {"replace"}, "the job maintains its tables"
    assert job_has(spark, chosen, Commit("q", 4))
    lake = open_lake(spark, chosen)
    lake.compact(("d", "c"), TableKind.MIRROR)
    lake.expire(("d", "c"), 0)
    assert lake.remove_orphans(("d", "c"), 24) == 0
    assert len(mirrored(rows_of(spark, chosen, "d.c"))) == 4
    assert job_has(spark, chosen, Commit("q", 4)), "what batch was the last is known after all that"


@pytest.mark.parametrize("settings", ["iceberg"], indirect=True)
def test_tables_of_format_version_2(spark, settings):
    """Readers that know no deletion vectors find files of positions instead."""
    chosen = settings(format_version=2)
    job = WarehouseJob(chosen)
    job.write(frame(spark, read_events("d.c", [{"_id": number, "n": 0} for number in range(5)])), Commit("q", 0))
    changed = [
        event("d.c", "update", 1, 10, fullDocument={"_id": 1, "n": 1}),
        event("d.c", "update", 2, 11, updateDescription={"updatedFields": {"n": 2}, "removedFields": []}),
        event("d.c", "delete", 3, 12),
        event("d.c", "insert", 5, 13, fullDocument={"_id": 5, "n": 5}),
    ]
    job.write(frame(spark, changed), Commit("q", 1))
    table = f"{chosen.catalog}.d.c"
    expected = [{"_id": 0, "n": 0}, {"_id": 1, "n": 1}, {"_id": 2, "n": 2}, {"_id": 4, "n": 0}, {"_id": 5, "n": 5}]
    assert mirrored(spark.table(table)) == {repr(one["_id"]): bson.encode(one) for one in expected}
    assert {row.file_format for row in spark.table(f"{table}.delete_files").collect()} == {"PARQUET"}
    properties = dict(spark.sql(f"SHOW TBLPROPERTIES {table}").collect())
    assert properties["format-version"] == "2"


def job_has(spark: Any, chosen: WarehouseSettings, commit: Commit) -> bool:
    return open_lake(spark, chosen).has_batch(("d", "c"), commit)


def test_a_mirror_is_rebuilt_from_the_topics(spark, kafka, database, settings):
    chosen, start = settings(), now(database.client)
    Load(database.orders, 3).run(60)
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}")
    topic.fill(database, start)
    namespace = f"{database.name}.orders"
    # What the mirror has is wrong: a document that never was.
    WarehouseJob(chosen).write(frame(spark, read_events(namespace, [{"_id": "wrong"}])), Commit("q", 0))
    (done,) = rebuild_mirrors(topic_events(spark, kafka, topic.name), chosen, [namespace])
    assert (done.rows_before, done.rows_after) == (1, database.orders.count_documents({}))
    assert differences(rows_of(spark, chosen, f"{namespace}"), database.orders) == []
    assert not [table for table in read_tables(chosen.folder) if table.name.endswith("_rebuilt")]
    lost = {"updateDescription": {"updatedFields": {"a": 1}, "removedFields": []}}
    topic.write(event(namespace, "update", "never seen", 1, **lost))
    topic.write_bad(b"no BSON")
    with pytest.raises(RebuildIncomplete):
        list(rebuild_mirrors(topic_events(spark, kafka, topic.name), chosen, [namespace]))
    assert differences(rows_of(spark, chosen, f"{namespace}"), database.orders) == []


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"x": 1}
    for _ in range(levels - 1):
        document = {"a": document}
    return document


def test_documents_that_no_table_can_hold_do_not_stop_it(spark, mongodb, database, settings, tmp_path):
    """One nested deeper than Arrow allows, and one with a text that is no UTF-8; both were accepted by the server."""
    chosen = settings()
    broken, also_broken = (
        raw.document(raw.element(0x10, b"_id", number.to_bytes(4, "little")), raw.element(raw.STRING, b"s", NO_TEXT))
        for number in (3, 5)
    )
    database.orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2, "deep": nested(97)}])
    database.orders.insert_one(RawBSONDocument(broken))
    job = WarehouseJob(chosen, Namespaces.parse([database.name]))
    start = job.backfill(spark, mongodb.uri, [database.name])
    database.orders.insert_one({"_id": 4, "deep": nested(97)})
    database.orders.insert_one(RawBSONDocument(also_broken))
    options = {"uri": mongodb.uri, "namespaces": database.name, "startAtOperationTime": start}
    run(job, spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load(), tmp_path / "c")
    rows = {row._id: row for row in rows_of(spark, chosen, f"{database.name}.orders").collect()}
    assert rows.keys() == {1, 2, 4}
    assert json.loads(rows[2]._rest) == {"deep": nested(97)}
    letters = rows_of(spark, chosen, "tailrace.dead_letters").collect()
    assert {bytes(row.record) for row in letters} == {broken, also_broken}
    assert all("cannot be decoded" in row.cause for row in letters)
    assert rows_of(spark, chosen, f"{database.name}.orders_history").count() >= 5
