"""The Change Streams specification as pure logic: a reply or an error in, the next command out.

`ResumableStream` knows which token or time a resume uses, which errors are resumed, and what has been
handed to the user. It does no I/O and reads no clock: its generators `open` and `advance` yield commands, a
shell performs each and sends the reply in, or throws the error in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from typing import Any, Final, TypeAlias

import bson
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from tailrace import server_codes
from tailrace.client.commands import Aggregate, DecodedBatch, GetMore, Reply
from tailrace.driver.commands import Batch, Pause, Scope, Step
from tailrace.driver.fragments import FragmentAssembler
from tailrace.driver.options import Token, WatchOptions, aggregate, as_document, original_position
from tailrace.driver.rules import WIRE_VERSION_4_4, Failure
from tailrace.event import TOKEN_FIRST, token_of
from tailrace.retry import RetryPolicy

POLICY: Final = RetryPolicy(first=0.05, longest=5.0)


class ResumeBudget:
    """Counts the failures of one outage and says when the next attempt may be made.

    The specification's budget is one attempt (`limit` None). With a limit, attempts go on until so much
    time has passed since the first failure; the first comes at once, later ones after pauses that double
    up to five seconds, each shortened by chance so that many clients do not come back at the same instant.
    """

    def __init__(self, limit: timedelta | None, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._limit = None if limit is None else limit.total_seconds()
        self._clock = clock
        self._chance = chance
        self._began: float | None = None
        self._failures = 0

    def failed(self) -> None:
        """Note a failure."""
        self._failures += 1
        if self._began is None:
            self._began = self._clock()

    def succeeded(self) -> None:
        """Note that a getMore was answered: the outage is over."""
        self._began = None
        self._failures = 0

    def spent(self) -> None:
        """Note that the outage was raised to the user: the next call begins a new budget."""
        self.succeeded()

    @property
    def is_limited(self) -> bool:
        """Whether time is the limit, and not the specification's one attempt."""
        return self._limit is not None

    @property
    def may_retry(self) -> bool:
        """Whether an attempt that failed may be followed by another."""
        if self._limit is None or self._began is None:
            return False
        return self._clock() - self._began < self._limit

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        if self._limit is None or self._failures < 2:
            return 0.0
        return POLICY.pause(self._failures - 2, self._chance)


Steps: TypeAlias = Generator[Step, Reply | None, None]

WIRE_VERSION_4_0: Final = 7
SAME_ERRORS: Final = 3
"""How often in a row a server may answer getMore with the same code before it is believed.

Without this, an error that every resume meets again (which the rules before 4.4 cannot tell from
a passing one) would be resumed for ever."""


def proceed(steps: Steps, outcome: Reply | PyMongoError | None) -> Step | None:
    """Hand the outcome of a step to the logic (None to begin) and give the next step, if there is one."""
    try:
        return steps.throw(outcome) if isinstance(outcome, PyMongoError) else steps.send(outcome)
    except StopIteration:
        return None


