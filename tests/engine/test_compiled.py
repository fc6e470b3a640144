"""The compiled kernel gives the reference's events or its errors, whatever the bytes, and takes the usual entries."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from bson.timestamp import Timestamp
from hypothesis import given as examples
from hypothesis import strategies as st

import hostile_bson
from bson_strategies import VALUES
from engine.small_oplog import SESSION, entry
from odd_events import mutated
from tailrace import raw
from tailrace.engine import Dialect, Event, open_stream, parse_command
from tailrace.engine.event import EventColumns
from tailrace.engine.images import NoImages
from tailrace.engine.make_events import EventsOfEntries
from tailrace.engine.prefilter import prefilter_of
from tailrace.engine.recording import RecordedOplog, RecordedShard, read_recording
from tailrace.errors import OplogEntryInvalid, TailraceError
from tailrace.oplog.entry import OplogEntry

tailrace_kernel = pytest.importorskip("tailrace_kernel")

INPUTS = int(os.environ.get("INPUTS", "8000"))
SEED = int(os.environ.get("SEED", "1"))
OPTIONS: list[dict[str, Any]] = [{}, {"showExpandedEvents": True}, {"showRawUpdateDescription": True}]
DIALECTS = {name: Dialect.of(name) for name in ("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", "7.0.28")}

START = {"startAtOperationTime": Timestamp(100, 0)}
SIX = Dialect.of("6.0.5")
NOTHING: Any = ([], b"", b"", b"", 0)
Outcome = tuple[list[Event], tuple[type[Exception], str] | None]


class ShardKeys(NoImages):
    """A shard whose collection has a key."""

    def shard_key(self, uuid: bytes) -> list[bytes]:
        return [b"a", b"d.n"]


def outcome(
    use: str,
    entries: list[bytes],
    dialect: Dialect,
    options: Mapping[str, Any] = {},
    stages: list[dict[str, Any]] | None = None,
    *,
    fields: Mapping[str, Any] = {},
    images: NoImages | None = None,
) -> Outcome:
    """All events of a stream over these entries, and the error that ended it."""
    stage = {"allChangesForCluster": True, "startAtOperationTime": Timestamp(100, 0), **options}
    given = {name: value for name, value in stage.items() if value is not None}
    pipeline = [{"$changeStream": given}, *(stages or [])]
    command: dict[str, Any] = {"aggregate": 1, "pipeline": pipeline, "cursor": {}, **fields}
    spec = parse_command(command, "admin", dialect)
    shard = RecordedShard(entries, [(100 << 32) + number for number in range(1, len(entries) + 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAILRACE_KERNEL", use)
        stream = open_stream(spec, RecordedOplog(shard), dialect, latest=1, images=images)
        try:
            events = stream.next_batch()
            error = None
        except TailraceError as raised:
            events, error = stream.unfinished, (type(raised), raised.message)
    return [event._replace(change=None) for event in events], error


def same(*arguments: Any, **named: Any) -> Outcome:
    """Check that both give the same, and give it."""
    ours, reference = outcome("on", *arguments, **named), outcome("off", *arguments, **named)
    assert ours == reference
    return ours


@pytest.mark.parametrize("recording", ["4.2.6", "5.0.4", "6.0.5", "7.0.28"])
@pytest.mark.parametrize("v2", [False, True])
def test_recorded_logs_give_the_same(recordings: Path, recording: str, v2: bool) -> None:
    if v2 and not recording.startswith("6"):
        pytest.skip("there is nothing to choose: older servers have no such tokens, newer ones no others")
    read = read_recording([recordings / f"{recording}.jsonl.gz"])
    fields = {"$_generateV2ResumeTokens": True} if v2 else {}
    for options in OPTIONS if read.dialect.since(6, 0) else OPTIONS[:1]:
        entries = [e for e in read.shards[""].entries if OplogEntry(e).op in (b"i", b"u", b"d")]
        events, error = same(entries, read.dialect, options, fields=fields)
        assert error is None
        assert len(events) > 400


def test_the_kernel_takes_all_usual_entries(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []
    original = EventsOfEntries.__call__

    def spy(self: EventsOfEntries, entries: list[bytes]) -> Any:
        left.extend(entries)
        return original(self, entries)

    monkeypatch.setattr(EventsOfEntries, "__call__", spy)
    for name in ("4.2.6", "5.0.4", "6.0.5", "7.0.28"):
        read = read_recording([recordings / f"{name}.jsonl.gz"])
        entries = [e for e in read.shards[""].entries if OplogEntry(e).op in (b"i", b"u", b"d")]
        left.clear()
        outcome("on", entries, read.dialect)
        by_key = [e for e in left if Decimal128 not in types_in(OplogEntry(e))]
        assert len(by_key) <= len(entries) // 50, [OplogEntry(e) for e in by_key[:3]]


def types_in(logged: OplogEntry) -> set[type]:
    key = bson.decode(logged.o2 or logged.o).get("_id")
    return {type(key)} | ({type(value) for value in key.values()} if isinstance(key, dict) else set())


def usual_entries(
    _id: Any, document: dict[str, Any], *, retryable: bool, has_key: bool, dialect: Dialect
) -> list[bytes]:
    """An insert, updates, a replacement and a delete, as servers log them, each twice."""
    session = {"lsid": SESSION, "txnNumber": Int64(5)} if retryable else {}
    before = {"prevOpTime": {"ts": Timestamp(99, 1), "t": Int64(1)}} if retryable else {}
    key = {"_id": _id}
    nested = {"u": {"a": 1}, "i": document, "sdeep": {"a": True, "l": 3, "u2": 5, "s0": {"d": {"x": False}}}}
    entries = []
    for number in range(2):
        for op, o, o2 in [
            ("i", {**key, **document}, key if has_key else None),
            ("u", {"$v": 2, "diff": {"u": document}}, key),
            ("u", {"$v": 2, "diff": {"d": {"gone": False}, "i": document, "snested": nested}}, key),
            ("u", {"$v": 1, "$unset": {"gone": True, "a.b": True}, "$set": document}, key),
            ("u", {**key, **document}, key),
            ("d", key, None),
        ]:
            made = entry(number + 1, op, "shop.orders", o, o2=o2, stmtId=0 if retryable else None)
            entries.append(bson.encode({**session, **in_order(made, dialect), **before}))
    return entries


def in_order(made: bytes, dialect: Dialect) -> dict[str, Any]:
    """The fields of an entry in the order in which servers write them."""
    fields = bson.decode(made)
    order = ["op", "ns", "ui", "o", "o2", "stmtId", "ts", "t", "v", "wall"]
    if not dialect.since(4, 4):
        order = ["ts", "t", "v", "op", "ns", "ui", "o2", "wall", "stmtId", "o"]
    return {name: fields[name] for name in order if name in fields}


KEYS = st.one_of(
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(),
    st.text(max_size=8),
    VALUES.filter(lambda value: not isinstance(value, (list, Regex))),
    st.dictionaries(st.text(max_size=3).filter(lambda name: "\0" not in name), VALUES, max_size=3),
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c.d", "é", "7", "d"]), VALUES, max_size=3)


@examples(KEYS, DOCUMENTS, st.booleans(), st.booleans(), st.sampled_from(sorted(DIALECTS)), st.sampled_from([0, 1, 2]))
def test_any_document_gives_the_same(
    key: Any, document: dict[str, Any], retryable: bool, has_key: bool, version: str, option: int
) -> None:
    dialect = DIALECTS[version]
    entries = usual_entries(key, document, retryable=retryable, has_key=has_key, dialect=dialect)
    options = OPTIONS[option if dialect.since(6, 0) else 0]
    fields = {"$_generateV2ResumeTokens": True} if version == "6.0.27" and retryable else {}
    events, error = same(entries, dialect, options, fields=fields)
    assert error is not None or len(events) == len(entries)
    same(entries, dialect, options, images=ShardKeys())


@examples(st.data())
def test_damaged_entries_give_the_same_events_or_the_same_error(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(sorted(DIALECTS)))
    dialect = DIALECTS[version]
    entries = usual_entries(
        data.draw(st.sampled_from([ObjectId(bytes(12)), 7, 1.5, "x\0y", {"a": [1, None]}])),
        {"a": 1, "b": "x", "d": {"n": [1, 2]}},
        retryable=data.draw(st.booleans()),
        has_key=data.draw(st.booleans()),
        dialect=dialect,
    )
    at = data.draw(st.integers(0, len(entries) - 1))
    damaged = bytearray(entries[at])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(damaged))))
    entries[at] = bytes(damaged[:cut])
    stages = data.draw(st.sampled_from([[], [{"$match": {"operationType": "insert"}}]]))
    same(entries, dialect, {}, stages)


@pytest.mark.parametrize("version", ["4.2.6", "6.0.5", "7.0.28"])
def test_hostile_documents_give_the_same_events_or_the_same_error(version: str) -> None:
    """As the whole document of an insert, as the key of a delete, and inside the delta of an update."""
    log = entry(1, "u", "shop.orders", {"$v": 2}, o2={"_id": 1})
    for _, element in hostile_bson.elements():
        for document in hostile_bson.documents(element):
            delta = raw.document(
                raw.element(raw.INT32, b"$v", raw.int32(2)),
                raw.element(raw.DOCUMENT, b"diff", raw.document(raw.element(raw.DOCUMENT, b"i", document))),
            )
            for op, o in ((b"i", document), (b"d", document), (b"u", delta)):
                kept = raw.without(log, b"op", b"o", *([] if op == b"u" else [b"o2"]))
                parts = raw.element(raw.STRING, b"op", raw.string(op)), raw.element(raw.DOCUMENT, b"o", o)
                same([raw.append(kept, *parts)], DIALECTS[version])


def test_deep_and_large_documents_give_the_same() -> None:
    usual = raw.without(entry(1, "i", "shop.orders", {"_id": 1}), b"o")
    for _, document in hostile_bson.deep_and_large():
        same([raw.append(usual, raw.element(raw.DOCUMENT, b"o", document))], SIX)


def test_any_bytes_are_declined() -> None:
    engine = tailrace_kernel.Engine(
        version=1, has_wall_time=True, shows_uuid=True, shows_migrations=False, shows_raw_updates=False,
        disambiguates=True, logs_keys=True, declined_until=0, prefilter=(b"n", [(16, b"")]),
    )  # fmt: skip
    engine.learn_namespace(b"shop.orders", True, 15, b"\x03ns\0\x05\0\0\0\0")
    rng = random.Random(3)
    plain = usual_entries(1, {"n": 1}, retryable=True, has_key=True, dialect=DIALECTS["6.0.5"])
    entries = [rng.randbytes(rng.randrange(80)) for _ in range(500)]
    entries += [bytes(each[:4]) + rng.randbytes(len(each) - 5) + b"\0" for each in plain * 20]
    columns, declined, end = engine.events(entries, 0)
    assert (columns, end) == (NOTHING, len(entries))
    assert [position for _, position in declined] == list(range(len(entries)))
    assert engine.events(entries, len(entries) + 5) == (NOTHING, [], len(entries))


@pytest.mark.parametrize("recording", ["4.2.6", "5.0.4", "6.0.5", "7.0.28"])
def test_mutated_entries(recordings: Path, recording: str) -> None:
    """`make fuzz-kernel` is the long form: any bytes give events, or are left to the reference, and nothing crashes."""
    read = read_recording([recordings / f"{recording}.jsonl.gz"])
    entries = [e for e in read.shards[""].entries if OplogEntry(e).op in (b"i", b"u", b"d")]
    chance, inputs = random.Random(SEED), INPUTS // 4
    engine = tailrace_kernel.Engine(
        version=2, has_wall_time=True, shows_uuid=True, shows_migrations=False, shows_raw_updates=False,
        disambiguates=True, logs_keys=False, declined_until=0, prefilter=None,
    )  # fmt: skip
    for namespace in {OplogEntry(each).namespace for each in entries}:
        engine.learn_namespace(namespace, True, 15, b"\x03ns\0\x05\0\0\0\0")
    for number in range(0, inputs, 100):
        batch = [mutated(chance, chance.choice(entries)) for _ in range(100)]
        start = 0
        while start < len(batch):  # where a namespace or a shard key is not known it goes on behind that entry
            columns, declined, end = engine.events(batch, start)
            assert len(columns[0]) + len(declined) <= end - start
            start = end + 1
        if inputs <= 10_000 or number % 10_000 == 0:
            same(batch[:1], read.dialect)


@pytest.mark.parametrize(
    "extra",
    [
        {"fromMigrate": True},
        {"fromMigrate": 1},
        {"preImageOpTime": {"ts": Timestamp(9, 1), "t": Int64(1)}},
        {"o2": 5},
        {"ui": None},
        {"ui": b"123"},
        {"wall": 5},
        {"ns": "shop.system.views"},
        {"ns": "admin.orders"},
        {"ns": "shop"},
        {"op": "n"},
        {"op": "x"},
        {"op": "db"},
    ],
)
@pytest.mark.parametrize("options", [*OPTIONS, {"showMigrationEvents": True}])
def test_unusual_fields_mean_the_same(extra: dict[str, Any], options: dict[str, Any]) -> None:
    dialect = DIALECTS["6.0.5"]
    usual = usual_entries(1, {"a": 1}, retryable=False, has_key=True, dialect=dialect)
    unusual = [bson.encode({**bson.decode(e), **extra}) for e in usual]
    for each in unusual:
        same([*usual, each, *usual], dialect, options)


def test_what_is_declined_keeps_its_place() -> None:
    dialect, log = DIALECTS["6.0.5"], []
    for number in range(1, 40):
        _id = Decimal128(str(number)) if number % 3 else number  # a decimal's KeyString is made by the reference
        log.append(entry(number, "i", f"shop.c{number % 4}", {"_id": _id}, o2={"_id": _id}))
    events, _ = same(log, dialect)
    assert [event.cluster_time & 0xFF for event in events] == list(range(1, 40))


def test_tokens_of_the_clients_version_end_with_its_position() -> None:
    log = [entry(number, "i", "shop.orders", {"_id": number}, o2={"_id": number}) for number in range(1, 6)]
    of_version_1, _ = same(log, DIALECTS["6.0.5"])
    resumed = {"startAtOperationTime": None, "resumeAfter": bson.decode(of_version_1[0].token)}
    events, error = same(log, DIALECTS["7.0.28"], resumed)
    assert error is None
    assert [event.cluster_time & 0xFF for event in events] == [2, 3, 4, 5]
    assert events[0].token != of_version_1[1].token


SCALARS: list[Any] = [0, 1, -1, 0.0, -0.0, 1.5, Int64(1), Decimal128("1.0"), Decimal128("0"), "x", "", True, None]
SCALARS += [ObjectId(bytes(12)), bson.datetime.datetime(2020, 1, 1), [1, "x"], [], {"n": 1}, [{"n": 0}]]
PATHS = ["fullDocument.n", "fullDocument.d.n", "documentKey._id", "fullDocument.n.0", "operationType", "fullDocument"]


def random_filter(rng: random.Random) -> dict[str, Any]:
    value = rng.choice(SCALARS)
    operand = rng.choice(
        [value, {"$eq": value}, {"$in": [value, rng.choice(SCALARS)]}, {"$gt": value}, {"$lte": value}, {"$ne": value}]
    )
    return {rng.choice(PATHS): operand}


def test_a_filter_gives_the_same_with_and_without_the_prefilter() -> None:
    rng = random.Random(5)
    dialect, entries = DIALECTS["6.0.5"], []
    for number in range(300):
        document: dict[str, Any] = {"_id": number if rng.random() < 0.5 else rng.choice(SCALARS[:10])}
        if rng.random() < 0.8:
            document["n"] = rng.choice(SCALARS)
        if rng.random() < 0.5:
            document["d"] = rng.choice([{"n": rng.choice(SCALARS)}, [{"n": rng.choice(SCALARS)}, 1], 3])
        entries.append(entry(1, "i", "shop.orders", document, o2={"_id": document["_id"]}))
    passed = prefilters = 0
    for _ in range(150):
        stages = [{"$match": random_filter(rng)}]
        prefilters += prefilter_of(stages) is not None
        passed += len(same(entries, dialect, {}, stages)[0])
    assert passed > 1000
    assert prefilters > 30


@pytest.mark.parametrize(
    "query",
    [
        {"fullDocument.n": None},
        {"fullDocument.n": float("nan")},
        {"fullDocument.n": 2**60},
        {"fullDocument.n": {"$exists": True}},
        {"fullDocument.n": {"$in": [1, Regex("a")]}},
        {"fullDocument.0": 1},
        {"updateDescription.updatedFields.n": 1},
        {"$or": [{"fullDocument.n": 1}]},
        {},
    ],
)
def test_what_bytes_cannot_tell_has_no_prefilter(query: dict[str, Any]) -> None:
    assert prefilter_of([{"$match": query}]) is None
    assert prefilter_of([]) is None
    assert prefilter_of([{"$project": {"fullDocument.n": 1}}]) is None


def test_a_prefilter_looks_at_names_and_values() -> None:
    prefilter = prefilter_of([{"$match": {"fullDocument.n": 1}}])
    assert prefilter is not None
    engine = tailrace_kernel.Engine(
        version=1, has_wall_time=True, shows_uuid=False, shows_migrations=False, shows_raw_updates=False,
        disambiguates=False, logs_keys=True, declined_until=0, prefilter=(prefilter.name, list(prefilter.values)),
    )  # fmt: skip
    engine.learn_namespace(b"shop.orders", True, 15, b"\x03ns\0\x05\0\0\0\0")

    def passes(document: dict[str, Any]) -> bool:
        made = entry(1, "i", "shop.orders", {"_id": 7, **document}, o2={"_id": 7})
        columns, declined, _ = engine.events([made], 0)
        assert not declined
        return columns != NOTHING

    for value in (1, 1.0, Int64(1), Decimal128("5"), [7]):
        assert passes({"a": {"n": value}})
    for other in ({"n": 2}, {"nn": 1}, {"m": 1}, {"n": "1"}, {"n": None}, {}):
        assert not passes(other)


def test_a_namespace_that_is_no_text_is_an_error_of_ours() -> None:
    usual = entry(1, "i", "shop.orders", {"_id": 1}, o2={"_id": 1})
    damaged = usual.replace(b"shop.orders", b"\x80hop.orders")
    events, error = same([usual, damaged], DIALECTS["6.0.5"], {}, [{"$match": {"operationType": "insert"}}])
    assert len(events) == 1
    assert error is not None
    assert error[0] is OplogEntryInvalid


def test_columns_are_the_events_that_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_KERNEL", "on")
    log = [entry(n, "i", f"shop.c{n % 2}", {"_id": n}, o2={"_id": n}) for n in range(1, 8)]
    spec = parse_command({"aggregate": 1, "pipeline": [{"$changeStream": START}], "cursor": {}}, "shop", SIX)
    oplog = RecordedOplog(RecordedShard(log, [OplogEntry(one).time for one in log]))
    events = open_stream(spec, oplog, SIX, latest=1).next_batch()[2:]
    oplog.visible = (100 << 32) + 2
    stream = open_stream(spec, oplog, SIX, latest=1)
    assert len(stream.next_events()) == 2, "the namespaces are known from here on"
    oplog.visible = (100 << 32) + 7
    found = stream.next_events()
    assert isinstance(found, EventColumns)
    assert list(found) == events
    assert [found[n] for n in range(len(found))] == events
    assert (found[-1], found[2:5]) == (events[-1], events[2:5])
    assert found.raws == [event.raw for event in events]
    assert found.size == sum(len(event.raw) for event in events)
    assert found.namespaces == {b"shop.c0", b"shop.c1"}
    assert stream.post_batch_resume_token.to_bson() == events[-1].token


@pytest.mark.parametrize("size", [1, 3, 6, 7, 8])
def test_batches_of_columns_have_the_size_that_was_asked_for(size: int) -> None:
    log = [entry(n, "i", "shop.orders", {"_id": n}, o2={"_id": n}) for n in range(1, 8)]
    spec = parse_command({"aggregate": 1, "pipeline": [{"$changeStream": START}], "cursor": {}}, "shop", SIX)
    stream = open_stream(spec, RecordedOplog(RecordedShard(log, [OplogEntry(e).time for e in log])), SIX, latest=1)
    given = []
    while batch := stream.next_events(size):
        assert len(batch) <= size
        given += [event.cluster_time & 0xFF for event in batch]
        assert stream.post_batch_resume_token.to_bson() == batch[-1].token
    assert given == list(range(1, 8))
