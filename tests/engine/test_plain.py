"""The shortcut for plain entries never gives another event than the general way, whatever the bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId, Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from bson_strategies import VALUES
from engine.small_oplog import SESSION, entry
from tailrace.engine import Dialect, Event, open_stream, parse_command
from tailrace.engine.plain import OneByOne
from tailrace.engine.recording import RecordedOplog, RecordedShard, read_recording
from tailrace.engine.sieve import sieve_of
from tailrace.engine.transform import Transform
from tailrace.errors import TailraceError
from tailrace.oplog.entry import OplogEntry

OPTIONS: list[dict[str, Any]] = [{}, {"showExpandedEvents": True}]
DIALECTS = {name: Dialect.of(name) for name in ("4.4.2", "5.0.4", "6.0.5", "6.0.27", "7.0.28")}


def events_of(
    entries: list[bytes],
    dialect: Dialect,
    options: Mapping[str, Any] = {},
    stages: list[dict[str, Any]] | None = None,
    *,
    v2: bool = False,
) -> list[Event]:
    stage = {"allChangesForCluster": True, "startAtOperationTime": Timestamp(1, 1), **options}
    command: dict[str, Any] = {"aggregate": 1, "pipeline": [{"$changeStream": stage}, *(stages or [])], "cursor": {}}
    if v2:
        command["$_generateV2ResumeTokens"] = True
    spec = parse_command(command, "admin", dialect)
    shard = RecordedShard(entries, [(1 << 32) + number for number in range(1, len(entries) + 1)])
    events = open_stream(spec, RecordedOplog(shard), dialect, latest=1).next_batch()
    return [event._replace(change=None) for event in events]


def general_events(patch: pytest.MonkeyPatch, *arguments: Any, **named: Any) -> list[Event]:
    with patch.context() as without_shortcut:
        without_shortcut.setattr(Transform, "recipe_book", lambda self, version: None)
        return events_of(*arguments, **named)


@pytest.mark.parametrize("recording", ["4.2.6", "5.0.4", "6.0.5", "7.0.28"])
@pytest.mark.parametrize("v2", [False, True])
def test_recorded_logs_give_the_same_both_ways(
    recordings: Path, monkeypatch: pytest.MonkeyPatch, recording: str, v2: bool
) -> None:
    read = read_recording([recordings / f"{recording}.jsonl.gz"])
    entries = [e for e in read.shards[""].entries if OplogEntry(e).op in (b"i", b"u", b"d")]
    for options in OPTIONS[: 2 if read.dialect.has_expanded_events else 1]:
        arguments: Any = (entries, read.dialect, options)
        if v2 and not recording.startswith("6"):
            continue  # there is nothing to choose: older servers have no such tokens, newer ones no others
        ours = events_of(*arguments, v2=v2)
        assert len(ours) > 400
        assert ours == general_events(monkeypatch, *arguments, v2=v2)


def plain_entries(_id: Any, document: dict[str, Any], *, retryable: bool, has_key: bool) -> list[bytes]:
    """An insert, two updates, a replacement and a delete, as servers log them, each twice."""
    session = {"lsid": SESSION, "txnNumber": Int64(5)} if retryable else {}
    before = {"prevOpTime": {"ts": Timestamp(99, 1), "t": Int64(1)}} if retryable else {}
    key = {"_id": _id}
    entries = []
    for number in range(2):
        for op, o, o2 in [
            ("i", {**key, **document}, key if has_key else None),
            ("u", {"$v": 2, "diff": {"u": document}}, key),
            ("u", {"$v": 2, "diff": {"d": {"gone": False}, "i": document, "snested": {"u": {"a": 1}}}}, key),
            ("u", {**key, **document}, key),
            ("d", key, None),
        ]:
            made = entry(number + 1, op, "shop.orders", o, o2=o2, stmtId=0 if retryable else None)
            entries.append(bson.encode({**session, **in_order(made), **before}))
    return entries


def in_order(made: bytes) -> dict[str, Any]:
    """The fields of an entry in the order in which servers write them."""
    fields = bson.decode(made)
    order = ["op", "ns", "ui", "o", "o2", "stmtId", "ts", "t", "v", "wall"]
    return {name: fields[name] for name in order if name in fields}


KEYS = st.one_of(
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=8),
    VALUES.filter(lambda value: not isinstance(value, (list, Regex))),
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c.d", "é"]), VALUES, max_size=3)


@given(KEYS, DOCUMENTS, st.booleans(), st.booleans(), st.sampled_from(sorted(DIALECTS)))
def test_any_document_gives_the_same_both_ways(
    key: Any, document: dict[str, Any], retryable: bool, has_key: bool, version: str
) -> None:
    entries = plain_entries(key, document, retryable=retryable, has_key=has_key)
    with pytest.MonkeyPatch.context() as patch:
        general = general_events(patch, entries, DIALECTS[version])
    assert events_of(entries, DIALECTS[version]) == general


@given(st.data())
def test_damaged_entries_never_give_another_event(data: st.DataObject) -> None:
    entries = plain_entries(ObjectId(bytes(12)), {"a": 1, "b": "x"}, retryable=data.draw(st.booleans()), has_key=True)
    damaged = bytearray(data.draw(st.sampled_from(entries)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    log, dialect = [*entries, bytes(damaged)], DIALECTS["6.0.5"]
    with pytest.MonkeyPatch.context() as patch:
        try:
            general = general_events(patch, log, dialect)
        except TailraceError:
            return  # the general way refuses it: nobody can say which event would be right
    assert events_of(log, dialect) == general


@pytest.mark.parametrize("extra", [{"fromMigrate": True}, {"preImageOpTime": {"ts": Timestamp(9, 1), "t": Int64(1)}}])
def test_entries_with_other_fields_are_not_plain(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_entries(1, {"a": 1}, retryable=False, has_key=True)
    special = [bson.encode({**bson.decode(e), **extra}) for e in plain]
    log, dialect = plain + special, DIALECTS["6.0.5"]
    assert events_of(log, dialect) == general_events(monkeypatch, log, dialect)


SCALARS: list[Any] = [0, 1, -1, 0.0, -0.0, 1.5, Int64(1), Decimal128("1.0"), Decimal128("0"), "x", "", True, None]
SCALARS += [ObjectId(bytes(12)), bson.datetime.datetime(2020, 1, 1), [1, "x"], [], {"n": 1}, [{"n": 0}]]
PATHS = ["fullDocument.n", "fullDocument.d.n", "documentKey._id", "fullDocument.n.0", "operationType", "fullDocument"]


def random_filter(rng: random.Random) -> dict[str, Any]:
    value = rng.choice(SCALARS)
    operand = rng.choice(
        [value, {"$eq": value}, {"$in": [value, rng.choice(SCALARS)]}, {"$gt": value}, {"$lte": value}, {"$ne": value}]
    )
    return {rng.choice(PATHS): operand}


def test_a_filter_gives_the_same_with_and_without_the_sieve(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    entries = []
    for number in range(300):
        document: dict[str, Any] = {"_id": number if rng.random() < 0.5 else rng.choice(SCALARS[:10])}
        if rng.random() < 0.8:
            document["n"] = rng.choice(SCALARS)
        if rng.random() < 0.5:
            document["d"] = rng.choice([{"n": rng.choice(SCALARS)}, [{"n": rng.choice(SCALARS)}, 1], 3])
        made = entry(1, "i", "shop.orders", document, o2={"_id": document["_id"]})
        entries.append(bson.encode(in_order(made)))
    dialect, passed, sieves = DIALECTS["6.0.5"], 0, 0
    for _ in range(150):
        stages = [{"$match": random_filter(rng)}]
        sieves += sieve_of(stages) is not None
        ours = events_of(entries, dialect, {}, stages)
        assert ours == general_events(monkeypatch, entries, dialect, {}, stages), stages
        passed += len(ours)
    assert passed > 1000
    assert sieves > 30


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
def test_what_bytes_cannot_tell_has_no_sieve(query: dict[str, Any]) -> None:
    assert sieve_of([{"$match": query}]) is None
    assert sieve_of([]) is None
    assert sieve_of([{"$project": {"fullDocument.n": 1}}]) is None


def test_a_sieve_looks_at_names_and_values() -> None:
    sieve = sieve_of([{"$match": {"fullDocument.n": 1}}])
    assert sieve is not None
    for value in (1, 1.0, Int64(1), Decimal128("5"), [7]):
        assert sieve(bson.encode({"a": {"n": value}}), 0)
    for other in ({"n": 2}, {"nn": 1}, {"m": 1}, {"n": "1"}, {"n": None}, {}):
        assert not sieve(bson.encode(other), 0)


@pytest.mark.parametrize("retryable", [False, True])
@pytest.mark.parametrize("key", [ObjectId(bytes(12)), 7])
def test_only_the_first_of_a_kind_takes_the_general_way(
    monkeypatch: pytest.MonkeyPatch, key: Any, retryable: bool
) -> None:
    general = []
    original = OneByOne.__call__

    def spy(self: OneByOne, entry: bytes) -> Any:
        general.append(entry)
        return original(self, entry)

    monkeypatch.setattr(OneByOne, "__call__", spy)
    entries = plain_entries(key, {"a": 1}, retryable=retryable, has_key=True)
    events_of(entries, DIALECTS["6.0.5"])
    # The first insert, update and delete, and both replacements, which only a look inside tells from updates.
    assert general == [entries[number] for number in (0, 1, 3, 4, 8)]
