"""`source = "oplog"` as a producer has it: the engine, proved on servers that nobody compared, sampled on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pymongo import MongoClient

from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.proving import SAMPLE, ProofOptions, ProvingStream, Side
from tailrace.capture.source.source import ChangeStreamSource, ClusterAccess, Selection, Start
from tailrace.engine.dialect import is_compared
from tailrace.errors import StreamRefused
from tailrace.event import EventStream
from tailrace.proof import TrustLedger, build_name

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
    def side(self) -> Side | None:
        """Where events come from at the moment; None before a stream was opened."""
        return None if self._stream is None else self._stream.side

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a stream that compares; on a cluster, whose routers' streams nobody has compared, the engine's alone."""
        ledger = self.ledger
        if self.is_cluster:
            if not ledger.presumes:
                # What stays with the server would have to come from a mongos, whose merged stream nobody could compare:
                # between it and the engine's a switch might lose or repeat events of one cluster time.
                raise StreamRefused(
                    f"nobody has compared the engine with a sharded MongoDB {ledger.server}",
                    hint="Set capture.source to change-stream; `tailrace engine prove` compares shard by shard.",
                )
            return super().open(start, one_by_one=one_by_one, without_images=without_images)
        server = ChangeStreamSource(self.client, self.selection)
        if one_by_one or without_images:
            if ledger.presumes and not ledger.has_doubts:
                return super().open(start, one_by_one=one_by_one, without_images=without_images)
            return server.open(start, one_by_one=one_by_one, without_images=without_images)
        if ledger.presumes and not ledger.has_doubts and not self._options.sample_one_in:
            return super().open(start)
        self._stream = ProvingStream(
            start,
            server.open,
            super().open,
            ledger,
            self._options,
            looks_up=self.selection.full_document == _LOOKS_UP,
            sample=ChangeStreamSource(self.client, self.selection, SAMPLE).open,
            on_side=self._on_side,
        )
        return self._stream

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
