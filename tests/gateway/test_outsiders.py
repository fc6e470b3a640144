"""What an outsider tries, at a server with authentication and at a gateway before it: both answer alike.

Each attempt is made by `ben`, who may read `pub` and nothing else, against a cursor and a session of `ann`, and with
messages that no driver sends. What counts is that the same is refused, with the same code. `make outsiders` tries all
versions of the server.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from typing import Any, Final, TypeAlias
from uuid import uuid4

import bson
import pytest
from bson import Binary, Int64
from pymongo import MongoClient

from gateway.running_gateway import RunningGateway
from gateway.wire_client import OP_MSG, WireClient, element
from tailrace import raw
from tailrace.gateway.wire import OP_COMPRESSED
from tailrace.stand import ReplicaSet

Document: TypeAlias = dict[str, Any]
Answer: TypeAlias = Document | None
HUNG_UP: Final = None
STREAM: Final = [{"$changeStream": {}}]
SESSION: Final = Binary(b"0123456789abcdef", 4)
ANN: Final = sha256(b"ann@admin").digest()


class Attempt:
    """One try: on a connection of its own, with another one of `ann`'s beside it."""

    def __init__(self, port: int, *, logs_in: bool = True) -> None:
        self.port = port
        self.ann = WireClient(port)
        self.client = WireClient(port)
        self._logs_in = logs_in
        if logs_in:
            self.ann.authenticate("ann", "secret")

    def close(self) -> None:
        self.ann.socket.close()
        self.client.socket.close()

    def login(self) -> None:
        if self._logs_in:
            self.client.authenticate("ben", "secret")

    def anns_cursor(self, **options: Any) -> Int64:
        opened = self.ann.command(watch("pub", **options))
        assert opened["ok"] == 1, opened
        return Int64(opened["cursor"]["id"])

    def sections(self, *sections: bytes, flags: int = 0) -> Answer:
        self.client.send_frame(struct.pack("<I", flags) + b"".join(sections))
        return self.client.reply()


def watch(database: str, collection: Any = "c", pipeline: Any = STREAM, **options: Any) -> Document:
    return {"aggregate": collection, "pipeline": pipeline, "cursor": {}, **options, "$db": database}


def body(document: Document) -> bytes:
    return b"\x00" + bson.encode(document)


def sequence(name: str, *documents: Document) -> bytes:
    content = name.encode() + b"\x00" + b"".join(map(bson.encode, documents))
    return b"\x01" + struct.pack("<i", 4 + len(content)) + content


def array(*named: tuple[str, Any]) -> bytes:
    """An array whose elements have any names."""
    return raw.document(*(element(name, value) for name, value in named))


def twice(*fields: tuple[str, Any]) -> bytes:
    return raw.document(*(element(name, value) for name, value in fields))


def _command(document: Document) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        attempt.login()
        return attempt.client.command(document)

    return run


def _raw_field(name: str, kind: int, value: bytes, **others: Any) -> Callable[[Attempt], Answer]:
    """A change stream of which one field is given as bytes."""

    def run(attempt: Attempt) -> Answer:
        attempt.login()
        command = watch("pub") | others
        elements = [
            raw.element(kind, name.encode(), value) if each == name else element(each, command[each])
            for each in command
        ]
        return attempt.client.fields(*elements)

    return run


def _pipeline(*stages: tuple[str, bytes]) -> Callable[[Attempt], Answer]:
    """A pipeline of stages that are given as bytes, with any names in the array."""
    value = raw.document(*(raw.element(raw.DOCUMENT, name.encode(), stage) for name, stage in stages))
    return _raw_field("pipeline", raw.ARRAY, value)


def _stage(*options: tuple[str, Any]) -> bytes:
    return raw.document(raw.element(raw.DOCUMENT, b"$changeStream", twice(*options)))


# --- nested fields that stand twice, and arrays whose names lie

