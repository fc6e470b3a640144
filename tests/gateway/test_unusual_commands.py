"""Handshakes, stages, sessions and cursors as no driver sends them, at a server and at a gateway before it.

The gateway answers many commands itself. Whatever is not as drivers send it, it leaves to the server to judge: so both
answer alike, on all versions (`make outsiders`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import pytest
from bson import Code, Decimal128, Int64, ObjectId, Regex, Timestamp

from gateway.running_gateway import RunningGateway
from gateway.test_outsiders import (
    LOGOUT,
    SASL_START,
    SESSION,
    STREAM,
    Answer,
    Attempt,
    Document,
    answer_of,
    body,
    sequence,
    watch,
)
from gateway.wire_client import WireClient, element
from tailrace.stand import ReplicaSet

Try = Callable[[Attempt], Answer]


def _by_anybody(*commands: Document) -> Try:
    """The answer to the last of some commands, without a login."""
    return lambda attempt: [attempt.client.command(each) for each in commands][-1]


def _by_ben(*commands: Document) -> Try:
    def run(attempt: Attempt) -> Answer:
        attempt.login()
        return _by_anybody(*commands)(attempt)

    return run


# --- handshakes

VERSION: Final = {"processId": ObjectId("0" * 24), "counter": Int64(0)}
CLIENT: Final = {"driver": {"name": "x", "version": "1"}, "os": {"type": "y"}}
HANDSHAKES: Final[dict[str, Document]] = {
    "a version without a time": {"topologyVersion": VERSION},
    "a time without a version": {"maxAwaitTimeMS": 5},
    "a time below 0": {"topologyVersion": VERSION, "maxAwaitTimeMS": -1},
    "a version that is no document": {"topologyVersion": "x", "maxAwaitTimeMS": 1},
    "an application with a long name": {"client": CLIENT | {"application": {"name": "x" * 129}}},
    "no driver": {"client": {}},
    "a driver without a version": {"client": CLIENT | {"driver": {"name": "x"}}},
    "a driver with a number for a name": {"client": CLIENT | {"driver": {"name": 1, "version": "1"}}},
    "no system": {"client": {"driver": CLIENT["driver"]}},
    "another API": {"apiVersion": "9"},
    "a strict API without a version": {"apiStrict": True},
    "an unknown read preference": {"$readPreference": {"mode": "x"}},
    "somebody else": {"$audit": {}},
    "a session that is none": {"lsid": 1},
    "an unknown field": {"x": 1},
    "a member of the cluster": {"internalClient": {"minWireVersion": 0, "maxWireVersion": 1}},
    "a cluster time that is none": {"$clusterTime": 1},
}


def _legacy(document: Document) -> Try:
    return lambda attempt: attempt.client.query("admin.$cmd", document)


HELLOS: Final[dict[str, Try]] = {
    **{name: _by_anybody({"isMaster": 1, **fields, "$db": "admin"}) for name, fields in HANDSHAKES.items()},
    "a client that presents itself twice": _by_anybody(*[{"isMaster": 1, "client": CLIENT, "$db": "admin"}] * 2),
    **{
        f"{command} in the database {name!r}": _by_anybody({command: 1, "$db": name})
        for command in ("hello", "isMaster")
        for name in ("", "pub", "pub.c", "pub ", "pub\0", "a" * 64)
    },
    "in a query": _legacy({"$query": {"isMaster": 1}, "$readPreference": {"mode": "primary"}}),
    "in an old query": _legacy({"query": {"isMaster": 1}}),
}

# --- stages

MATCHES: Final[list[Any]] = [
    {"$where": "true"}, {"$and": [{"$where": Code("true")}]}, {"a": {"$elemMatch": {"$where": "true"}}},
    {"$text": {"$search": "a"}}, {"a": {"$near": [0, 0]}}, {"$expr": {"$eq": ["$a", "$$USER_ROLES"]}},
    {"a": Regex("(" * 300 + "a" + ")" * 300)}, {"a": Regex("(")}, {"a": Regex("a", "xq")}, {"a": Regex("a" * 40_000)},
    {"a": {"$regex": "a\0b"}}, {"$sampleRate": 0.5}, {"$alwaysTrue": 1}, {"$atomic": 1}, {"a": {"$_internalExprEq": 1}},
]  # fmt: skip
PROJECTIONS: Final[list[Any]] = [
    {"$function": {"body": "function() { return 1 }", "args": [], "lang": "js"}}, {"$meta": "textScore"}, {"$rand": {}},
    {"$nope": 1}, {"$let": {"vars": {"ROOT": 1}, "in": 1}}, {"$convert": {"input": "x", "to": "zzz"}},
    {"$dateToString": {"date": "$$NOW", "format": "%" + "Y" * 10}},
]  # fmt: skip
ACCUMULATOR: Final = {
    "init": "function() {}", "accumulate": "function() {}", "accumulateArgs": [], "merge": "function() {}",
    "lang": "js",
}  # fmt: skip
STAGES: Final[list[Any]] = [
    *({"$match": each} for each in MATCHES),
    *({"$project": {"a": each}} for each in PROJECTIONS),
    {"$group": {"_id": None, "a": {"$accumulator": ACCUMULATOR}}},
    {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"x": {"$sum": "$a"}}}},
    {"$fill": {"output": {"a": {"value": 1}}}},
    {"$fill": {"sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}},
    {"$densify": {"field": "a", "range": {"step": 1, "bounds": "full"}}},
    {"$redact": "$$USER_ROLES"},
    {"$documents": [{"a": 1}]},
    {"$graphLookup": {"from": "c", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x"}},
    {"$merge": {"into": {"db": "secret", "coll": "x"}}},
    {"$out": {"db": "secret", "coll": "x"}},
    {"$_internalInhibitOptimization": {}},
    {"$_internalChangeStreamTransform": {}},
    {"$_internalChangeStreamOplogMatch": {}},
    {"$mergeCursors": {}},
    {"$project": {".".join("a" * 250): 1}},
]


def _nested(depth: int) -> Document:
    found: Document = {"a": 1}
    for _ in range(depth):
        found = {"$and": [found]}
    return found


PIPELINES: Final[dict[str, Try]] = {
    **{str(stage)[:60]: _by_ben(watch("pub", pipeline=[*STREAM, stage])) for stage in STAGES},
    "very deep": _by_ben(watch("pub", pipeline=[*STREAM, {"$match": _nested(80)}])),
    "very many stages": _by_ben(watch("pub", pipeline=[*STREAM, *[{"$match": {}}] * 1_001])),
    "explained": _by_ben(watch("secret", explain=True)),
    "the cluster with a collation": _by_ben(
        watch("admin", 1, [{"$changeStream": {"allChangesForCluster": True}}], collation={"locale": "fr"})
    ),
    "another database with variables": _by_ben(watch("secret", let={"a": 1})),
    "by a decimal": _by_ben(watch("pub", Decimal128("1"))),
    "before there was an oplog": _by_ben(
        watch("pub", pipeline=[{"$changeStream": {"startAtOperationTime": Timestamp(1, 1)}}])
    ),
}

# --- cursors and sessions


def _own(command: Callable[[Int64], Document], **options: Any) -> Try:
    """The answer to a command about a stream of one's own."""

    def run(attempt: Attempt) -> Answer:
        attempt.login()
        return attempt.client.command(command(Int64(attempt.client.command(watch("pub", **options))["cursor"]["id"])))

    return run


