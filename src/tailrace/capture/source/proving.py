"""A stream of the engine's that is compared with the server's own: all of it until it is trusted, then samples.

While a kind of event is unproved, events come from the server's own stream and the engine runs beside it. When all that
comes has matched often enough the engine takes over, behind the same token; it gives way again, before it hands the
event out, at the first event of a kind that is not trusted. So nothing is lost or repeated at either step.

`ProvingSource` is `source = "oplog"` as a producer has it: proved on unknown servers, sampled on known ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pymongo import MongoClient

from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.source import ClusterAccess, ComparableSource, Selection, Start, token_time
from tailrace.driver import Batch, token_of
from tailrace.engine.dialect import is_compared
from tailrace.errors import StreamRefused
from tailrace.event import EventBatch, EventStream
from tailrace.logs import get_logger
from tailrace.proof import MARK, Beside, Comparator, Comparison, Kind, TrustLedger, build_name

if TYPE_CHECKING:
    from tailrace.cluster import ClusterHub


SAMPLE: Final = 100
"""Events that are compared together: opening a stream for each alone would cost the server more than it saves."""
_BATCHES_FOR_A_SAMPLE: Final = 20


class Sampler:
    """Compares one in so many events of a stream."""

    def __init__(
        self, server: Callable[[Start], EventStream], ledger: TrustLedger, one_in: int, *, looks_up: bool
    ) -> None:
        """`server` opens the server's own stream, for a few events; one in 0 events is none."""
        self._open = server
        self._ledger = ledger
        self._one_in = one_in
        self._looks_up = looks_up
        self._unsampled = 0

    def finds_difference(self, start: Start, batch: Sequence[bytes]) -> bool:
        """Compare the first events of a batch that begins behind `start`, when a sample is due."""
        if not self._is_due(batch) or (start.token is None and start.time is None):
            return False
        events = batch[:SAMPLE]
        self._unsampled = max(0, self._unsampled - len(events) * self._one_in)
        try:
            stream = self._open(start)
            try:
                server = _first_events(stream, len(events))
            finally:
                stream.close()
        except Exception as error:
            _log.warning("sample_failed", error=repr(error))
            return False
        found = list(_sampled(server, events, Comparator(looks_up=self._looks_up)))
        self._ledger.note(found)
        return not all(each.is_same for each in found)

    def _is_due(self, events: Sequence[bytes]) -> bool:
        if not self._one_in or not events:
            return False
        self._unsampled += len(events)
        return self._unsampled >= self._one_in * SAMPLE