class ResumableStream:
    """The state of one change stream."""

    def __init__(
        self, scope: Scope, pipeline: Sequence[Mapping[str, Any]], options: WatchOptions, budget: ResumeBudget
    ) -> None:
        self._scope = scope
        self._pipeline = deepcopy(list(pipeline))  # a resume sends what the user gave, not what became of it
        self._options = options
        self._budget = budget
        self._fragments: FragmentAssembler | None = None

        self._closed = False
        self._cursor_id = 0
        self._namespace = f"{scope.database}.{scope.collection or '$cmd.aggregate'}"
        self._must_open = True
        self._max_wire_version = 0
        self._same_errors: tuple[int | None, int] = (None, 0)

        self._events: Sequence[bytes] = ()
        self._position = 0
        self._post_batch_token: Token | None = None
        self._operation_time: Timestamp | None = None

        started = options.resume_after if options.start_after is None else options.start_after
        self._token: Token | None = started
        self._keep_start_after = options.start_after is not None
        self._saved_time = options.start_at_operation_time
        self._opened_before = False

    # --- what a user sees

    @property
    def alive(self) -> bool:
        """Whether there may be more events."""
        return not self._closed and (self._must_open or self._cursor_id != 0 or self._position < len(self._events))

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token that a resume would use now: after all that was handed out, and nothing else."""
        token = self._current_token()
        if token is None:
            return None
        return bson.decode(token) if isinstance(token, bytes) else dict(token)

    def take(self) -> bytes | None:
        """Hand out the next event of the batch, or None when there is none left."""
        position = self._position
        if position >= len(self._events):
            return None
        event = self._events[position]
        if event[4:9] != TOKEN_FIRST:
            self._insist_on_token(event)
        self._position = position + 1
        return event

    def take_document(self) -> Any:
        """Hand out the next event decoded, if its reply was; otherwise None."""
        events, position = self._events, self._position
        if not isinstance(events, DecodedBatch) or position >= len(events):
            return None
        document = events.documents[position]
        if document.get("_id").__class__ is not dict:
            self._insist_on_token(events[position])
        self._position = position + 1
        return document

    def take_batch(self) -> Batch:
        """Hand out all that is left of the batch; the position is then after it."""
        events = self._events[self._position :] if self._position else self._events
        if events and self._post_batch_token is None:
            # Servers that send post-batch tokens see to it themselves that no event comes without `_id`.
            for event in events:
                self._insist_on_token(event)
        self._position = len(self._events)
        token = self._current_token()
        encoded = token if token is None or isinstance(token, bytes) else bson.encode(token)
        return Batch(events, encoded, self._operation_time)

    # --- what a shell does

    def open(self, *, split: bool = False) -> Steps:
        """Open the first cursor. An error here is never resumed. `split`: the server splits large events."""
        self._fragments = FragmentAssembler() if split else None
        try:
            yield from self._open()
        except PyMongoError:
            self.close()
            raise

    def advance(self) -> Steps:
        """Get the next batch with at most one getMore, and at most one attempt to resume.

        A batch of which events are left is not replaced.
        """
        if not self.alive or self._position < len(self._events):
            return
        if self._must_open:
            # An earlier attempt failed and its error was raised, or the budget asked for patience.
            yield from self._resume()
            if self._must_open or self._events or not self.alive:
                return
        options = self._options
        try:
            database, _, collection = self._namespace.partition(".")
            comment = options.comment if self._max_wire_version >= WIRE_VERSION_4_4 else None
            reply = yield GetMore(
                database, collection, self._cursor_id, options.batch_size, options.max_await_time_ms, comment
            )
        except PyMongoError as error:
            self._lose_cursor()
            if self._closed:
                return  # it was closed meanwhile, which killed the cursor
            self._judge(error)
            yield from self._resume()
        else:
            self._budget.succeeded()
            self._same_errors = (None, 0)
            self._accept(reply)

    def interrupted(self) -> None:
        """Note that a command was abandoned half-way: its events will be read again after a resume."""
        self._lose_cursor()

    def close(self) -> None:
        """End the stream for good."""
        self._closed = True

    # --- commands

    def _aggregate(self) -> Aggregate:
        position = self._resume_position() if self._opened_before else original_position(self._options)
        return aggregate(self._scope, self._pipeline, self._options, position, split=self._fragments is not None)

    def _resume_position(self) -> dict[str, Any]:
        """Choose where a resume begins: token, then saved time, then nothing."""
        token = self._current_token()
        if token is not None:
            return {"startAfter" if self._keep_start_after else "resumeAfter": as_document(token)}
        if self._saved_time is not None and self._max_wire_version >= WIRE_VERSION_4_0:
            return {"startAtOperationTime": self._saved_time}
        return {}

    def _open(self) -> Steps:
        reply = yield self._aggregate()
        assert reply is not None  # shells answer every command
        self._max_wire_version = reply.max_wire_version
        is_first, self._opened_before = not self._opened_before, True
        self._must_open = False
        self._accept(reply)
        if is_first:
            self._save_time()

    def _save_time(self) -> None:
        """Remember when the stream began, for servers that give no token before the first event."""
        has_position = self._token is not None or self._saved_time is not None
        if not has_position and not self._events and self._max_wire_version >= WIRE_VERSION_4_0:
            self._saved_time = self._operation_time

    # --- failures

    def _resume(self) -> Steps:
        """Make one attempt to open a cursor where the lost one was."""
        pause = self._budget.pause
        if pause > 0:
            yield Pause(pause)
        try:
            yield from self._open()
        except PyMongoError as error:
            self._budget.failed()
            if not Failure.of(error).is_transient and not error.timeout:
                self.close()
                raise
            if not self._budget.may_retry:
                self._budget.spent()
                raise

    def _judge(self, error: PyMongoError) -> None:
        """Raise an error of a getMore that is not to be resumed."""
        failure = Failure.of(error)
        self._budget.failed()
        passes = self._budget.is_limited and failure.is_transient
        if not passes and not self._options.rules.resumes(failure, self._max_wire_version):
            if not error.timeout:
                self.close()
            raise error
        if self._budget.is_limited and not self._budget.may_retry:
            self._budget.spent()
            raise error
        if self._is_believed(failure):
            self.close()
            raise error

    def _is_believed(self, failure: Failure) -> bool:
        """Whether an error that is not known to pass has come too often without a batch between."""
        code, times = self._same_errors
        times = times + 1 if failure.code == code else 1
        self._same_errors = (failure.code, times)
        return times >= SAME_ERRORS and not failure.is_transient and failure.code != server_codes.CURSOR_NOT_FOUND

    def _lose_cursor(self) -> None:
        self._token = self._current_token()
        self._keep_start_after = self._keep_start_after and not self._position
        self._events, self._position = (), 0
        self._post_batch_token = None
        self._cursor_id = 0
        self._must_open = True
        if self._fragments:
            self._fragments.clear()

    # --- tokens

    def _accept(self, reply: Reply | None) -> None:
        """Take a reply over, after noting how far the batch before it was handed out."""
        assert reply is not None  # shells answer every command
        self._token = self._current_token()
        self._keep_start_after = self._keep_start_after and not self._position
        self._cursor_id = reply.cursor_id
        self._namespace = reply.namespace or self._namespace
        self._operation_time = reply.operation_time
        self._events, self._position = reply.events, 0
        self._post_batch_token = reply.post_batch_resume_token
        if self._fragments:
            self._events = self._fragments.feed(self._events)
            if self._fragments.waits:
                # This token lies in the middle of an event.
                self._post_batch_token = None
        if not self._events and self._post_batch_token is not None:
            self._token = self._post_batch_token

    def _current_token(self) -> Token | None:
        if self._position == 0:
            return self._token
        if self._position == len(self._events) and self._post_batch_token is not None:
            return self._post_batch_token
        return token_of(self._events[self._position - 1])

    def _insist_on_token(self, event: bytes) -> None:
        try:
            token_of(event)
        except Exception:
            self.close()
            raise
