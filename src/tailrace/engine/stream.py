"""One change stream: the stages assembled, pulled in batches, with the position after each.

oplog -> Match -> Unwind -> Transform -> Invalidate -> SkipToPosition -> AddImages
      -> EnsurePositionPresent -> UserStages -> Split or LimitSize -> AddSortKey -> batches
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from bson.timestamp import Timestamp

from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event
from tailrace.engine.images import AddImages, ImageStore, NoImages
from tailrace.engine.invalidate import Invalidate
from tailrace.engine.match import Match, Relevant
from tailrace.engine.options import StreamSpec
from tailrace.engine.resumability import EnsurePositionPresent, SkipToPosition
from tailrace.engine.sort_key import AddSortKey
from tailrace.engine.split import LimitSize, Split
from tailrace.engine.tokens import TokenVersion, fixed_version, version_of_client
from tailrace.engine.transform import Transform
from tailrace.engine.unwind import Unwind
from tailrace.engine.user_stages import UserStages, compile_stages
from tailrace.errors import HistoryLost
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.source import OplogSource
from tailrace.token.resume_token import ResumeToken, TokenKind

FIRST_BATCH: Final = 101
"""How many events a server puts into the first batch when nobody says."""
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
_WITHOUT_IMAGES: Final = frozenset(
    {
        "_id", "operationType", "clusterTime", "collectionUUID", "wallTime", "ns", "to", "documentKey",
        "updateDescription", "rawUpdateDescription", "operationDescription", "stateBeforeChange",
        "txnNumber", "lsid",
    }
)  # fmt: skip


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
        self._pipeline = compile_stages(spec, dialect, now)
        self._default_version = 2 if spec.v2_tokens else 1
        self._position, self._position_time = self._start(latest)
        self._reader = source.open(self._position_time)
        self._reached = self._position_time
        self._held: Event | None = None
        self._invalidate = self._first_stages()
        self._events = self._last_stages(images)

    @property
    def post_batch_resume_token(self) -> ResumeToken:
        """The position after the last batch: of its last event, or of what was read beyond it."""
        return self._position

    @property
    def reached(self) -> int:
        """The time until which the oplog was read."""
        return self._reached

    def next_batch(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> list[Event]:
        """Pull events until the batch is full or the oplog has nothing more for now.

        At least one event comes, whatever its size. After an invalidate the stream is closed.
        """
        batch: list[Event] = []
        size = 0
        while max_events is None or len(batch) < max_events:
            event = self._pull()
            if event is None:
                self._move_beyond(batch)
                return batch
            size += len(event.raw)
            if batch and size > max_bytes:
                self._held = event
                break
            batch.append(event)
        self._move_to_last(batch)
        return batch

    def close(self) -> None:
        """Stop reading, and free what the reader holds."""
        self.is_closed = True
        self._reader.close()

    # --- position

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

        A closed stream stands at its invalidate, even when the user's stages left that out.
        """
        self._move_to_last(batch)
        if self.is_closed:
            self._position = self._invalidate.token or self._position
        elif self._reached > self._position_time:
            time = to_timestamp(self._reached)
            self._position = ResumeToken.high_water_mark(time, self._default_version)
            self._position_time = self._reached

    # --- events

    def _pull(self) -> Event | None:
        if self._held is not None:
            event, self._held = self._held, None
            return event
        try:
            return next(self._events)
        except StopIteration:
            self.close()
            return None

    def _entries(self) -> Iterator[bytes | None]:
        """Give all entries, and None after each batch: a reader may wait before the next one."""
        try:
            for batch in self._reader:
                yield from batch.entries
                self._reached = batch.reached
                yield None
        except HistoryLost as lost:
            raise HistoryLost(self._dialect.error_prefix + lost.message) from lost

    def _first_stages(self) -> Invalidate:
        spec, dialect = self.spec, self._dialect
        relevant = Relevant(spec, dialect)
        changes = Unwind(Match(self._entries(), relevant), relevant, self._entry_at)
        events = Transform(changes, spec, dialect, self._token_version())
        return Invalidate(events, spec.scope, spec.start_token)

    def _last_stages(self, images: ImageStore) -> Iterator[Event | None]:
        options, dialect, client = self.spec.options, self._dialect, self.spec.start_token
        pipeline, prefix = self._pipeline, dialect.error_prefix
        at_event = client is not None and client.kind is TokenKind.EVENT
        events: Iterable[Event | None] = self._invalidate
        if client is not None:
            events = SkipToPosition(events, client)
        if AddImages.are_asked_for(options):
            # 6.0 looks images up before it looks for the position, so no filter can go before that.
            may_filter = pipeline is not None and not (at_event and dialect.since(6, 0))
            wanted = pipeline.partial_filter(_WITHOUT_IMAGES) if pipeline and may_filter else None
            events = AddImages(events, options, dialect, images, self._entry_at, wanted)
        if client is not None and at_event:
            events = EnsurePositionPresent(events, client, prefix)
        if pipeline is not None and not pipeline.is_identity:
            events = UserStages(events, pipeline, prefix)
        if pipeline is not None and pipeline.splits_large_events:
            events = Split(events, client, prefix)
        else:
            events = LimitSize(events, prefix)
        if self.spec.from_router:
            events = AddSortKey(events, dialect)
        return iter(events)

    def _token_version(self) -> TokenVersion:
        client = self.spec.start_token
        if client is None or not self._dialect.keeps_token_version:
            return fixed_version(self._default_version)
        return version_of_client(
            client,
            self._default_version,
            by_operation=self._dialect.keeps_token_version_by_operation,
        )

    def _entry_at(self, time: int) -> OplogEntry:
        return OplogEntry(self._source.entry_at(time))
