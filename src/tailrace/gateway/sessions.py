"""Who may end a cursor: killCursors, and the commands that end sessions.

Cursors and sessions belong to the user who made them. Whether somebody may end another's is the upstream's to say: it
answers the command first, and only what it allowed is then done to the gateway's own cursors.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.gateway import replies
from tailrace.gateway.command import Command, unauthorized
from tailrace.gateway.cursors import Cursor

if TYPE_CHECKING:
    from tailrace.gateway.conversation import Conversation

_KILLED, _NOT_FOUND, _ALIVE, _UNKNOWN = "cursorsKilled", "cursorsNotFound", "cursorsAlive", "cursorsUnknown"
_OF_A_KILL: Final = {
    b"killCursors": raw.STRING, b"cursors": raw.ARRAY, b"$db": raw.STRING, b"lsid": raw.DOCUMENT,
    b"$clusterTime": raw.DOCUMENT,
}  # fmt: skip
"""The fields of a `killCursors` as drivers send it, by their types."""


@dataclass(frozen=True, slots=True)
class SessionId:
    """A logical session: its id counts only together with the user it belongs to."""

    user: bytes
    id: bytes

    @classmethod
    def of(cls, lsid: Any, users: frozenset[str]) -> SessionId | None:
        """Read an `lsid`; one without a user's digest is of who sent it."""
        if not isinstance(lsid, Mapping) or not isinstance(lsid.get("id"), bytes):
            return None
        user = lsid.get("uid")
        return cls(bytes(user) if isinstance(user, bytes) else user_digest(users), bytes(lsid["id"]))

    def shown(self, dialect: Dialect) -> str:
        """Write it as a server does in its messages; since 6.0 with the empty places of internal transactions."""
        text = f"{UUID(bytes=self.id)} - {b64encode(self.user).decode()}"
        return f"{text} -  - " if dialect.since(6, 0) else text


@lru_cache(maxsize=1024)
def user_digest(users: frozenset[str]) -> bytes:
    """Give what a server knows a session's user by; sessions are of one user, or of nobody."""
    return sha256(min(users, default="").encode()).digest()


