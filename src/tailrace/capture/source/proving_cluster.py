"""The engine proved on a sharded cluster: each shard's part of the merged stream beside the shard's own stream.

What may not come from the engine comes from the shard itself, and both are merged here in the same way. So a switch
concerns one shard, behind one of its tokens, and no stream that a mongos has merged is ever gone over to.

The shards of a known release are read from their oplogs; samples of each are read from its own stream too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, cast

from tailrace import server_codes
from tailrace.capture.source.proving import SAMPLE, ProofOptions, ProvingStream, Sampler, Side
from tailrace.capture.source.source import ComparableSource, Selection, Start
from tailrace.cluster import ClusterHub
from tailrace.cluster.merged import ShardPart
from tailrace.cluster.shard_stream import ServersPart, ServerStream, stream_of
from tailrace.cluster.topology import CONFIG
from tailrace.engine.options import StreamSpec, read_token
from tailrace.errors import ChangeStreamError
from tailrace.hub.batch import Batch as HubBatch
from tailrace.hub.event_log import EventLog
from tailrace.proof import TrustLedger
from tailrace.token import ResumeToken

_AWAIT_MS: Final = 50
"""How long an idle shard's own stream waits for events, while the others are not read."""
_EVENTS: Final = 1_000


class ProvingClusterHub(ClusterHub):
    """A cluster whose shards serve what the engine may not."""

    _has_unknown_builds = True

    def __init__(
        self,
        uri: str,
        selection: Selection,
        ledger: TrustLedger,
        options: ProofOptions,
        on_side: Callable[[Side], object],
        **hub_options: Any,
    ) -> None:
        """Take what `ClusterHub` does; `on_side` is called when all shards come from the engine, and when not."""
        self._selection = replace(selection, max_await_ms=_AWAIT_MS)
        self._ledger = ledger
        self._proof = options
        self._on_side = on_side
        self._sides: dict[str, Side] = {}
        super().__init__(uri, unproved=True, **hub_options)

    def open_part(self, shard: str, spec: StreamSpec, latest: int, now: datetime) -> ShardPart:
        """Open a shard's part: from the shard itself, or from the engine where that is trusted."""
        if shard == CONFIG and self.follows_config:
            return super().open_part(shard, spec, latest, now)
        client = self.client(shard)
        stream = ProvingStream(
            _start_of(spec),
            ComparableSource(client, self._selection, _EVENTS).open,
            lambda start: stream_of(
                self.hub(shard).subscribe(self._begun(spec, start), latest=latest, now=now), _EVENTS
            ),
            self._ledger,
            self._proof,
            sample=ComparableSource(client, self._selection, SAMPLE).open,
            on_side=lambda side: self._changed(shard, side),
        )
        return _ProvingPart(stream, spec)

    def advance_to(self, time: int) -> None:
        """Have all shards come behind a time: a shard's own stream stands at its newest entry, not behind it."""
        super().advance_to(time + 1)

    def _begun(self, spec: StreamSpec, start: Start) -> StreamSpec:
        after = None if start.token is None else ResumeToken.parse(start.token)
        options = replace(
            spec.options, start_after=after, start_at_operation_time=None if after is not None else start.time
        )
        return replace(spec, options=options, start_token=read_token(options, self.dialect))

    def _changed(self, shard: str, side: Side) -> None:
        self._sides[shard] = side
        self._on_side(Side.ENGINE if set(self._sides.values()) == {Side.ENGINE} else Side.SERVER)


class _ProvingPart(ServersPart):
    """One shard's part, read from whichever side may be believed."""

    has_data = True
    channel: EventLog | None = None

    def __init__(self, stream: ProvingStream, spec: StreamSpec) -> None:
        super().__init__(spec)
        self._stream = stream
        self._batches = stream.batches()

    def poll(self, max_events: int | None) -> HubBatch:
        """Give the next batch of either side; it has as many events as that side gives at once."""
        batch = next(self._batches, None)
        return self._batch([], None) if batch is None else self._batch(batch.events, batch.token)

    def close(self) -> None:
        """Free the cursors of both sides."""
        self._stream.close()


def _start_of(spec: StreamSpec) -> Start:
    token = spec.options.start_after
    return Start(None if token is None else token.to_bson(), spec.options.start_at_operation_time)


class SampledClusterHub(ClusterHub):
    """A cluster whose shards' events are sampled."""

    def __init__(self, uri: str, ledger: TrustLedger, options: ProofOptions, **hub_options: Any) -> None:
        """Take what `ClusterHub` does."""
        self._ledger = ledger
        self._proof = options
        super().__init__(uri, **hub_options)

    def open_part(self, shard: str, spec: StreamSpec, latest: int, now: datetime) -> ShardPart:
        """Open a shard's part.

        Servers before 6.0 do not log the shard keys of what is inserted: what their streams show of them depends on
        the moment at which they are read, so nothing is compared there.
        """
        part = super().open_part(shard, spec, latest, now)
        if (shard == CONFIG and self.follows_config) or not self.dialect.since(6, 0):
            return part
        client = self.client(shard)
        sampler = Sampler(
            lambda start: ServerStream(client, _behind(spec, start), _AWAIT_MS),
            self._ledger,
            self._proof.sample_one_in,
            looks_up=spec.options.full_document == "updateLookup",
        )
        return cast(ShardPart, _SampledPart(part, sampler))


class _SampledPart:
    """One shard's part, of which samples are compared."""

    def __init__(self, part: ShardPart, sampler: Sampler) -> None:
        self._part = part
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        """Be the part in everything but `poll`."""
        return getattr(self._part, name)

    def poll(self, max_events: int | None) -> HubBatch:
        """Give the part's next batch; a difference in it ends the whole stream, which goes on with the shards' own."""
        start = Start(self._part.position.to_bson())
        batch = self._part.poll(max_events)
        if self._sampler.finds_difference(start, [event.raw for event in batch.events]):
            message = "the engine's events are not those of a shard; the stream goes on with what the shards give"
            raise ChangeStreamError(message, server_code=server_codes.INTERRUPTED_AT_SHUTDOWN)
        return batch


def _behind(spec: StreamSpec, start: Start) -> StreamSpec:
    assert start.token is not None
    after = ResumeToken.parse(start.token)
    return replace(spec, options=replace(spec.options, start_after=after, start_at_operation_time=None))
