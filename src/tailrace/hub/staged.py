"""A channel behind another one: a user's stages, run on events that were made once for all.

Subscribers whose streams differ in nothing but their stages share the events before those. Where a filter can be tried
on the oplog's bytes a channel of its own is cheaper: most entries then never become events for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event, Stage, run_stages
from tailrace.engine.expression import Pipeline
from tailrace.engine.images import AddImages
from tailrace.engine.options import StreamSpec
from tailrace.engine.prefilter import prefilter_of
from tailrace.engine.split import limit_size, size_of
from tailrace.engine.stream import STAGES_SLICE
from tailrace.engine.user_stages import UserStages, quick_bytes
from tailrace.errors import ChangeStreamError
from tailrace.hub.channel import Channel
from tailrace.hub.event_log import EventLog
from tailrace.token.resume_token import ResumeToken

_NO_LIMIT: Final = 1 << 62


def may_be_staged(spec: StreamSpec, pipeline: Pipeline | None) -> bool:
    """Return whether a stream is best made by running its stages on the events of another."""
    if pipeline is None or pipeline.is_identity or pipeline.splits_large_events or spec.from_router:
        return False
    filters_early = pipeline.header_filter is not None or prefilter_of(spec.stages) is not None
    return not filters_early and not AddImages.are_asked_for(spec.options)


class StagedChannel(EventLog):
    """The events of a channel, as a user's stages leave them; `index` is the event of the base that is next."""

    def __init__(
        self, base: Channel, stages: Sequence[Mapping[str, Any]], pipeline: Pipeline, dialect: Dialect
    ) -> None:
        low, self.index = base.reached_and_end()
        super().__init__(low, base.max_bytes)
        self.base = base
        self._user_stages = UserStages(pipeline)
        self.is_costly = True
        self._quick_bytes = quick_bytes(stages)
        self._dialect = dialect

    def has(self, index: int) -> bool:
        """Return whether the events from an index on are there, or will come."""
        return super().has(index) and self.base.has(self.index)

    @property
    def has_data(self) -> bool:
        """Whether there is something to make events of."""
        return self.base.has_data or self.base.end > self.index or self.base.reached > self.reached

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of events are held here, beside those of the base."""
        return self._event_bytes

    @property
    def end_position(self) -> ResumeToken:
        """Where a stream stands that has ended with this channel."""
        return self.base.end_position

    def _make_events(self, *, only_quick: bool) -> bool:
        """Run the stages on what the base has made since."""
        if not only_quick:
            self.base.make_events()
        elif not self.base.make_events_without_waiting() or self.base.size_behind(self.index) > self._quick_bytes:
            return False
        if self.is_ended or self.error or self.is_broken:
            return True
        read = self.base.read(self.index, None, _NO_LIMIT)
        if read is None or (read.error and not read.events):
            # What the base cannot make, a stream of its own may: its stages may leave out what is too large.
            self.is_broken = True
            return True
        made, count, error = self._run_stages(read.events)
        is_all = count == len(read.events)
        self.index = read.end if is_all else self.index + count
        if isinstance(error, ChangeStreamError):
            self._append(made, self.reached, is_ended=False)
            message = error.message.removeprefix(self._dialect.first_batch_prefix)
            error.message = self._dialect.next_batch_prefix + message
            error.args = (error.message,)
            self.error = error
            return True
        if error is not None:
            raise error
        reached = read.reached if is_all else read.events[count].cluster_time - 1
        self._append(made, reached, is_ended=read.is_ended and is_all)
        return True

    def _run_stages(self, events: list[Event]) -> tuple[list[Event], int, Exception | None]:
        """Run the stages on events, for a while; give also of how many, and the error that was met."""
        stages: list[Stage] = [self._user_stages, limit_size]
        if size_of(events) <= self._quick_bytes:
            made, error = run_stages(stages, events)
            return list(made), len(events), error
        deadline = time.thread_time() + STAGES_SLICE
        all_made: list[Event] = []
        for count, event in enumerate(events, 1):
            made, error = run_stages(stages, [event])
            all_made += made
            if error is not None or time.thread_time() > deadline:
                return all_made, count, error
        return all_made, len(events), None