class SessionCommands:
    """Answers one client's commands that end cursors and sessions."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._cursors = conversation.gateway.cursors
        self._streams = conversation.gateway.streams

    async def kill_cursors(self, asked: Command) -> bytes | None:
        """Close change streams; the ids of other cursors go on to the upstream.

        Seen on 4.2.6 and 6.0.5: one cursor of another user refuses the whole command, and none is killed.
        """
        ids = asked.fields.get("cursors")
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids) or asked.message.sequences:
            return await self._conversation.pass_on(asked)
        own = {each: cursor for each in ids if (cursor := self._cursors.get(each)) is not None}
        if not own:
            return await self._conversation.pass_on(asked)
        await self._check_may_kill(list(own.values()), asked)
        found: Mapping[str, Any] = {}
        if len(own) < len(set(ids)) or not _is_usual_kill(asked):
            reply = await self._conversation.pass_on(asked.with_an_answer())  # by who knows none of our own
            if reply is not None and not _is_ok(reply):
                return reply
            found = {} if reply is None else raw.to_python(raw.DOCUMENT, reply)
        for cursor in own.values():
            await self.close(cursor)
        return self._conversation.with_times(_killed(ids, set(own), found))

    async def _check_may_kill(self, cursors: list[Cursor], asked: Command) -> None:
        users = await self._conversation.users()
        if all(cursor.owner == users for cursor in cursors) or await self._conversation.login.may_kill_any_cursor():
            return
        ids = ", ".join(map(str, asked.fields["cursors"]))
        shown = f'{{ killCursors: "{asked.fields["killCursors"]}", cursors: [ {ids} ], $db: "{asked.database}" }}'
        raise unauthorized(f"not authorized on {asked.database} to execute command {shown}")

    async def end_sessions(self, asked: Command) -> bytes | None:
        """Let the upstream end sessions, and close the streams of those that it may end."""
        reply = await self._conversation.pass_on(asked.with_an_answer())
        if reply is None or not _is_ok(reply) or asked.message.sequences:
            return reply
        is_ended = _ended_by(asked.name, asked.fields[asked.name], await self._conversation.users())
        for cursor in self._cursors:
            if cursor.session is not None and is_ended(cursor.session):
                await self.close(cursor)
        return reply

    async def close(self, cursor: Cursor) -> None:
        """Forget a cursor; whoever reads from it closes its stream, for it may not be closed meanwhile."""
        self._cursors.remove(cursor)
        if not cursor.in_use:
            await self._streams.close(cursor.subscription)


def _ended_by(command: str, named: Any, users: frozenset[str]) -> Callable[[SessionId], bool]:
    """Give the test for sessions that a command ends, which the upstream has allowed.

    Without names `killSessions` ends all sessions of the user, and `killAllSessions` and `killAllSessionsByPattern`
    those of everybody. What is named is read once, however many sessions there are.
    """
    if not isinstance(named, list):
        return lambda _: False
    if command in ("killAllSessions", "killAllSessionsByPattern") and not named:
        return lambda _: True
    if command == "killAllSessions":
        digests = {user_digest(_user_in(each)) for each in named}
        return lambda session: session.user in digests
    if command == "killAllSessionsByPattern":
        return _fitting(named, users)
    if command == "killSessions" and not named:
        own = user_digest(users)
        return lambda session: session.user == own
    sessions = _sessions_in(named, users)
    return lambda session: session in sessions


def _sessions_in(named: list[Any], users: frozenset[str]) -> set[SessionId | None]:
    return {SessionId.of(each, users) for each in named}


def _user_in(named: Any) -> frozenset[str]:
    return frozenset({f"{named.get('user')}@{named.get('db')}"}) if isinstance(named, Mapping) else frozenset({"@"})


def _fitting(patterns: list[Any], users: frozenset[str]) -> Callable[[SessionId], bool]:
    """Give the test for sessions that fit one of some patterns: an `lsid`, a `uid`, or neither for all."""
    known = [each for each in patterns if isinstance(each, Mapping)]
    sessions = _sessions_in([each["lsid"] for each in known if "lsid" in each], users)
    others = [each for each in known if "lsid" not in each]
    digests = {bytes(each["uid"]) for each in others if isinstance(each.get("uid"), bytes)}
    is_all = any("uid" not in each for each in others)
    return lambda session: is_all or session in sessions or session.user in digests


def _is_usual_kill(asked: Command) -> bool:
    """Return whether there is nothing in a `killCursors` that only a server can judge."""
    if not asked.spans.keys() <= _OF_A_KILL.keys():
        return False
    return asked.fields["killCursors"] != "" and all(asked.spans[name][0] == _OF_A_KILL[name] for name in asked.spans)


def _is_ok(reply: bytes) -> bool:
    found = raw.find(reply, b"ok")
    return found is not None and raw.number_at(reply, found[0], found[1]) == 1


def _killed(ids: list[int], own: set[int], found: Mapping[str, Any]) -> bytes:
    """Give one reply for the gateway's cursors and the upstream's, in the order of the ids."""
    lists: dict[str, list[int]] = {_KILLED: [], _NOT_FOUND: [], _ALIVE: [], _UNKNOWN: []}
    kinds = {each: name for name in lists for each in found.get(name, ())}
    for each in ids:
        if each in own:
            own.discard(each)
            lists[_KILLED].append(each)
        else:
            lists[kinds.get(each, _NOT_FOUND)].append(each)
    elements = [
        raw.element(raw.ARRAY, name.encode(), raw.array([raw.Value(raw.INT64, raw.int64(each)) for each in listed]))
        for name, listed in lists.items()
    ]
    return replies.ok(*elements)