def _first_events(stream: EventStream, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _, batch in zip(range(_BATCHES_FOR_A_SAMPLE), stream.batches(), strict=False):
        found += batch.events
        if len(found) >= count:
            break
    return found[:count]


def _sampled(server: Sequence[bytes], engine: Sequence[bytes], comparator: Comparator) -> Iterator[Comparison]:
    """Compare event by event, up to the first difference: what follows it may be moved by it."""
    for left, right in zip(server, engine, strict=False):
        comparison = comparator.pair(left, right)
        yield comparison
        if not comparison.is_same:
            if token_of(left) != token_of(right):  # one of them may be missing on the other side
                yield Comparison(MARK, token_of(left), token_of(right), False)
            return


_log: Final = get_logger("tailrace.capture")

Open = Callable[[Start], EventStream]


class Side(Enum):
    """Where events come from."""

    SERVER = "server"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """How much has to match."""

    matches: int = 100
    """Events of a kind in a row before it comes from the engine."""
    sample_one_in: int = 1000
    """One in so many events of a trusted kind goes on being compared; 0 is none."""


class ProvingStream:
    """Gives the batches of one stream, from whichever side may be believed."""

    def __init__(
        self,
        start: Start,
        server: Open,
        engine: Open,
        ledger: TrustLedger,
        options: ProofOptions,
        *,
        looks_up: bool = False,
        sample: Open | None = None,
        on_side: Callable[[Side], object] = lambda _: None,
    ) -> None:
        """`server` and `engine` open the two streams; `sample` opens the server's for a few events.

        `on_side` is called with where events come from, whenever that changes.
        """
        self._start = start
        self._open_server = server
        self._open_engine = engine
        self._sampler = Sampler(sample or server, ledger, options.sample_one_in, looks_up=looks_up)
        self._ledger = ledger
        self._options = options
        self._looks_up = looks_up
        self._opened: EventStream | None = None
        self._beside: Beside | None = None
        self.side = Side.SERVER
        if ledger.may_serve:
            self._open_first_on_engine()
        if self.side is Side.SERVER:
            self._open(self.side, start)
        self._on_side = on_side
        on_side(self.side)

    def batches(self) -> Iterator[EventBatch]:
        """Give batch after batch, empty ones too."""
        start: Start | None = self._start
        while start is not None:
            if self.side is Side.ENGINE:
                start = yield from self._from_engine(start)
                self.side = Side.SERVER
            else:
                start = yield from self._from_server(start)
                self.side = Side.ENGINE
            self.close()
            if start is not None:
                self._on_side(self.side)
                _log.info("events_come_from", side=self.side.value, server=self._ledger.server)

    def close(self) -> None:
        """Free the cursors on the server."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    def _open_first_on_engine(self) -> None:
        try:
            self._open(Side.ENGINE, self._start)
            self.side = Side.ENGINE
        except Exception as error:
            self._give_way(error)

    def _give_way(self, error: Exception) -> None:
        """Raise an error of the engine, unless the server's own stream is there to go on with."""
        if self._ledger.presumes and not self._ledger.has_doubts:
            raise error
        _log.warning("engine_failed", error=repr(error), server=self._ledger.server)

    def _open(self, side: Side, start: Start) -> EventStream:
        self._opened = (self._open_engine if side is Side.ENGINE else self._open_server)(start)
        return self._opened

    def _opened_at(self, side: Side, start: Start) -> EventStream:
        """Give the stream that was opened when this one was made, and later one of its own."""
        if start is self._start and self._opened is not None:
            return self._opened
        return self._open(side, start)

    # --- from the server, with the engine beside

    def _from_server(self, start: Start) -> Generator[EventBatch, None, Start | None]:
        """Give the server's events until the engine may go on; gives where, or None at the end of the stream."""
        stream = self._opened_at(Side.SERVER, start)
        began = start
        beside = self._beside = Beside(
            lambda token: self._open_engine(began if token is None else Start(token)),
            self._ledger,
            looks_up=self._looks_up,
            begins_now=start.token is None and start.time is None,
        )
        calm = 0
        for batch in stream.batches():
            yield batch
            beside.follow(batch)
            calm = self._calm(batch.events, calm)
            if batch.token is None:
                continue
            if calm >= self._options.matches and beside.is_caught_up and self._ledger.may_serve:
                return Start(batch.token)
        return None

    def _calm(self, events: Sequence[bytes], before: int) -> int:
        """Count the last events in a row that the engine might have given."""
        for count, event in enumerate(reversed(events)):
            if not self._ledger.trusts(Kind.of(event)):
                return count
        return before + len(events)

    # --- from the engine

    def _from_engine(self, start: Start) -> Generator[EventBatch, None, Start | None]:
        """Give the engine's events up to one that is not trusted; gives where that is, or None at the end."""
        try:
            for batch in self._opened_at(Side.ENGINE, start).batches():
                index = self._untrusted_at(start, batch)
                if index is None and self._ledger.trusts_position(batch.token):
                    yield batch
                    start = start if batch.token is None else Start(batch.token)
                    continue
                trusted = batch.events[:index]
                if trusted:
                    start = Start(token_of(trusted[-1]))
                    yield Batch(trusted, start.token, batch.operation_time)
                return start if start.token or start.time else _before(batch, index)
        except Exception as error:
            self._give_way(error)
            return start
        return None

    def _untrusted_at(self, start: Start, batch: EventBatch) -> int | None:
        index = self._ledger.untrusted_at(batch.events)
        return 0 if index is None and self._sampler.finds_difference(start, batch.events) else index


def _before(batch: EventBatch, index: int | None) -> Start:
    """Give where the first batch of a stream that began now stands, up to an event, or up to its own position."""
    token = batch.token if index is None else token_of(batch.events[index])
    return Start() if token is None else Start(time=token_time(token))


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
        """`on_side` is called with where events come from, whenever that changes."""
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
            self.client, self.selection, cluster, self._make_ledger, self._options, on_side=self._on_side
        )
        strict._ledger = self._ledger
        return strict
