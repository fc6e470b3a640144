"""A client's command, parsed once and strictly.

A document may name a field twice, and two readers may then see two different commands: one takes the first, the other
the last. So every command is read here and nowhere else. A field that stands twice is refused, as mongod does, and
what is authorised upstream and what is executed are both taken from the same `Command`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from tailrace import raw, server_codes
from tailrace.engine.dialect import Dialect
from tailrace.errors import StreamRefused
from tailrace.gateway.wire import MORE_TO_COME, Message
from tailrace.raw.bson_types import type_name

API: Final = (b"apiVersion", b"apiStrict", b"apiDeprecationErrors")
MAX_FIELDS: Final = 256
"""No command of any server has as many; reading more would let one client hold up the others."""
MOST_READ_HERE: Final = 512 * 1024
"""Bytes of a command that is decoded in some milliseconds; those of drivers are far below."""
MOST_SERVED_HERE: Final = 32 * 1024
"""Bytes of a command whose change stream the engine serves: its stages are compiled in some hundred milliseconds."""
_STILL_QUERIES: Final = frozenset(
    {"hello", "isMaster", "ismaster", "buildInfo", "buildinfo", "authenticate", "saslStart", "saslContinue", "_isSelf"}
)
"""What servers since 6.0 still answer when it comes as a legacy query."""
_UPGRADE: Final = (
    "The client driver may require an upgrade. "
    "For more details see https://dochub.mongodb.org/core/legacy-opcode-removal"
)


class Command:
    """One command: its name, its database and its fields, all from the same bytes."""

    def __init__(self, message: Message, name: str, database: str, spans: Mapping[bytes, raw.Span]) -> None:
        self.message = message
        self.name = name
        self.database = database
        self.spans = spans
        """Where in the body each field stands."""

    def field(self, name: bytes) -> raw.Value | None:
        """Give a field's value, as its bytes."""
        span = self.spans.get(name)
        return None if span is None else raw.Value(span[0], self.message.body[span[1] : span[2]])

    @cached_property
    def api(self) -> str:
        """The API version that it was sent with, and what goes with it, as a server writes it in its messages."""
        given = {name.decode(): found for name in API if (found := self.field(name)) is not None}
        shown = [f"{name}: {json.dumps(raw.to_python(*found), default=str)}" for name, found in given.items()]
        return f"{{ {', '.join(shown)} }}" if shown else "{}"

    def with_an_answer(self) -> Command:
        """Give the same command so that the upstream answers it: a client that wants no answer keeps none from us."""
        message = replace(self.message, flags=self.message.flags & ~MORE_TO_COME)
        return Command(message, self.name, self.database, self.spans)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The command as Python values, decoded when it is first looked at."""
        decoded: dict[str, Any] = raw.to_python(raw.DOCUMENT, self.message.body)
        return decoded

    @classmethod
    def parse(cls, message: Message, dialect: Dialect) -> Command:
        """Read a command, or refuse it as the server does.

        Seen on 4.2.6 and 6.0.5: a field that stands twice is 40413 (whichever it is), a missing `$db` 40571, one that
        is no string 13111, and a `$db` in a legacy query 40621; two bodies are 40430, and none is 40587. The connection
        stays open after each.
        """
        if message.refused is not None:
            raise StreamRefused(message.refused[0], server_code=message.refused[1])
        if message.legacy_database is not None and not dialect.since(7, 0):
            message = message.with_body(_unwrapped(message.body))
        fields: dict[bytes, raw.Span] = {}
        for kind, found, begin, end in raw.elements(message.body):
            name = bytes(found)  # a large body is a bytearray, and so are its parts
            if name in fields:
                raise _duplicate(name, dialect)
            fields[name] = kind, begin, end
            if len(fields) > MAX_FIELDS:
                raise StreamRefused(
                    f"a command cannot have more than {MAX_FIELDS} fields", server_code=server_codes.FAILED_TO_PARSE
                )
        database = message.legacy_database
        command = next(iter(fields), b"").decode("utf-8", "replace")
        if database is not None:
            if dialect.since(6, 0) and command not in _STILL_QUERIES:
                raise StreamRefused(f"Unsupported OP_QUERY command: {command or '$db'}. {_UPGRADE}", server_code=352)
            if b"$db" in fields:
                raise StreamRefused("$db is not allowed in OP_QUERY requests", server_code=40621)
            message = message.as_modern()
        elif b"$db" in fields:
            database = _database(message.body, fields[b"$db"])
        else:
            raise StreamRefused("OP_MSG requests require a $db argument", server_code=40571)
        return cls(message, command, database, fields)


def unauthorized(message: str) -> StreamRefused:
    """Give the refusal of what a client has no privilege for."""
    return StreamRefused(message, server_code=server_codes.UNAUTHORIZED)


def _duplicate(name: bytes, dialect: Dialect) -> StreamRefused:
    struct = "APIParametersFromClient" if dialect.since(5, 0) else "OperationSessionInfo"
    field = f"{struct}.{name.decode('utf-8', 'replace')}"
    return StreamRefused(f"BSON field '{field}' is a duplicate field", server_code=40413)


def _database(body: bytes, span: raw.Span) -> str:
    kind, begin, end = span
    if kind != raw.STRING:
        value = raw.to_python(kind, body[begin:end])
        raise StreamRefused(f"wrong type for field ($db) {type_name(value)} != string", server_code=13111)
    return str(raw.to_python(kind, body[begin:end]))


def _unwrapped(body: bytes) -> bytes:
    """Take a command out of the `$query` in which old drivers hand it over, beside a read preference.

    Seen on 4.2.6 to 6.0.27; 7.0.28 knows no such command.
    """
    first = next(raw.elements(body), None)
    if first is None or first[0] != raw.DOCUMENT or first[1] not in (b"$query", b"query"):
        return body
    command = body[first[2] : first[3]]
    preference = raw.field(body, b"$readPreference")
    if preference is None or raw.find(command, b"$readPreference") is not None:
        return command
    return raw.append(command, raw.element(preference.kind, b"$readPreference", preference.data))