NESTED: dict[str, Callable[[Attempt], Answer]] = {
    "two change streams in a stage": _pipeline(
        ("0", raw.document(*(raw.element(raw.DOCUMENT, b"$changeStream", raw.EMPTY) for _ in range(2))))
    ),
    "a stage that is two": _pipeline(("0", twice(("$changeStream", {}), ("$match", {})))),
    "an option twice": _pipeline(("0", _stage(("fullDocument", "default"), ("fullDocument", "updateLookup")))),
    "the cluster twice": _pipeline(("0", _stage(("allChangesForCluster", False), ("allChangesForCluster", True)))),
    "two first stages": _pipeline(("0", _stage()), ("0", twice(("$match", {})))),
    "two first stages, the other way": _pipeline(("0", twice(("$match", {}))), ("0", _stage())),
    "a first stage by another name": _pipeline(("7", _stage()), ("0", twice(("$match", {})))),
    "a first stage that is not the first": _pipeline(("1", twice(("$match", {}))), ("0", _stage())),
    "a batch size twice": _raw_field("cursor", raw.DOCUMENT, twice(("batchSize", 0), ("batchSize", 7))),
    "a pipeline that is a document": _raw_field("pipeline", raw.DOCUMENT, array(("0", {"$changeStream": {}}))),
    "a session id twice": _raw_field(
        "lsid", raw.DOCUMENT, twice(("id", SESSION), ("id", Binary(bytes(16), 4))), lsid={}
    ),
    "a read concern twice": _raw_field(
        "readConcern", raw.DOCUMENT, twice(("level", "majority"), ("level", "local")), readConcern={}
    ),
}

# --- more than one's own


def _in_transaction(attempt: Attempt) -> Answer:
    attempt.login()
    session = {"id": Binary(uuid4().bytes, 4)}
    return attempt.client.command(
        watch("pub", lsid=session, txnNumber=Int64(1), startTransaction=True, autocommit=False)
    )


COMMANDS: dict[str, Callable[[Attempt], Answer]] = {
    "the whole cluster": _command(watch("admin", 1, [{"$changeStream": {"allChangesForCluster": True}}])),
    "the whole cluster, elsewhere": _command(watch("pub", 1, [{"$changeStream": {"allChangesForCluster": True}}])),
    "the cluster by a number": _command(watch("admin", 1, [{"$changeStream": {"allChangesForCluster": 1}}])),
    "the whole of admin": _command(watch("admin", 1)),
    "another database": _command(watch("secret")),
    "the oplog": _command(watch("local", "oplog.rs")),
    "a system collection": _command(watch("pub", "system.users")),
    "a lookup behind it": _command(
        watch("pub", pipeline=[*STREAM, {"$lookup": {"from": "x", "localField": "a", "foreignField": "b", "as": "c"}}])
    ),
    "a lookup elsewhere behind it": _command(
        watch(
            "pub", pipeline=[*STREAM, {"$lookup": {"from": {"db": "secret", "coll": "c"}, "pipeline": [], "as": "c"}}]
        )
    ),
    "a union behind it": _command(watch("pub", pipeline=[*STREAM, {"$unionWith": "x"}])),
    "a merge behind it": _command(watch("pub", pipeline=[*STREAM, {"$merge": "x"}])),
    "an out behind it": _command(watch("pub", pipeline=[*STREAM, {"$out": "x"}])),
    "inside of a facet": _command(watch("pub", pipeline=[{"$facet": {"a": STREAM}}])),
    "inside of a lookup": _command(watch("pub", pipeline=[{"$lookup": {"from": "x", "pipeline": STREAM, "as": "c"}}])),
    "inside of a union": _command(watch("pub", pipeline=[{"$unionWith": {"coll": "x", "pipeline": STREAM}}])),
    "second": _command(watch("pub", pipeline=[{"$match": {}}, *STREAM])),
    "system events": _command(watch("pub", pipeline=[{"$changeStream": {"showSystemEvents": True}}])),
    "migrations": _command(watch("pub", pipeline=[{"$changeStream": {"showMigrationEvents": True}}])),
    "from a mongos": _command(watch("pub", fromMongos=True)),
    "with needsMerge": _command(watch("pub", needsMerge=True)),
    "a name with a zero": _command(watch("pub", "c\x00d")),
    "a database with a zero": _command(watch("pub\x00secret")),
    "a database with a dot": _command(watch("pub.secret")),
    "no database": _command(watch("")),
    "in a transaction": _in_transaction,
    "explained": _command({"explain": watch("secret"), "$db": "secret"}),
    "the session of another": _command(watch("pub", lsid={"id": SESSION, "uid": ANN})),
    "the session of nobody": _command(watch("pub", lsid={"id": SESSION, "uid": bytes(32)})),
    "as somebody else": _command(
        watch("pub") | {"$audit": {"$impersonatedUser": {"user": "ann", "db": "admin"}, "$impersonatedRoles": []}}
    ),
    "an internal API": _command({"_getUserCacheGeneration": 1, "$db": "admin"}),
    "users": _command({"usersInfo": "ann", "$db": "admin"}),
    "making oneself root": _command({"grantRolesToUser": "ben", "roles": ["root"], "$db": "admin"}),
    "a fail point": _command({"configureFailPoint": "failCommand", "mode": "off", "$db": "admin"}),
    "all sessions": _command({"killAllSessions": [], "$db": "admin"}),
    "all sessions by a pattern": _command({"killAllSessionsByPattern": [{"uid": ANN}], "$db": "admin"}),
    "operations of others": _command({"currentOp": 1, "$all": True, "$db": "admin"}),
}

