"""`source = "oplog"` as a producer has it: the engine, proved on servers that nobody compared, sampled on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pymongo import MongoClient

from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.proving import SAMPLE, ProofOptions, ProvingStream, Side
from tailrace.capture.source.source import ClusterAccess, ComparableSource, Selection, Start
from tailrace.engine.dialect import is_compared
from tailrace.errors import StreamRefused
from tailrace.event import EventStream
from tailrace.proof import TrustLedger, build_name

if TYPE_CHECKING:
    from tailrace.cluster import ClusterHub

_LOOKS_UP: Final = "updateLookup"

MakeLedger = Callable[[str, bool], TrustLedger]
"""Makes the ledger of a build, which is presumed to be right when its version was compared before."""


class ProvingSource(OplogSource):
    """The engine on the oplog beside the server's own stream."""

    def __init__(
        self,
        client: MongoClient[Any],
        selection: Selection,
        cluster: ClusterAccess,
        ledger: MakeLedger,
        options: ProofOptions,
        *,
        on_side: Callable[[Side], object] = lambda _: None,
    ) -> None:
        """`on_side` is told where events come from, whenever that changes."""
        super().__init__(client, selection, cluster, unproved=True)
        self._make_ledger = ledger
        self._options = options
        self._on_side = on_side
        self._ledger: TrustLedger | None = None
        self._stream: ProvingStream | None = None

    @property
    def ledger(self) -> TrustLedger:
        """What is known of the server that is read; it is asked for its build when this is first wanted."""
        if self._ledger is None:
            build = self.client.server_info()
            self._ledger = self._make_ledger(build_name(build), is_compared(build["version"]))
        return self._ledger

    @property
    def _compares_shards(self) -> bool:  # type: ignore[override]
        return self.is_cluster and not self._is_believed

    @property
    def _is_believed(self) -> bool:
        """Whether the release was compared, and no sample was different."""
        return self.ledger.presumes and not self.ledger.has_doubts

    def _cluster_hub(self, uri: str, **options: Any) -> ClusterHub:
        """Make the hub of all shards, with their own streams beside the engine where nobody has compared them."""
        if not self._compares_shards:
            if not self._options.sample_one_in:
                return super()._cluster_hub(uri, **options)
            from tailrace.capture.source.proving_cluster import SampledClusterHub

            return SampledClusterHub(uri, self.ledger, self._options, **options)
        from tailrace.capture.source.proving_cluster import ProvingClusterHub

        return ProvingClusterHub(uri, self.selection, self.ledger, self._options, self._on_side, **options)

    @property
    def side(self) -> Side | None:
        """Where events come from at the moment; None before a stream was opened."""
        return None if self._stream is None else self._stream.side

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a stream that compares; that of a cluster does so shard by shard, on releases that nobody compared."""
        ledger = self.ledger
        if self.is_cluster:
            if not self._is_believed:
                self._check_unknown_cluster(one_by_one or without_images)
            return super().open(start, one_by_one=one_by_one, without_images=without_images)
        server = ComparableSource(self.client, self.selection)
        if one_by_one or without_images:
            if self._is_believed:
                return super().open(start, one_by_one=one_by_one, without_images=without_images)
            return server.open(start, one_by_one=one_by_one, without_images=without_images)
        if self._is_believed and not self._options.sample_one_in:
            return super().open(start)
        self._stream = ProvingStream(
            start,
            server.open,
            super().open,
            ledger,
            self._options,
            looks_up=self.selection.full_document == _LOOKS_UP,
            sample=ComparableSource(self.client, self.selection, SAMPLE).open,
            on_side=self._on_side,
        )
        return self._stream

    def _check_unknown_cluster(self, is_large: bool) -> None:
        """Refuse what a shard's own stream cannot give as a mongos would."""
        server = self.ledger.server
        if self.selection.full_document == _LOOKS_UP:
            raise StreamRefused(
                f"a shard of a MongoDB {server} cluster, whose own stream serves while the engine proves itself, looks "
                "documents up on itself alone, where they may not be any more",
                hint="Set capture.full_document to whenAvailable, or capture.source to change-stream.",
            )
        if is_large:
            raise StreamRefused(
                f"an event over 16 MB cannot be read from a MongoDB {server} cluster that nobody has compared",
                hint="Set capture.source to change-stream.",
            )

    def in_strict_order(self) -> ProvingSource:
        """Let the shards wait for each other."""
        cluster = replace(self._cluster, order="strict")
        strict = ProvingSource(
            self.client,
            self.selection,
            cluster,
            self._make_ledger,
            self._options,
            on_side=self._on_side,
        )
        strict._ledger = self._ledger
        return strict
