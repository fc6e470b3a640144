"""Changed documents out of a Redis cache: the keys of a template are removed as soon as their document changes."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.formats.format import is_missing, value_at
from tailrace.capture.formats.plain import plain_value
from tailrace.capture.record import Record
from tailrace.capture.sinks.sink import DEFAULT_BUFFER_BYTES
from tailrace.capture.sinks.worker import WorkerSink
from tailrace.errors import EventUnconvertible, RecordRefused, SettingsError, SinkUnavailable, TailraceError
from tailrace.raw import extended_json
from tailrace.raw.display import decode_for_display
from tailrace.redis_access import connect_to_server, not_authorized
from tailrace.settings import masked

DEFAULT_TEMPLATE = "{db}:{coll}:{_id}"
_SECONDS = 10
_FIELDS = ("documentKey", "fullDocument", "fullDocumentBeforeChange")
_formatter = string.Formatter()
_REPLACED = "\ufffd"
"""What stands for bytes that are no UTF-8 in a decoded event."""


class KeyTemplate:
    """A key with {db}, {coll} and fields of the document, such as `user:{user_id}` or `{db}:{coll}:{_id}`."""

    def __init__(self, template: str) -> None:
        try:
            self._parts = [(text, name) for text, name, _, _ in _formatter.parse(template)]
        except ValueError as error:
            raise SettingsError(f"{template!r} is not a template of keys: {error}") from None
        self._template = template

    def key_of(self, event: Mapping[str, Any]) -> str:
        """Give the key for an event; RecordRefused when it lacks a field."""
        return "".join(text if name is None else text + self._value(event, name) for text, name in self._parts)

    def _value(self, event: Mapping[str, Any], name: str) -> str:
        if name in ("db", "coll"):
            return str(event.get("ns", {}).get(name, ""))
        for field in _FIELDS:
            found = value_at(event.get(field), name)
            if not is_missing(found):
                return str(plain_value(found))
        raise RecordRefused(
            f"the event has no {name}, which the key {self._template} needs",
            hint="Ask for the full document and the document before the change.",
        )


class RedisCacheSink(WorkerSink):
    """Removes one key for each event, in batches; every key once a batch.

    Removing a key twice does no harm, so at-least-once is exact here. Events of whole collections and databases have no
    document, hence no key, and are passed over. An event without a field that the template needs goes to the dead
    letters.
    """

    def __init__(
        self,
        url: str,
        template: str,
        dead_letters: DeadLetters,
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        retry_seconds: float = 60.0,
    ) -> None:
        super().__init__(buffer_bytes=buffer_bytes, retry_seconds=retry_seconds)
        self._url = url
        self._template = KeyTemplate(template)
        self._dead_letters = dead_letters
        try:
            self._client = connect_to_server(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
        except ValueError as error:
            raise SettingsError(f"{masked(url)} is not a Redis URL: {error}") from None

    @property
    def dead_letters(self) -> int:
        """How many records went to the dead letters."""
        return self._dead_letters.count

    def connect(self) -> None:
        """Check that the server answers."""
        try:
            self._client.ping()
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def deliver(self, records: Sequence[Record]) -> None:
        """Remove the keys of the records."""
        keys = list(dict.fromkeys(key for record in records if (key := self._key(record)) is not None))
        if not keys:
            return
        try:
            self._client.unlink(*keys)
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: redis.RedisError) -> TailraceError:
        return not_authorized(error) or SinkUnavailable(f"Redis at {masked(self._url)} does not answer: {error}")

    def disconnect(self) -> None:
        """Close the connections."""
        self._client.close()

    def _key(self, record: Record) -> str | None:
        is_whole = True
        try:
            event = extended_json.decode(record.event)
        except EventUnconvertible:  # fields beside those of the key do not matter
            event, is_whole = decode_for_display(record.event), False
        if "documentKey" not in event:
            return None
        try:
            key = self._template.key_of(event)
            if not is_whole and _REPLACED in key:
                raise RecordRefused("a field of the key is text that is no UTF-8", hint="Remove its key by hand.")
            return key
        except (RecordRefused, EventUnconvertible) as error:
            self._dead_letters.add_record(record, error)
            return None
