"""One client's login: relayed to the upstream, which knows the secrets, and watched for who guesses them."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import bson

from tailrace import raw, server_codes
from tailrace.errors import StreamRefused
from tailrace.gateway import replies
from tailrace.gateway.command import Command
from tailrace.gateway.identity import NOBODY, Identity
from tailrace.gateway.privileges import UserPrivileges
from tailrace.gateway.upstream import error_code
from tailrace.gateway.validation import rehearse
from tailrace.gateway.wire import Message

if TYPE_CHECKING:
    from tailrace.gateway.conversation import Conversation

_X509: Final = "MONGODB-X509"
_NO_X509: Final = (
    "MONGODB-X509 does not go through this gateway: the client's certificate ends here. "
    "Authenticate with SCRAM-SHA-256 or another SASL mechanism, or connect to the server itself"
)
_SCRAM_USER: Final = re.compile(rb"(?:^|,)n=([^,]*)")
_STATUS: Final = Message(bson.encode({"connectionStatus": 1, "showPrivileges": True, "$db": "admin"}), request_id=1)
_LONGEST_NAME: Final = 200
"""Of a user that nobody knows: names of failed logins are logged, and thousands of them remembered."""
_STARTS: Final = ("resumeAfter", "startAfter", "startAtOperationTime")


class Login:
    """Who a client is, asked once after each time that it authenticated."""

    __slots__ = ("_conversation", "_counted", "_gateway", "_identity", "_name", "_privileges")

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._gateway = conversation.gateway
        self._identity: Identity | None = None
        self._counted: frozenset[str] = frozenset()
        """The users among whose connections this one is counted."""
        self._name = ""
        """As whom the login was begun that goes on, until the upstream confirms it."""
        self._privileges: UserPrivileges | None = None

    async def identity(self) -> Identity:
        """Give who has authenticated; refuse those who may not come from where they are, or are too many."""
        if not await self._gateway.upstream.requires_auth():
            self._conversation.trust(True)
            return NOBODY
        if self._identity is None:
            found = await Identity.ask(await self._conversation.connected())
            self._check(found)
            self._identity = found
            self._privileges = self._gateway.privileges.of(found.accounts) if found.users else None
            self._conversation.trust(bool(found.users))
            self._conversation.set_owner(found.users)
        return self._identity

    def _check(self, found: Identity) -> None:
        address = self._conversation.address
        try:
            if not found.may_come_from(address):
                raise StreamRefused("Authentication failed.", server_code=server_codes.AUTHENTICATION_FAILED)
            self._count(found.users)
        except StreamRefused as error:
            # The upstream took the login: nothing may be passed on by this connection.
            self._conversation.end()
            self._gateway.refuse("login", self._conversation.peer, ", ".join(sorted(found.users)), error.message)
            raise

    def _count(self, users: frozenset[str]) -> None:
        self._gateway.user_connections.give(self._counted)
        self._counted = frozenset()
        self._gateway.user_connections.take(users)
        self._counted = users

    def forget(self) -> None:
        """Ask again when somebody next wants to know."""
        self._identity = None

    def close(self) -> None:
        """Count this connection no longer."""
        self._gateway.user_connections.give(self._counted)
        self._counted = frozenset()

    # --- logging in

    async def authenticate(self, command: Command) -> bytes | None:
        """Relay one step of a login, or a logout."""
        if command.name == "authenticate" or mechanism(command.fields) == _X509:
            return self._conversation.with_times(replies.failure(_NO_X509, 334))
        claimed = None
        if command.name == "saslStart":
            claimed = self.begin(command.fields.get("payload"), command.database)
        elif command.name == "saslContinue":
            self._check_attempts(self._name)  # others may have failed since this one began
        self.forget()
        reply = await self._conversation.pass_on(command.with_an_answer())
        if reply is not None:
            await self.finish(reply, claimed)
        return reply

    def begin(self, payload: Any, database: Any) -> str:
        """Give as whom the client wants to log in, unless it has failed too often."""
        name = _user_in(payload, database)
        self._check_attempts(name)
        return name

    def _check_attempts(self, name: str) -> None:
        wait = self._gateway.logins.seconds_to_wait(self._conversation.address, name)
        if wait > 0:
            message = f"too many failed logins from {self._conversation.address}: try again in {wait:.0f} s"
            self._gateway.refuse("login", self._conversation.peer, name, message)
            raise StreamRefused(message, server_code=server_codes.AUTHENTICATION_FAILED)

    async def finish(self, reply: bytes, claimed: str | None) -> None:
        """Look at the upstream's answer: the login failed, goes on, or is complete.

        `claimed` is the name in a command that begins a login. One that the upstream refuses for another reason leaves
        the login before it as it was, and that one's name.
        """
        answer = raw.to_python(raw.DOCUMENT, reply)
        address = self._conversation.address
        speculative = answer.get("speculativeAuthenticate")
        has_begun = "conversationId" in answer or isinstance(speculative, Mapping)
        is_failure = answer.get("code") == server_codes.AUTHENTICATION_FAILED
        if claimed is not None and (has_begun or is_failure):
            self._name = claimed
        if is_failure:
            self._gateway.counts.failed_logins += 1
            self._conversation.count_fault()
            self._gateway.logins.failed(address, self._name)
            self._gateway.log.warning("login_failed", peer=self._conversation.peer, user=self._name)
            return
        if answer.get("done") is True or (isinstance(speculative, Mapping) and speculative.get("done") is True):
            await self.identity()
            self._gateway.logins.succeeded(address, self._name)

    # --- what the client may do

    async def privileges(self) -> bytes:
        """Give what the upstream says of the client's privileges now; only useful to compare it."""
        await self.identity()
        if self._privileges is None:
            return b""
        answer = await self._privileges.now(self._ask_privileges)
        if raw.find(answer, b"0", 0) is None:
            self.forget()
        return answer

    async def _ask_privileges(self) -> bytes:
        return in_any_order(await self._status())

    async def _status(self) -> bytes:
        """Give what the upstream says of who the client is and what it may do."""
        upstream = await self._conversation.connected()
        reply = await upstream.ask(_STATUS)
        found = None if reply is None else raw.field(reply.body, b"authInfo")
        return raw.EMPTY if found is None else bytes(found.data)

    async def may_kill_any_cursor(self) -> bool:
        """Ask the upstream whether this client may kill the cursors of others."""
        return any(
            "killAnyCursor" in privilege["actions"]
            and (privilege["resource"].get("cluster") or privilege["resource"].get("anyResource"))
            for privilege in _privileges_in(await self._status())
        )

    async def watch_is_refused(self, command: Mapping[str, Any]) -> bool:
        """Ask the upstream whether the client may still watch what it watches.

        The stream is opened from now on: where it began may be history by then.
        """
        upstream = await self._conversation.connected()
        first, *stages = command["pipeline"]
        stage = {name: value for name, value in first["$changeStream"].items() if name not in _STARTS}
        asked = dict(command) | {"pipeline": [{"$changeStream": stage}, *stages], "cursor": {"batchSize": 0}}
        refusal = await rehearse(upstream, raw.encode(asked))
        return refusal is not None and error_code(refusal) == server_codes.UNAUTHORIZED


