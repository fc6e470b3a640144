"""Which stages a stream has, in the order that its server runs them.

match -> Unwind -> Transform -> Invalidate -> SkipToPosition -> AddImages -> EnsurePositionPresent
      -> UserStages -> Split or limit_size -> AddSortKey
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from tailrace.engine.dialect import Dialect
from tailrace.engine.event import AddSortKey, Stage
from tailrace.engine.images import AddImages, ImageStore
from tailrace.engine.invalidate import Invalidate
from tailrace.engine.make_events import EventsOfEntries, MakeEvents, compiled_events
from tailrace.engine.match import Relevant
from tailrace.engine.options import StreamSpec
from tailrace.engine.prefilter import prefilter_of
from tailrace.engine.resumability import EnsurePositionPresent, PositionSearch, SkipToPosition
from tailrace.engine.split import Split, limit_size
from tailrace.engine.tokens import TokenVersion, fixed_version, version_of_client
from tailrace.engine.transform import Transform
from tailrace.engine.unwind import Unwind
from tailrace.engine.user_stages import FilterEvents, UserStages, compile_stages
from tailrace.oplog.entry import OplogEntry
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token.resume_token import TokenKind


class Assembly:
    """The stages of one stream: `make_events` turns oplog entries into events, `stages` work on these.

    `latest` is the time of the newest entry, `now` what the user's stages see as `$$NOW`; `entry_at` reads the entry
    of a time.
    """

    def __init__(
        self,
        spec: StreamSpec,
        dialect: Dialect,
        images: ImageStore,
        entry_at: Callable[[int], OplogEntry],
        *,
        latest: int,
        now: datetime | None,
    ) -> None:
        self._spec = spec
        self._dialect = dialect
        self._images = images
        self._entry_at = entry_at
        self._pipeline = compile_stages(spec, dialect, now, ClusterTime(latest).timestamp)
        self.token_version = self._own_version()
        """The version of the tokens that the stream makes behind its start."""
        closes = dialect.closes_for_routers or not spec.from_router
        self.invalidate = Invalidate(spec.scope, spec.start_token, closes=closes)
        self.position_check = self._check_of_position()
        """Looks for the event to resume after; None where there is none to look for."""
        self.make_events = self._make_events()
        self.stages = list(self._stages())
        self.is_passed_through = self._has_no_work()
        """Whether the stages have nothing to do for events about documents that are not too large."""
        self.is_searching = any(isinstance(stage, PositionSearch) for stage in self.stages)
        """Whether there are stages that look for the position."""

    def drop_finished_searches(self) -> None:
        """Take out the stages that have found the position: all events pass them from there on."""
        self.stages = [stage for stage in self.stages if not (isinstance(stage, PositionSearch) and stage.is_over)]
        self.is_passed_through = self._has_no_work()
        self.is_searching = any(isinstance(stage, PositionSearch) for stage in self.stages)

    def _has_no_work(self) -> bool:
        return all(stage is limit_size or stage is self.invalidate for stage in self.stages)

    @property
    def events_at_once(self) -> int | None:
        """How many events go through the stages at once; None: all that an oplog batch gives.

        Stages that look documents up, or make events of any size, are given one: nothing bounds what several give.
        """
        only_filters = all(name == "$match" for stage in self._spec.stages for name in stage)
        return None if only_filters and not AddImages.are_asked_for(self._spec.options) else 1

    def _own_version(self) -> int:
        if self._spec.token_version is not None:
            return self._spec.token_version
        client = self._spec.start_token
        keeps_2 = client is not None and client.version == 2 and self._dialect.keeps_version_2
        return 2 if keeps_2 else self._dialect.default_token_version

    def _make_events(self) -> MakeEvents:
        """Assemble what makes events of entries."""
        spec, dialect, shard_key = self._spec, self._dialect, self._images.shard_key
        relevant, version = Relevant(spec, dialect), self._version_of_each()
        pipeline = self._pipeline if self._pipeline is not None and self._filters_first() else None
        header_filter = pipeline.header_filter if pipeline else None
        transform = Transform(spec, dialect, version, header_filter, shard_key)
        reference = EventsOfEntries(relevant, Unwind(relevant, self._entry_at), transform)
        if AddImages.are_asked_for(spec.options):
            return reference  # images are looked up for what the events were made of
        compiled = compiled_events(
            reference,
            relevant,
            transform,
            shard_key,
            version=self.token_version,
            declined_until=self._end_of_client_version(),
            prefilter=prefilter_of(spec.stages) if pipeline else None,
        )
        return compiled or reference

    def _stages(self) -> Iterator[Stage]:
        """Assemble what becomes of the events."""
        client, pipeline = self._spec.start_token, self._pipeline
        yield self.invalidate
        if client is not None:
            yield SkipToPosition(client)
        if self._dialect.finds_position_last:
            yield from self._image_stages()
            yield from self._position_stages()
        else:
            yield from self._position_stages()
            yield from self._image_stages()
        if pipeline is not None and not pipeline.is_identity:
            yield UserStages(pipeline)
        splits = pipeline is not None and pipeline.splits_large_events
        yield Split(client) if splits else limit_size
        if self._spec.from_router:
            yield AddSortKey(self._dialect)

    def _position_stages(self) -> Iterator[Stage]:
        """Look for the position, when it is an event: 6.0 looks for it in what the user's filter leaves."""
        if self.position_check is not None:
            yield self.position_check

    def _image_stages(self) -> Iterator[Stage]:
        """Look images up, after as much of the user's filter as can do without them."""
        options, asked = self._spec.options, AddImages.are_asked_for(self._spec.options)
        before_position = self._starts_at_event() and self._dialect.finds_position_last
        if self._pipeline is not None and (asked or before_position):
            may_pass = self._pipeline.filter_without(AddImages.fields_of(options))
            if may_pass is not None:
                yield FilterEvents(may_pass)
        if asked:
            yield AddImages(options, self._dialect, self._images, self._entry_at)

    def _check_of_position(self) -> EnsurePositionPresent | None:
        """Look for the event of the position, unless a router does: another shard may have it."""
        client = self._spec.start_token
        if client is None or not self._starts_at_event() or self._spec.from_router:
            return None
        return EnsurePositionPresent(client)

    def _filters_first(self) -> bool:
        """Tell whether the user's filter may go before the search for the position."""
        return self._dialect.finds_position_last or not self._starts_at_event()

    def _starts_at_event(self) -> bool:
        return self._spec.start_token is not None and self._spec.start_token.kind is TokenKind.EVENT

    def _version_of_each(self) -> TokenVersion:
        client = self._spec.start_token
        if client is None or not self._keeps_version_of_client():
            return fixed_version(self.token_version)
        by_operation = self._dialect.keeps_token_version_by_operation
        return version_of_client(client, self.token_version, by_operation=by_operation)

    def _end_of_client_version(self) -> int:
        """Give the time until which tokens are of the client's version; 0 where they never are."""
        client = self._spec.start_token
        if client is None or not self._keeps_version_of_client():
            return 0
        return ClusterTime.from_timestamp(client.cluster_time)

    def _keeps_version_of_client(self) -> bool:
        """Tell whether tokens are of the client's version until its position is passed."""
        client, dialect = self._spec.start_token, self._dialect
        if client is None or client.version == self.token_version:
            return False
        return dialect.keeps_token_version if self._starts_at_event() else dialect.keeps_version_of_marks