def _kill(**changed: Any) -> Try:
    return _own(lambda cursor: {"killCursors": "c", "cursors": [cursor], "$db": "pub"} | changed)


def _more(session: bytes | None, opened_in: bytes | None) -> Try:
    of = {} if opened_in is None else {"lsid": {"id": opened_in}}
    asked = {} if session is None else {"lsid": {"id": session}}
    return _own(lambda cursor: {"getMore": cursor, "collection": "c", "maxTimeMS": 1, "$db": "pub"} | asked, **of)


def _without_answer(command: Document) -> Try:
    """The answer to what comes behind a command that wants none."""

    def run(attempt: Attempt) -> Answer:
        attempt.login()
        attempt.client.send_frame(struct.pack("<I", 2) + body(command))
        return attempt.client.command(watch("pub", collection=7))

    return run


OTHER_SESSION: Final = type(SESSION)(bytes(16), 4)
CURSORS: Final[dict[str, Try]] = {
    "killed by a number": _kill(killCursors=1),
    "killed in no collection": _kill(killCursors=""),
    "killed with an unknown field": _kill(x=1),
    "killed with a read concern": _kill(readConcern={"level": "x"}),
    "killed in a transaction": _kill(lsid={"id": SESSION}, txnNumber=Int64(1), autocommit=False),
    "killed with another API": _kill(apiVersion="9"),
    "killed in a session that is none": _kill(lsid=1),
    "killed in a session": _kill(lsid={"id": SESSION}),
    "killed by another collection": _kill(killCursors="d"),
    "read in a session": _more(SESSION, None),
    "read without the session": _more(None, SESSION),
    "read in another session": _more(OTHER_SESSION, SESSION),
    **{
        f"{next(iter(command))} without an answer": _without_answer(command)
        for command in (
            watch("secret"), LOGOUT, SASL_START, {"isMaster": 1, "$db": "admin"}, {"ping": 1},
            {"killCursors": "c", "cursors": [Int64(1)], "$db": "pub"},
            {"getMore": Int64(9), "collection": "c", "$db": "pub"},
        )
    },
}  # fmt: skip
TRIES: Final = {
    f"{group}: {name}": each
    for group, tries in {"hello": HELLOS, "pipeline": PIPELINES, "cursor": CURSORS}.items()
    for name, each in tries.items()
}


