"""The shards of a known release: samples of each are read from its own change stream too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, cast

from tailrace import server_codes
from tailrace.capture.source.proving import ProofOptions
from tailrace.capture.source.sampling import Sampler
from tailrace.capture.source.source import Start
from tailrace.cluster import ClusterHub
from tailrace.cluster.merged import ShardPart
from tailrace.cluster.shard_stream import ServerStream
from tailrace.cluster.topology import CONFIG
from tailrace.driver import Batch
from tailrace.engine.options import StreamSpec
from tailrace.errors import ChangeStreamError
from tailrace.event import EventBatch
from tailrace.hub.batch import Batch as HubBatch
from tailrace.proof import TrustLedger
from tailrace.token import ResumeToken

_AWAIT_MS: Final = 50


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
            lambda start: _Sample(ServerStream(client, _behind(spec, start))),
            self._ledger,
            self._proof.sample_one_in,
            looks_up=spec.options.full_document == "updateLookup",
        )
        return cast(ShardPart, _SampledPart(part, sampler))


class _Sample:
    """A shard's own stream, for a few events."""

    def __init__(self, stream: ServerStream) -> None:
        self._stream = stream

    def batches(self) -> Iterator[EventBatch]:
        """Give reply after reply."""
        while not self._stream.is_closed:
            yield Batch(*self._stream.next(_AWAIT_MS), None)

    def close(self) -> None:
        """Free the cursor."""
        self._stream.close()


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
