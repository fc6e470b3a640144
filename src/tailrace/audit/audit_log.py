"""An append-only log of actions as JSON lines, in a file of its own or in a topic.

An action is written down before it is done, and is not done when it cannot be written down. One that fails afterwards
has a second entry that says so.
"""

from __future__ import annotations

import getpass
import hmac
import os
import socket
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import orjson

from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.positions.side_cell import SideCell
from tailrace.capture.positions.store import PositionStore
from tailrace.errors import AuditUnavailable, SettingsError, SinkUnavailable, TailraceError
from tailrace.logs import get_logger
from tailrace.masking import masked, shown
from tailrace.owned.closeable import Closeable
from tailrace.settings import Settings

_log = get_logger("tailrace.audit")
_TOPIC: Final = "tailrace.audit"
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something, and from where, as far as that can be known."""

    who: str
    origin: str

    @classmethod
    def of_this_process(cls) -> Actor:
        """Give the person who has started this command: the user, who is behind `sudo`, and the machine."""
        user, behind = _user(), os.environ.get("SUDO_USER")
        remote = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
        origin = f"{socket.gethostname()}, process {os.getpid()}" + (f", by ssh from {remote}" if remote else "")
        return cls(f"{user} (sudo of {behind})" if behind else user, origin)

    @classmethod
    def of_request(cls, claimed: str | None, address: str) -> Actor:
        """Give who has sent a request with the control token; a name that comes with it is only claimed."""
        printable = "".join(c for c in claimed or "" if c.isprintable())[:_LONGEST_NAME]
        return cls(f"{printable} (by control token)" if printable else "holder of the control token", address)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"uid {os.getuid()}"


class AuditLog(Closeable):
    """Takes entries; each is durable when the call returns, and goes to the log of the process too."""

    def record(self, actor: Actor, action: str, stream: str, outcome: str = "begun", **details: Any) -> None:
        """Write an entry down; raises AuditUnavailable when that cannot be done."""
        entry = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": actor.who,
            "from": actor.origin,
            "action": action,
            "stream": stream,
            "outcome": outcome,
            **({"details": shown(details)} if details else {}),
        }
        _log.info("audit", **{("origin" if name == "from" else name): value for name, value in entry.items()})
        self._write(orjson.dumps(entry, default=str))

    @contextmanager
    def action(self, actor: Actor, action: str, stream: str, **details: Any) -> Iterator[None]:
        """Write an action down, let it be done, and write down that it failed if it does."""
        self.record(actor, action, stream, **details)
        try:
            yield
        except TailraceError as error:
            self.record(actor, action, stream, "failed", error=error.code, message=masked(error.message), **details)
            raise

    @abstractmethod
    def _write(self, line: bytes) -> None:
        """Append a line; it is durable when this returns."""

    def prepare(self) -> None:
        """Raise AuditUnavailable if it is known already that no entry can be written."""

    def close(self) -> None:
        """Give connections back."""


class LoggedOnly(AuditLog):
    """For those who collect the log of the process: entries stand there alone, as events called `audit`."""

    def _write(self, line: bytes) -> None:
        pass


class AuditFile(AuditLog):
    """Lines of a file that is only ever appended to, and which nobody but its owner reads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def prepare(self) -> None:
        """Make the file."""
        with self._opened():
            pass

    def _write(self, line: bytes) -> None:
        with self._opened() as descriptor:
            os.write(descriptor, line + b"\n")  # one call: lines of several processes do not mix
            os.fsync(descriptor)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AuditUnavailable(f"{self._path} cannot be written: {error.strerror}") from error


class AuditTopic(AuditLog):
    """Messages of a topic; brokers let nobody change what is written."""

    def __init__(self, address: KafkaAddress) -> None:
        from tailrace.capture.dead_letters.topic import DeadLetterTopic

        self._topic = DeadLetterTopic(address, address.topic or _TOPIC)

    def _write(self, line: bytes) -> None:
        try:
            self._topic.write(None, line, [])
        except SinkUnavailable as error:
            raise AuditUnavailable(error.message) from error

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()


def open_audit(settings: Settings) -> AuditLog:
    """Open the audit log that the settings name."""
    chosen = settings.audit.log
    url = chosen.get_secret_value() if chosen else ""
    if not url:
        return LoggedOnly()
    if url.startswith("file:"):
        return AuditFile(Path(unquote(url.removeprefix("file:"))))
    if url.startswith("kafka:"):
        return AuditTopic(KafkaAddress.parse(url))
    raise SettingsError(f"audit.log cannot be {masked(url)}", hint="Write file:path or kafka://host:9092/topic.")


_KIND: Final = "policy"


def record_policy_change(audit: AuditLog, store: PositionStore, settings: Settings, actor: Actor) -> None:
    """Write down how the policy of a stream differs from the one of its last run; a first policy is a change too."""
    stream = settings.capture.name
    cell = SideCell(store.cells, _KIND, stream)
    before, now = cell.read() or {"rules": []}, _described(settings)
    if before == now or (not now["rules"] and not before["rules"]):
        return
    audit.record(actor, "policy changed", stream, before=before, after=now)
    cell.update(lambda _: now)


def _described(settings: Settings) -> dict[str, Any]:
    """Give the rules, and a fingerprint of the key from which nobody can tell the key."""
    rules = [rule.model_dump(mode="json", exclude_none=True) for rule in settings.policy.rules]
    key = settings.policy.key
    if key is None:
        return {"rules": rules}
    mark = hmac.digest(key.get_secret_value().encode(), b"tailrace policy key", "sha256").hex()[:12]
    return {"rules": rules, "fingerprint": mark}
