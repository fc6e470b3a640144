"""One change stream: the stages assembled, pulled in batches, with the position after each.

oplog -> Match -> Unwind -> Transform -> Invalidate -> SkipToPosition -> AddImages
      -> EnsurePositionPresent -> UserStages -> Split or LimitSize -> AddSortKey -> batches
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Final

from bson.timestamp import Timestamp

from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event
from tailrace.engine.images import AddImages, ImageStore, NoImages
from tailrace.engine.invalidate import Invalidate
from tailrace.engine.match import Match, Relevant
from tailrace.engine.options import StreamSpec
from tailrace.engine.plain import OneByOne, PlainEvents
from tailrace.engine.resumability import EnsurePositionPresent, SkipToPosition
from tailrace.engine.sieve import sieve_of
from tailrace.engine.sort_key import AddSortKey
from tailrace.engine.split import LimitSize, Split
from tailrace.engine.tokens import TokenVersion, fixed_version, version_of_client
from tailrace.engine.transform import Transform
from tailrace.engine.unwind import Unwind
from tailrace.engine.user_stages import FilterEvents, UserStages, compile_stages
from tailrace.errors import ChangeStreamError, OplogEntryInvalid
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.source import OplogSource
from tailrace.token.resume_token import ResumeToken, TokenKind

FIRST_BATCH: Final = 101
"""How many events a server puts into the first batch when nobody says."""
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024


def to_int(time: Timestamp) -> int:
    """Give a cluster time as one number that orders as times do."""
    return int(time.time) << 32 | int(time.inc)


def to_timestamp(time: int) -> Timestamp:
    """Give a cluster time as BSON has it."""
    return Timestamp(time >> 32, time & 0xFFFFFFFF)


def open_stream(
    spec: StreamSpec,
    source: OplogSource,
    dialect: Dialect,
    *,
    latest: int,
    images: ImageStore | None = None,
    now: datetime | None = None,
) -> EngineStream:
    """Open a stream over an oplog; refusals are those of the upstream server.

    `latest` is the time of the newest entry: where a stream begins that was not told otherwise.
    `now` is what the user's stages see as `$$NOW`.
    """
    return EngineStream(spec, source, dialect, latest, images or NoImages(), now)


class EngineStream:
    """A change stream: pull batches; after each, `post_batch_resume_token` is where it stands."""

    def __init__(
        self,
        spec: StreamSpec,
        source: OplogSource,
        dialect: Dialect,
        latest: int,
        images: ImageStore,
        now: datetime | None,
    ) -> None:
        self.spec = spec
        self.is_closed = False
        self._dialect = dialect
        self._source = source
        self._pipeline = compile_stages(spec, dialect, now, to_timestamp(latest))
        self._default_version = self._version()
        self._position, self._position_time = self._start(latest)
        self._reader = source.open(self._position_time)
        self._reached = self._position_time
        self._operation_time = 0
        self._latest = latest
        self._is_at_end = False
        self._held: Event | None = None
        self.unfinished: list[Event] = []
        """The events of the batch that is read, or in which an error was met; a server gives none of those."""
        self._is_first_batch = True
        self._is_drained = False
        self._position_check: EnsurePositionPresent | None = None
        self._invalidate = self._first_stages(images)
        self._events = self._last_stages(images)

    @property
    def post_batch_resume_token(self) -> ResumeToken:
        """The position after the last batch: of its last event, or of what was read beyond it."""
        return self._position

    @property
    def reached(self) -> int:
        """The time until which the oplog was read."""
        return self._reached

    @property
    def operation_time(self) -> int:
        """How far the server was when it gave what was read last."""
        return max(self._operation_time, self._reached)

    @property
    def is_at_end(self) -> bool:
        """Whether the server had nothing more to give when it was asked last.

        It then waited for entries in vain; or it gave all that a majority had, which was no less than what there was
        when the stream was opened: a server that is busy with other collections never waits.
        """
        return self._is_at_end

    @property
    def is_settled(self) -> bool:
        """Whether all that was read has been given, and the event to resume after was met.

        From here on a stream of the same options that begins behind `reached` gives the same events.
        """
        return self._is_drained and (self._position_check is None or self._position_check.is_met)

    @property
    def token_version(self) -> int:
        """The version of the tokens that this stream makes behind its start."""
        return self._default_version

    def next_batch(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> list[Event]:
        """Pull events until the batch is full or the oplog has nothing more for now.

        At least one event comes, whatever its size. After an invalidate the stream is closed.
        """
        try:
            return self._read_batch(max_events, max_bytes)
        except ChangeStreamError as error:
            self.close()
            raise self._told_as_server(error) from error.__cause__
        except RecursionError as error:
            self.close()
            raise OplogEntryInvalid("an oplog entry is nested deeper than servers allow") from error
        finally:
            self._is_first_batch = False

    def _read_batch(self, max_events: int | None, max_bytes: int) -> list[Event]:
        batch = self.unfinished = []
        size = 0
        if max_events == 0:
            return batch
        self._is_drained = False
        held, self._held = self._held, None
        for event in self._events if held is None else chain((held,), self._events):
            if event is None:
                self._is_drained = True
                self._move_beyond(batch)
                return batch
            size += len(event.raw)
            if size > max_bytes and batch:
                self._held = event
                break
            batch.append(event)
            if len(batch) == max_events:
                break
        else:
            self.close()
            self._move_beyond(batch)
            return batch
        self._move_to_last(batch)
        return batch

    def close(self) -> None:
        """Stop reading, and free what the reader holds."""
        self.is_closed = True
        self._reader.close()

    # --- position

    def _version(self) -> int:
        """Give the version of the stream's own tokens."""
        if self.spec.token_version is not None:
            return self.spec.token_version
        client = self.spec.start_token
        keeps_2 = client is not None and client.version == 2 and self._dialect.keeps_version_2
        return 2 if keeps_2 else self._dialect.default_token_version

    def _start(self, latest: int) -> tuple[ResumeToken, int]:
        """Give the position before the first event, and the time to read from."""
        options = self.spec.options
        if options.token is not None and self.spec.start_token is not None:
            return options.token, to_int(self.spec.start_token.cluster_time)
        time = options.start_at_operation_time
        if time is None:
            time = to_timestamp(latest + 1)
        return ResumeToken.high_water_mark(time, self._default_version), to_int(time)

    def _move_to_last(self, batch: list[Event]) -> None:
        if batch:
            self._position = ResumeToken.parse(batch[-1].token)
            self._position_time = batch[-1].cluster_time

    def _move_beyond(self, batch: list[Event]) -> None:
        """Advance beyond entries that gave no event, so that a quiet stream does not age out.

        A closed stream stands at its invalidate, even when the user's stages left that out (since 6.0).
        """
        self._move_to_last(batch)
        if self.is_closed:
            if self._dialect.ends_at_invalidate:
                self._position = self._invalidate.token or self._position
        elif self._reached > self._position_time:
            time = to_timestamp(self._reached)
            self._position = ResumeToken.high_water_mark(time, self._default_version)
            self._position_time = self._reached

    # --- events

    def _entries(self) -> Iterator[bytes | None]:
        """Give all entries, and None after each batch: a reader may wait before the next one."""
        for batch in self._reader:
            self._operation_time = batch.operation_time
            yield from batch.entries
            self._reached = batch.reached
            self._is_at_end = not batch.entries or (
                0 < batch.operation_time <= batch.reached and self._latest <= batch.reached
            )
            yield None

    def _told_as_server(self, error: ChangeStreamError) -> ChangeStreamError:
        """Put before the message what the server puts there, which is another for the first batch."""
        prefix = self._dialect.first_batch_prefix
        message = error.message.removeprefix(prefix)
        error.message = (prefix if self._is_first_batch else self._dialect.next_batch_prefix) + message
        error.args = (error.message,)
        return error

    def _first_stages(self, images: ImageStore) -> Invalidate:
        spec, dialect = self.spec, self._dialect
        relevant, version = Relevant(spec, dialect), self._token_version()
        pipeline = self._pipeline if self._pipeline is not None and self._filters_first() else None
        wanted = pipeline.header_filter if pipeline else None
        transform = Transform(spec, dialect, version, wanted, images.shard_key)

        def general(entries: Iterable[bytes | None]) -> Iterator[Event | None]:
            return transform(Unwind(Match(entries, relevant), relevant, self._entry_at))

        events: Iterable[Event | None]
        book = transform.recipe_book(self._constant_version())
        if book is None or AddImages.are_asked_for(spec.options):
            events = general(self._entries())
        else:
            sieve = sieve_of(spec.stages) if pipeline else None
            one_by_one = OneByOne(general)
            events = PlainEvents(self._entries(), one_by_one, relevant, book, transform.is_wanted, sieve)
        closes = dialect.closes_for_routers or not spec.from_router
        return Invalidate(events, spec.scope, spec.start_token, closes=closes)

    def _last_stages(self, images: ImageStore) -> Iterator[Event | None]:
        client, dialect, pipeline = self.spec.start_token, self._dialect, self._pipeline
        events: Iterable[Event | None] = self._invalidate
        if client is not None:
            events = SkipToPosition(events, client)
        if dialect.finds_position_last:
            events = self._ensured(self._with_images(events, images))
        else:
            events = self._with_images(self._ensured(events), images)
        if pipeline is not None and not pipeline.is_identity:
            events = UserStages(events, pipeline)
        splits = pipeline is not None and pipeline.splits_large_events
        events = Split(events, client) if splits else LimitSize(events)
        if self.spec.from_router:
            events = AddSortKey(events, dialect)
        return iter(events)

    def _ensured(self, events: Iterable[Event | None]) -> Iterable[Event | None]:
        """Look for the position, when it is an event: 6.0 looks for it in what the user's filter leaves."""
        client = self.spec.start_token
        if client is None or not self._starts_at_event():
            return events
        self._position_check = EnsurePositionPresent(events, client)
        return self._position_check

    def _with_images(self, events: Iterable[Event | None], images: ImageStore) -> Iterable[Event | None]:
        """Look images up, after as much of the user's filter as can do without them."""
        options, asked = self.spec.options, AddImages.are_asked_for(self.spec.options)
        before_position = self._starts_at_event() and self._dialect.finds_position_last
        if self._pipeline is not None and (asked or before_position):
            wanted = self._pipeline.filter_without(AddImages.fields_of(options))
            if wanted is not None:
                events = FilterEvents(events, wanted)
        return AddImages(events, options, self._dialect, images, self._entry_at) if asked else events

    def _filters_first(self) -> bool:
        """Tell whether the user's filter may go before the search for the position."""
        return self._dialect.finds_position_last or not self._starts_at_event()

    def _starts_at_event(self) -> bool:
        return self.spec.start_token is not None and self.spec.start_token.kind is TokenKind.EVENT

    def _constant_version(self) -> int | None:
        """Give the version of all tokens, None when it changes behind the client's position."""
        client, dialect = self.spec.start_token, self._dialect
        if client is None or client.version == self._default_version:
            return self._default_version
        is_kept = dialect.keeps_token_version if self._starts_at_event() else dialect.keeps_version_of_marks
        return None if is_kept else self._default_version

    def _token_version(self) -> TokenVersion:
        client, constant = self.spec.start_token, self._constant_version()
        if client is None or constant is not None:
            return fixed_version(self._default_version)
        return version_of_client(
            client,
            self._default_version,
            by_operation=self._dialect.keeps_token_version_by_operation,
        )

    def _entry_at(self, time: int) -> OplogEntry:
        return OplogEntry(self._source.entry_at(time))