def _privileges_in(auth_info: bytes) -> list[Any]:
    return list(raw.to_python(raw.DOCUMENT, auth_info).get("authenticatedUserPrivileges", ()))


@lru_cache(maxsize=256)
def in_any_order(auth_info: bytes) -> bytes:
    """Write privileges so that the same ones are equal: a server lists them, and their actions, in no fixed order.

    Every getMore of a user asks for them, and they are hardly ever new.
    """
    privileges = _privileges_in(auth_info)
    parts = (bson.encode({**each, "actions": sorted(each.get("actions", ()))}) for each in privileges)
    return bson.encode({str(number): part for number, part in enumerate(sorted(parts))})


def mechanism(asked: Any) -> str:
    """Give the mechanism that a command wants to authenticate with."""
    return str(asked.get("mechanism", "")).upper() if isinstance(asked, Mapping) else ""


def _user_in(payload: Any, database: Any) -> str:
    """Read the user's name out of the first message of SCRAM; of other mechanisms it stays unknown.

    Servers take the message as bytes, and in base64 as a string.
    """
    if isinstance(payload, str):
        with suppress(ValueError):
            payload = b64decode(payload)
    found = _SCRAM_USER.search(bytes(payload)) if isinstance(payload, bytes) else None
    return "" if found is None else f"{found[1].decode('utf-8', 'replace')}@{database}"[:_LONGEST_NAME]