@pytest.mark.parametrize("attempt", TRIES.values(), ids=TRIES)
def test_both_answer_alike(each_secured: ReplicaSet, before_each: RunningGateway, attempt: Try) -> None:
    assert answer_of(before_each.port, attempt) == answer_of(each_secured.primary.port, attempt)
    assert before_each.gateway.counts.failed == 0


@pytest.mark.long
@pytest.mark.parametrize("logs_in", [False, True])
@pytest.mark.parametrize("attempt", TRIES.values(), ids=TRIES)
def test_both_answer_alike_where_nobody_has_to_log_in(
    each_open: ReplicaSet, before_open: RunningGateway, attempt: Try, logs_in: bool
) -> None:
    """`make outsiders`; users may log in all the same."""
    through = answer_of(before_open.port, attempt, logs_in=logs_in)
    assert through == answer_of(each_open.primary.port, attempt, logs_in=logs_in)
    assert before_open.gateway.counts.failed == 0


FIELDS: Final[dict[str, Any]] = {
    "lsid": {"id": SESSION}, "collation": {"locale": "fr"}, "$readPreference": {"mode": "primary"}, "comment": "x",
    "maxTimeMS": 1, "let": {}, "readConcern": {"level": "majority"}, "$clusterTime": {}, "apiVersion": "1",
    "cursor": {},
    "pipeline": STREAM, "aggregate": "c", "$db": "pub", "explain": True,
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_both_refuse_a_field_that_stands_twice_or_beside_a_sequence(
    each_secured: ReplicaSet, before_each: RunningGateway, name: str
) -> None:
    """By which of its checks a server finds it differs from version to version."""
    asked = watch("pub") | {name: FIELDS[name]}
    for port in (before_each.port, each_secured.primary.port):
        with closing(Attempt(port)) as attempt:
            attempt.login()
            fields = [element(each, value) for each, value in asked.items()]
            assert attempt.client.fields(*fields, element(name, FIELDS[name]))["ok"] == 0
            answer = attempt.sections(body(asked), sequence(name, {"$changeStream": {}}))
            assert (answer or {"ok": 1})["ok"] == 0


def test_names_of_those_who_fail_to_log_in_are_short(before_each: RunningGateway) -> None:
    """They are logged, and ten thousand of them remembered: of each, a login may send 64 KB."""
    attempts = before_each.gateway.logins
    with WireClient(before_each.port) as client:
        payload = b"n,,n=" + b"a" * 50_000 + b",r=abcdefghijklmnop"
        assert client.command(SASL_START | {"payload": payload})["ok"] == 0
    remembered = [user for _, user in attempts._failures if user.startswith("aaaa")]
    assert [len(user) for user in remembered] == [200]
