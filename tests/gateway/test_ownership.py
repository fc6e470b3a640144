"""Cursors and sessions belong to the user who made them: others are answered as by the server, and change nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any

import pytest
from bson import Binary, Int64

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.stand import ReplicaSet

Document = dict[str, Any]
Clients = dict[str, WireClient]
ANN = Binary(sha256(b"ann@admin").digest(), 0)


def new_session() -> Document:
    return {"id": Binary(uuid.uuid4().bytes, 4)}


def open_stream(client: WireClient, session: Document | None = None) -> Int64:
    told = client.command(
        {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "pub"}
        | ({} if session is None else {"lsid": session})
    )
    assert told["ok"] == 1, told
    return Int64(told["cursor"]["id"])


def read_on(client: WireClient, cursor: Int64, session: Document | None = None) -> Document:
    """What a getMore says beside its batch, without the cursor's id."""
    command = {"getMore": cursor, "collection": "c", "maxTimeMS": 1, "$db": "pub"}
    told = client.command(command | ({} if session is None else {"lsid": session}))
    told.pop("cursor", None)
    return {name: str(value).replace(str(cursor), "ID") for name, value in told.items()}


@contextmanager
def connected(*ports: int) -> Iterator[tuple[Clients, ...]]:
    """The same clients at each: ann, ben, host, and one who has not authenticated."""
    with ExitStack() as opened:
        sides = []
        for port in ports:
            clients = {name: opened.enter_context(WireClient(port)) for name in ("ann", "ben", "host", "nobody")}
            for name in ("ann", "ben", "host"):
                clients[name].authenticate(name, "secret")
            sides.append(clients)
        yield tuple(sides)


@pytest.fixture
def both(secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]) -> Iterator[tuple[Clients, ...]]:
    """At the gateway and at the server."""
    with connected(start_gateway(secured.uri).port, secured.primary.port) as sides:
        yield sides


@pytest.fixture
def both_open(each_open: ReplicaSet, before_open: RunningGateway) -> Iterator[tuple[Clients, ...]]:
    """The same where nobody has to log in."""
    with connected(before_open.port, each_open.primary.port) as sides:
        yield sides


def test_nobody_kills_the_cursor_of_another(both: tuple[Clients, ...]) -> None:
    told = []
    for clients in both:
        cursor = open_stream(clients["ann"])
        kill = {"killCursors": "c", "cursors": [Int64(99), cursor], "$db": "pub"}
        answers = [clients[name].command(kill) for name in ("ben", "nobody")]
        assert [answer["code"] for answer in answers] == [13, 13]
        answers.append(read_on(clients["ann"], cursor))
        assert answers[-1] == {"ok": "1.0"}
        answers.append(clients["host"].command(kill))
        assert answers[-1]["ok"] == 1
        answers.append(read_on(clients["ann"], cursor))
        told.append([str(answer).replace(str(cursor), "ID") for answer in answers])
    assert told[0] == told[1]


def test_a_user_kills_its_own_cursors_beside_those_of_the_server(both: tuple[Clients, ...]) -> None:
    told = []
    for clients in both:
        ann = clients["ann"]
        streams = [open_stream(ann), open_stream(ann)]
        find = ann.command({"listCollections": 1, "cursor": {"batchSize": 0}, "$db": "pub"})["cursor"]["id"]
        ids = [streams[0], Int64(99), Int64(find), streams[1], streams[0]]
        answer = ann.command({"killCursors": "c", "cursors": ids, "$db": "pub"})
        named = {str(each): name for each, name in zip(ids, ["s0", "none", "find", "s1", "s0"], strict=True)}
        told.append({name: [named[str(each)] for each in ids] for name, ids in answer.items() if isinstance(ids, list)})
    assert told[0] == told[1]
    assert told[0]["cursorsKilled"] == ["s0", "find", "s1"]


SESSIONS: dict[str, Callable[[Document], Document]] = {
    "endSessions": lambda session: {"endSessions": [session]},
    "endSessions with a digest": lambda session: {"endSessions": [{**session, "uid": ANN}]},
    "endSessions of something else": lambda session: {"endSessions": [session, 5]},
    "endSessions without a list": lambda _: {"endSessions": 5},
    "killSessions": lambda session: {"killSessions": [session]},
    "killSessions with a digest": lambda session: {"killSessions": [{**session, "uid": ANN}]},
    "killSessions of one's own": lambda _: {"killSessions": []},
    "killAllSessions": lambda _: {"killAllSessions": []},
    "killAllSessions of ann": lambda _: {"killAllSessions": [{"user": "ann", "db": "admin"}]},
    "killAllSessions of ben": lambda _: {"killAllSessions": [{"user": "ben", "db": "admin"}]},
    "killAllSessionsByPattern": lambda _: {"killAllSessionsByPattern": []},
    "killAllSessionsByPattern uid": lambda _: {"killAllSessionsByPattern": [{"uid": ANN}]},
    "killAllSessionsByPattern lsid": lambda s: {"killAllSessionsByPattern": [{"lsid": {**s, "uid": ANN}}]},
}


def test_sessions_are_ended_by_those_who_may(both: tuple[Clients, ...]) -> None:
    """After each command of each client: its answer, and whether ann's streams with and without a session go on.

    The server closes the cursors of an ended session when it next looks, within minutes; the gateway at once.
    """
    for label, made in SESSIONS.items():
        for who in ("nobody", "ben", "host", "ann"):
            told = [_after(made, who, clients) for clients in both]
            if who == "ann" and label in ("endSessions", "endSessions with a digest"):
                assert told[0][1]["code"] == "43"
                assert told[0][0] == told[1][0]
            else:
                assert told[0] == told[1], (label, who)


def _after(
    made: Callable[[Document], Document], who: str, clients: Clients, then: Document | None = None
) -> tuple[Any, ...]:
    session = new_session()
    streams = [(open_stream(clients["ann"], session), session), (open_stream(clients["ann"]), None)]
    answer = clients[who].command({**made(session), "$db": "admin"})
    if then is not None:
        assert clients["nobody"].command(then)["ok"] == 1
    text = str(answer).replace(str(session["id"].as_uuid()), "SESSION")
    return text, *(read_on(clients["ann"], *stream) for stream in streams)


@pytest.mark.long
def test_sessions_are_ended_by_all_where_nobody_has_to_log_in(both_open: tuple[Clients, ...]) -> None:
    """`make outsiders`; all who log in all the same share their sessions too. The server is told to look at once."""
    for label, made in SESSIONS.items():
        for who in ("nobody", "ann"):
            look = {"refreshLogicalSessionCacheNow": 1, "$db": "admin"}
            told = [_after(made, who, clients, then=look) for clients in both_open]
            assert told[0] == told[1], (label, who)