# --- the cursor of another


def _other_get_more(**changed: Any) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        cursor = attempt.anns_cursor(lsid={"id": SESSION})
        attempt.login()
        more = {"getMore": cursor, "collection": "c", "lsid": {"id": SESSION}, "$db": "pub", "maxTimeMS": 1}
        return attempt.client.command({name: value for name, value in (more | changed).items() if value is not None})

    return run


def _own_get_more(*sections: bytes, **changed: Any) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        attempt.login()
        cursor = Int64(attempt.client.command(watch("pub"))["cursor"]["id"])
        more = {"getMore": cursor, "collection": "c", "maxTimeMS": 1, "$db": "pub"}
        return attempt.sections(body(more | changed), *sections)

    return run


def _kill(*, twice: bool = False) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        cursor = attempt.anns_cursor()
        attempt.login()
        ids = [cursor, cursor] if twice else [Int64(12345), cursor]
        return attempt.client.command({"killCursors": "c", "cursors": ids, "$db": "pub"})

    return run


CURSORS: dict[str, Callable[[Attempt], Answer]] = {
    "in one's own session": _other_get_more(),
    "in the owner's session": _other_get_more(lsid={"id": SESSION, "uid": ANN}),
    "without a session": _other_get_more(lsid=None),
    "by another collection": _other_get_more(collection="d"),
    "by another database": _other_get_more(**{"$db": "secret"}),
    "by no collection": _other_get_more(collection=None),
    "one's own by another collection": _own_get_more(collection="d"),
    "one's own by another database": _own_get_more(**{"$db": "secret"}),
    "one's own with a sequence": _own_get_more(sequence("x", {"a": 1})),
    "one's own with a sequence of sizes": _own_get_more(sequence("batchSize", {"a": 1})),
    "one's own with the body's field in a sequence": _own_get_more(sequence("collection", {"a": 1})),
    "killed": _kill(),
    "killed twice": _kill(twice=True),
}

# --- sections


def _sections(*sections: bytes) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        attempt.login()
        return attempt.sections(*sections)

    return run


WITHOUT_PIPELINE = {name: value for name, value in watch("pub").items() if name != "pipeline"}
WITHOUT_DATABASE = {name: value for name, value in watch("pub").items() if name != "$db"}


def _packed(content: bytes, opcode: int, size: int | None = None) -> bytes:
    return struct.pack("<iiB", opcode, len(content) if size is None else size, 2) + zlib.compress(content)


def _compressed(content: bytes) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        attempt.login()
        attempt.client.send_frame(content, OP_COMPRESSED)
        return attempt.client.reply()

    return run


PLAIN = b"\x00" * 4 + body({"ping": 1, "$db": "admin"})
SECTIONS: dict[str, Callable[[Attempt], Answer]] = {
    "two bodies": _sections(body(watch("pub")), body(watch("secret"))),
    "no body": _sections(sequence("pipeline", *STREAM)),
    "the pipeline in a sequence": _sections(body(WITHOUT_PIPELINE), sequence("pipeline", *STREAM)),
    "another pipeline in a sequence": _sections(body(watch("pub")), sequence("pipeline", {"$match": {}})),
    "the pipeline before the body": _sections(sequence("pipeline", *STREAM), body(WITHOUT_PIPELINE)),
    "the pipeline twice in sequences": _sections(
        body(WITHOUT_PIPELINE), sequence("pipeline", *STREAM), sequence("pipeline", *STREAM)
    ),
    "a cursor in a sequence": _sections(body(watch("pub")), sequence("cursor", {"batchSize": 1})),
    "the database in a sequence": _sections(body(WITHOUT_DATABASE), sequence("$db", {"$db": "secret"})),
    "another database in a sequence": _sections(body(watch("pub")), sequence("$db", {"$db": "secret"})),
    "a sequence of nothing": _sections(body(watch("pub")), sequence("x")),
    "a dotted sequence": _sections(body(watch("pub")), sequence("cursor.batchSize", {"a": 1})),
    "killed cursors in a sequence": _sections(body({"killCursors": "c", "$db": "pub"}), sequence("cursors", {"a": 1})),
    "sessions in a sequence": _sections(
        body({"endSessions": [], "$db": "admin"}), sequence("endSessions", {"id": SESSION})
    ),
    "a compressed reply": _compressed(_packed(PLAIN, 1)),
}

