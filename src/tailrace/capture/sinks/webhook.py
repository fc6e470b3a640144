"""Records to an HTTP endpoint: signed batches that can be recognised when they come twice."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.record import Record
from tailrace.capture.sinks.json_lines import record_json
from tailrace.capture.sinks.sink import DEFAULT_BUFFER_BYTES
from tailrace.capture.sinks.worker import WorkerSink
from tailrace.errors import RecordRefused, SettingsError, SinkUnavailable
from tailrace.http_client import connection_to
from tailrace.masking import shown_url

_TRY_AGAIN = {408, 425, 429}
_BAD_CONTENT = {400, 413, 415, 422}
_LARGEST_BODY = 1_000_000
_MOST_RECORDS = 500
_SECONDS_TO_ANSWER = 10.0


class WebhookSink(WorkerSink):
    """Posts JSON arrays of records, one after another, so that their order stays.

    Each post has an `Idempotency-Key` that is the same when the same records are posted again, and, when there is a
    secret, `X-Tailrace-Signature`: `sha256=` and the HMAC of `X-Tailrace-Timestamp`, a dot and the body. What a status
    means: 2xx delivered; 408, 425, 429 and 5xx try again, after `Retry-After` if it is given; 400, 413, 415 and 422
    the content is bad: the batch is halved until the bad record is alone, and that one goes to the dead letters;
    anything else stops, because it says that the address is wrong.
    """

    def __init__(
        self,
        url: str,
        dead_letters: DeadLetters,
        *,
        secret: str | None = None,
        is_json: bool = True,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        retry_seconds: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(buffer_bytes=buffer_bytes, retry_seconds=retry_seconds)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(
                f"{shown_url(url)} is not the URL of a webhook", hint="It looks like https://host/path."
            )
        self._url = url
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._dead_letters = dead_letters
        self._secret = secret.encode() if secret else None
        self._is_json = is_json
        self._clock = clock
        self._connection: http.client.HTTPConnection | None = None

    @property
    def dead_letters(self) -> int:
        """How many records went to the dead letters."""
        return self._dead_letters.count

    def connect(self) -> None:
        """Open a connection, so that a wrong address shows at once."""
        try:
            self._connected().connect()
        except OSError as error:
            raise SinkUnavailable(f"no server answers at {shown_url(self._url)}: {error}") from error

    def deliver(self, records: Sequence[Record]) -> None:
        """Post the records in batches that are not too large."""
        for batch in _batches(records):
            self._post_or_split(batch)

    def disconnect(self) -> None:
        """Close the connection."""
        if self._connection:
            self._connection.close()

    def _post_or_split(self, batch: Sequence[Record]) -> None:
        status, reason = self._post(batch)
        if status not in _BAD_CONTENT:
            return
        if len(batch) > 1:
            middle = len(batch) // 2
            self._post_or_split(batch[:middle])
            self._post_or_split(batch[middle:])
        else:
            refusal = RecordRefused(f"{shown_url(self._url)} answered {status} {reason}", status=status)
            self._dead_letters.add_record(batch[0], refusal)

    def _post(self, batch: Sequence[Record]) -> tuple[int, str]:
        self.check_lease()
        body = b"[" + b",".join([record_json(record, is_json=self._is_json) for record in batch]) + b"]"
        try:
            connection = self._connected()
            connection.request("POST", self._path, body, self._headers(batch, body))
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._forget_connection()
            raise SinkUnavailable(f"{shown_url(self._url)} does not answer: {error}") from error
        status = answer.status
        if 200 <= status < 300 or status in _BAD_CONTENT:
            return status, answer.reason
        if status in _TRY_AGAIN or status >= 500:
            wait = answer.headers.get("Retry-After", "")
            raise SinkUnavailable(
                f"{shown_url(self._url)} answered {status} {answer.reason}",
                retry_after=float(wait) if wait.isdigit() else 0.0,
            )
        raise RecordRefused(
            f"{shown_url(self._url)} answered {status} {answer.reason}", hint="Check the address and its permissions."
        )

    def _headers(self, batch: Sequence[Record], body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": _idempotency_key(batch)}
        if self._secret is not None:
            timestamp = str(int(self._clock()))
            digest = hmac.new(self._secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
            headers |= {"X-Tailrace-Timestamp": timestamp, "X-Tailrace-Signature": f"sha256={digest}"}
        return headers

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = connection_to(self._url, _SECONDS_TO_ANSWER)
        return self._connection

    def _forget_connection(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        if batch and (size + record.size > _LARGEST_BODY or len(batch) == _MOST_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record.size
    if batch:
        yield batch


def _idempotency_key(batch: Sequence[Record]) -> str:
    """Give a text that depends on the records alone, tombstones apart from their deletes."""
    digest = hashlib.sha256()
    for record in batch:
        digest.update(record.token + (record.key or b"") + (b"\x01" if record.value is not None else b"\x00"))
    return digest.hexdigest()