# --- logging in


def _unknown(document: Document) -> Callable[[Attempt], Answer]:
    return lambda attempt: attempt.client.command(document)


FIRST: Final = b"n,,n=ben,r=abcdefghijklmnop"
SASL_START: Final = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": FIRST, "$db": "admin"}


def _continued(document: Document, *, first: Document = SASL_START) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        attempt.client.command(first)
        return attempt.client.command(document)

    return run


def _after_login(*documents: Document) -> Callable[[Attempt], Answer]:
    def run(attempt: Attempt) -> Answer:
        attempt.login()
        for document in documents[:-1]:
            attempt.client.command(document)
        return attempt.client.command(documents[-1])

    return run


def _hello(**options: Any) -> Document:
    return {"hello": 1, **options, "$db": "admin"}


def _speculative(**options: Any) -> Document:
    return _hello(
        speculativeAuthenticate={name: value for name, value in (SASL_START | options).items() if name != "$db"}
    )


LOGOUT: Final = {"logout": 1, "$db": "admin"}
AUTHENTICATE: Final = {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=x", "$db": "$external"}
LOGINS: dict[str, Callable[[Attempt], Answer]] = {
    "watching without one": _unknown(watch("pub")),
    "a getMore without one": _unknown({"getMore": Int64(1), "collection": "c", "$db": "pub"}),
    "killing without one": _unknown({"killCursors": "c", "cursors": [Int64(1)], "$db": "pub"}),
    "ending sessions without one": _unknown({"endSessions": [{"id": SESSION}], "$db": "admin"}),
    "a conversation that is not begun": _unknown(
        {"saslContinue": 1, "conversationId": 1, "payload": b"", "$db": "admin"}
    ),
    "another conversation": _continued({"saslContinue": 1, "conversationId": 2, "payload": b"x", "$db": "admin"}),
    "a conversation of another database": _continued(
        {"saslContinue": 1, "conversationId": 1, "payload": b"c=biws,r=x,p=AAAA", "$db": "pub"}
    ),
    "an end without a proof": _continued({"saslContinue": 1, "conversationId": 1, "payload": b"", "$db": "admin"}),
    "watching in the middle": _continued(watch("pub")),
    "two beginnings": _continued(SASL_START),
    "an external user by a password": _unknown(SASL_START | {"$db": "$external"}),
    "an unknown mechanism": _unknown(SASL_START | {"mechanism": "GSSAPI", "$db": "$external"}),
    "a plain password": _unknown(
        SASL_START | {"mechanism": "PLAIN", "payload": b"\x00ben\x00secret", "$db": "$external"}
    ),
    "a mechanism in small letters": _unknown(SASL_START | {"mechanism": "scram-sha-256"}),
    "a mechanism that is no text": _unknown(SASL_START | {"mechanism": ["SCRAM-SHA-256"]}),
    "a conversation after the login": _after_login(
        {"saslContinue": 1, "conversationId": 1, "payload": b"", "$db": "admin"}
    ),
    "a second login": _after_login(SASL_START),
    "watching after a logout": _after_login(LOGOUT, watch("pub")),
    "a logout elsewhere, and watching": _after_login(LOGOUT | {"$db": "pub"}, watch("pub", collection=7)),
    "a logout twice": _after_login(LOGOUT, LOGOUT),
    "speculation about nothing": _unknown(_hello(speculativeAuthenticate={})),
    "speculation that is no document": _unknown(_hello(speculativeAuthenticate=1)),
    "speculation with another command": _unknown(_hello(speculativeAuthenticate={"ping": 1})),
    "speculation with an unknown mechanism": _unknown(_speculative(mechanism="NONE", db="admin")),
    "speculation and watching": _continued(watch("pub"), first=_speculative(db="admin")),
    "speculation after a login": _after_login(_speculative(db="admin"), watch("pub", collection=7)),
    "speculation as another database": _continued(watch("pub"), first=_speculative(db="$external")),
    "mechanisms of nobody": _unknown(_hello(saslSupportedMechs="admin.nobody")),
    "mechanisms of a number": _unknown(_hello(saslSupportedMechs=1)),
}


ATTEMPTS: Final = {
    f"{group}: {name}": attempt
    for group, attempts in {
        "nested": NESTED, "command": COMMANDS, "cursor": CURSORS, "section": SECTIONS, "login": LOGINS,
    }.items()
    for name, attempt in attempts.items()
}  # fmt: skip


def answer_of(port: int, attempt: Callable[[Attempt], Answer], *, logs_in: bool = True) -> Any:
    """The code of the answer, and what of it does not depend on who gave it."""
    with closing(Attempt(port, logs_in=logs_in)) as made:
        try:
            found = attempt(made)
        except ConnectionResetError:
            return HUNG_UP
        assert made.ann.command({"ping": 1, "$db": "admin"})["ok"] == 1
    assert found is not None
    return found["ok"], found.get("code"), "speculativeAuthenticate" in found


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_both_answer_alike(
    each_secured: ReplicaSet, before_each: RunningGateway, attempt: Callable[[Attempt], Answer]
) -> None:
    assert answer_of(before_each.port, attempt) == answer_of(each_secured.primary.port, attempt)
    assert before_each.gateway.counts.failed == 0


@pytest.mark.long
@pytest.mark.parametrize("logs_in", [False, True])
@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_both_answer_alike_where_nobody_has_to_log_in(
    each_open: ReplicaSet, before_open: RunningGateway, attempt: Callable[[Attempt], Answer], logs_in: bool
) -> None:
    """`make outsiders`; users may log in all the same."""
    through = answer_of(before_open.port, attempt, logs_in=logs_in)
    assert through == answer_of(each_open.primary.port, attempt, logs_in=logs_in)
    assert before_open.gateway.counts.failed == 0


def test_a_role_that_is_taken_and_given_counts_at_once(each_secured: ReplicaSet, before_each: RunningGateway) -> None:
    with each_secured.client() as root, closing(Attempt(before_each.port)) as attempt:
        each_secured.add_user("cyd", "secret", [])
        attempt.client.authenticate("cyd", "secret")
        assert attempt.client.command(watch("pub"))["code"] == 13
        root.admin.command({"grantRolesToUser": "cyd", "roles": [{"role": "read", "db": "pub"}]})
        cursor = attempt.client.command(watch("pub"))["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "c", "maxTimeMS": 1, "$db": "pub"}
        assert [attempt.client.command(more)["ok"] for _ in range(2)] == [1, 1]
        root.admin.command({"revokeRolesFromUser": "cyd", "roles": [{"role": "read", "db": "pub"}]})
        assert attempt.client.command(more)["code"] == 13
        root.admin.command({"grantRolesToUser": "cyd", "roles": [{"role": "read", "db": "pub"}]})
        assert attempt.client.command(more)["code"] == 43  # it was closed when it was refused
        root.admin.command({"dropUser": "cyd"})


def test_an_external_certificate_is_refused_by_name(before_each: RunningGateway) -> None:
    """Here the gateway differs on purpose: it has no certificate of the client's to show."""
    with closing(Attempt(before_each.port)) as attempt:
        assert attempt.client.command(AUTHENTICATE)["code"] == 334
        assert "X509" in attempt.client.command(AUTHENTICATE | {"$db": "admin"})["errmsg"]


@pytest.mark.parametrize(
    "content",
    [_packed(_packed(PLAIN, OP_MSG), OP_COMPRESSED), _packed(PLAIN, OP_MSG, len(PLAIN) + 1)],
    ids=["compressed inside of compressed", "compressed to another size"],
)
def test_packed_frames_that_lie_end_their_connection(before_each: RunningGateway, content: bytes) -> None:
    """Here too: 6.0.5 leaves the one unanswered, and takes the other as far as it goes."""
    assert answer_of(before_each.port, _compressed(content)) is HUNG_UP


def test_a_driver_that_logs_in_as_two_users_in_turn_sees_each_its_own(
    each_secured: ReplicaSet, before_each: RunningGateway
) -> None:
    with closing(Attempt(before_each.port)) as attempt:
        attempt.client.authenticate("ann", "secret")
        cursor = Int64(attempt.client.command(watch("pub"))["cursor"]["id"])
        more = {"getMore": cursor, "collection": "c", "maxTimeMS": 1, "$db": "pub"}
        assert attempt.client.command(more)["ok"] == 1
        attempt.client.command(LOGOUT)
        attempt.client.authenticate("ben", "secret")
        assert attempt.client.command(more)["code"] == 13
        attempt.client.command(LOGOUT)
        attempt.client.authenticate("ann", "secret")
        assert attempt.client.command(more)["ok"] == 1
    with MongoClient[Document](f"mongodb://ann:secret@127.0.0.1:{before_each.port}/") as driver:
        assert driver.pub.command("ping")["ok"] == 1
