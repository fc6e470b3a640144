"""Whether the engine may serve a stream, on an upstream that it was never compared with; samples on all others.

While the engine is on trial, the upstream serves its change streams itself, through the gateway, and a trial runs
beside: the upstream's own stream of everything against the hub's. A stream that the engine serves ends with an error
that drivers resume after, before it hands out an event of a kind that is not trusted; the upstream then goes on.

Of a sharded cluster each shard is on trial, and the shards' own streams serve, merged as the engine's events are: no
router is needed, and a client that goes over meets the same order.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.cluster import ClusterHub
from tailrace.cluster.shard_stream import ServerStream, stream_of
from tailrace.cluster.topology import CONFIG
from tailrace.engine.dialect import is_compared
from tailrace.engine.live import operation_time, read_spec
from tailrace.engine.options import SPLIT, ChangeStreamOptions, StreamSpec
from tailrace.errors import TailraceError
from tailrace.event import EventStream
from tailrace.hub import Batch, Hub
from tailrace.logs import get_logger
from tailrace.owned import OwnedThread
from tailrace.policy import NO_POLICY, Policy
from tailrace.proof import Calm, LedgerFile, Trial, TrustLedger, build_name
from tailrace.settings import EngineSettings

_log: Final = get_logger()
_AWAIT_MS: Final = 500
_SAMPLE: Final = 100
_SECONDS_FOR_A_SAMPLE: Final = 30.0
_POLL_SECONDS: Final = 1.0
_PLAIN: Final = ChangeStreamOptions()
_LOOKS_UP: Final = "updateLookup"


class Proof(Protocol):
    """Says what the engine may serve."""

    def serves(self, spec: StreamSpec) -> bool:
        """Return whether the engine may serve a stream; else the upstream does."""

    def by_shards(self, spec: StreamSpec) -> StreamSpec | None:
        """Give the stream that the shards themselves serve in place of the engine; None where the upstream does."""

    def allows(self, spec: StreamSpec, batch: Batch) -> bool:
        """Return whether a batch of such a stream may be handed out."""

    def close(self) -> None:
        """End what runs beside."""


class Believed:
    """For upstreams that are not compared: the hubs of tests."""

    def serves(self, spec: StreamSpec) -> bool:
        """Serve everything."""
        return True

    def by_shards(self, spec: StreamSpec) -> StreamSpec | None:
        """Leave to the upstream what the engine does not know."""
        return None

    def allows(self, spec: StreamSpec, batch: Batch) -> bool:
        """Allow everything."""
        return True

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The options that change what is in an event."""

    full_document: str
    full_document_before_change: str

    @classmethod
    def of(cls, spec: StreamSpec) -> Profile | None:
        """Give the profile of a stream; None for one with stages or options that no trial has."""
        options = spec.options
        others = (
            spec.stages,
            spec.token_version,
            options.show_expanded_events,
            options.show_system_events,
            options.show_migration_events,
            options.show_raw_update_description,
            options.match_collection_uuid_for_update_lookup,
        )
        return None if any(others) else cls(options.full_document, options.full_document_before_change)

    @property
    def looks_up(self) -> bool:
        """Whether documents are read when an event is made."""
        return self.full_document == _LOOKS_UP

    @property
    def name(self) -> str:
        """A name for a ledger."""
        return f"{self.full_document}-{self.full_document_before_change}"


class EngineProof:
    """One trial for each profile that clients ask for."""

    def __init__(
        self,
        hub: Hub | ClusterHub,
        client: MongoClient[Any],
        make_ledger: Callable[[Profile], TrustLedger],
        *,
        matches: int,
        sample_one_in: int,
    ) -> None:
        self._hub = hub
        self._builds = _builds(hub, client)
        self._client = client
        self._make_ledger = make_ledger
        self._matches = matches
        self._one_in = sample_one_in
        self._lock = threading.Lock()
        self._trials: dict[Profile, _RunningTrial] = {}
        self._plain = self._trial(Profile(_PLAIN.full_document, _PLAIN.full_document_before_change))

    @property
    def ledgers(self) -> list[TrustLedger]:
        """The ledgers of all trials."""
        with self._lock:
            return [trial.ledger for trial in self._trials.values()]

    def counts(self) -> dict[tuple[str, str], int]:
        """Give how many events were identical and different, by operation and kind of namespace."""
        found: Counter[tuple[str, str]] = Counter()
        for ledger in self.ledgers:
            found.update(ledger.counts())
        return dict(found)

    def by_trust(self) -> dict[str, int]:
        """Give how many kinds are believed, how many not yet, and how many no more."""
        found: Counter[str] = Counter()
        for ledger in self.ledgers:
            found.update(ledger.by_trust())
        return dict(found)

    @property
    def is_serving(self) -> bool:
        """Whether plain streams come from the engine."""
        return self._plain.is_caught_up

    def serves(self, spec: StreamSpec) -> bool:
        """Return whether the engine may serve a stream: one that asks for what nobody compared begins a trial of it."""
        trial = self._judge(spec)
        return trial if isinstance(trial, bool) else trial.is_caught_up

    def _judge(self, spec: StreamSpec) -> bool | _RunningTrial:
        """Give what decides on a stream: a trial, or at once where all is believed, or nothing of it can be tried."""
        is_cluster = isinstance(self._hub, ClusterHub)
        if is_cluster and not _builds(self._hub, self._client) <= self._builds:
            return False  # a shard has joined whose build was not among those at the start
        ledger = self._plain.ledger
        if ledger.presumes and not ledger.has_doubts:
            return True
        profile = Profile.of(spec)
        return False if profile is None or (profile.looks_up and is_cluster) else self._trial(profile)

    def by_shards(self, spec: StreamSpec) -> StreamSpec | None:
        """Give a cluster's stream as its shards serve it; None for what they cannot give as a mongos would.

        A shard looks documents up on itself alone, and they may have moved; and who asks as a router, or for a version
        of tokens, asks for what is no option of a stream.
        """
        has_version = spec.token_version is not None and not any(SPLIT in stage for stage in spec.stages)
        asks_for_more = spec.from_router or has_version
        if not isinstance(self._hub, ClusterHub) or asks_for_more or spec.options.full_document == _LOOKS_UP:
            return None
        return replace(spec, served_by_shards=True)

    def allows(self, spec: StreamSpec, batch: Batch) -> bool:
        """Return whether all events of a batch, and its position, are trusted; if not, the trial goes on."""
        trial = spec.served_by_shards or self._judge(spec)
        if isinstance(trial, bool):
            return trial
        events = [event.raw for event in batch.events]
        if trial.ledger.untrusted_at(events) is None and trial.ledger.trusts_position(batch.token):
            return True
        trial.unsettle()
        return False

    def close(self) -> None:
        """End all trials."""
        with self._lock:
            trials = list(self._trials.values())
        for trial in trials:
            trial.close()

    def _trial(self, profile: Profile) -> _RunningTrial:
        with self._lock:
            known = self._trials.get(profile)
            if known is None:
                known = _RunningTrial(self._sides(profile), self._make_ledger(profile), self._matches, self._one_in)
                self._trials[profile] = known
        return known

    def _sides(self, profile: Profile) -> list[_Sides]:
        """Give what is compared: the replica set, or each shard of a cluster."""
        hub = self._hub
        if not isinstance(hub, ClusterHub):
            return [_Sides(hub, self._client, profile)]
        return [_Sides(hub.hub(name), hub.client(name), profile) for name in hub.shards if name != CONFIG]


def _builds(hub: Hub | ClusterHub, client: MongoClient[Any]) -> frozenset[str]:
    return frozenset(map(build_name, hub.builds if isinstance(hub, ClusterHub) else [client.server_info()]))


def engine_proof(
    hub: Hub | ClusterHub, client: MongoClient[Any], settings: EngineSettings, policy: Policy = NO_POLICY
) -> EngineProof:
    """Put the engine on trial before an upstream, or have it sampled; what is found is kept in files."""
    builds = _builds(hub, client)
    server, presumes = ", ".join(sorted(builds)), all(is_compared(build.partition(" ")[0]) for build in builds)

    def ledger(profile: Profile) -> TrustLedger:
        kept = LedgerFile(settings.folder, f"gateway-{profile.name}")
        return TrustLedger(
            server,
            settings.matches,
            presumes=presumes,
            saved=kept.read(),
            save=kept.save,
            on_difference=kept.keep,
            policy=policy,
        )

    # What streams of older shards show of shard keys depends on the moment at which they are read.
    is_steady = isinstance(hub, Hub) or hub.dialect.since(6, 0)
    one_in = settings.sample_one_in if is_steady else 0
    return EngineProof(hub, client, ledger, matches=settings.matches, sample_one_in=one_in)


class _RunningTrial:
    """Compares until all that comes is trusted, and now and then afterwards: each shard in a thread of its own."""

    def __init__(self, sides: Sequence[_Sides], ledger: TrustLedger, matches: int, one_in: int) -> None:
        self.ledger = ledger
        self._calm = Calm()
        self._matches = matches
        self._one_in = one_in
        self._is_caught_up = threading.Event()
        self._stopping = threading.Event()
        if ledger.presumes and not ledger.has_doubts:
            self._is_caught_up.set()
        self._threads = [
            OwnedThread(partial(self._run, each), name="engine-trial", on_death=lambda _: _POLL_SECONDS)
            for each in sides
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_caught_up(self) -> bool:
        """Whether all that came last was of kinds that are trusted."""
        return self._is_caught_up.is_set() and self.ledger.may_serve

    def unsettle(self) -> None:
        """Compare everything again: something has come that is not trusted."""
        self._calm.events = 0
        self._is_caught_up.clear()

    def close(self) -> None:
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _run(self, sides: _Sides) -> None:
        read = sides.hub.counts.entries
        while not self._stopping.is_set():
            try:
                read = self._run_once(sides, read)
            except (PyMongoError, TailraceError) as error:
                _log.warning("engine_trial_interrupted", error=str(error))
                self._stopping.wait(_POLL_SECONDS)

    def _run_once(self, sides: _Sides, read: int) -> int:
        """Compare what is due; `read` and what is given are the oplog entries that had been read at the last sample."""
        entries = sides.hub.counts.entries
        if not self._is_caught_up.is_set():
            calm = self._calm
            is_over = self._is_caught_up.is_set
            self._compare(sides, calm, lambda: is_over() or calm.events >= self._matches, seconds=math.inf)
            if calm.events >= self._matches:
                self._is_caught_up.set()
        elif self._one_in and entries - read >= _SAMPLE * self._one_in:
            calm = Calm()
            self._compare(sides, calm, lambda: calm.events >= _SAMPLE, seconds=_SECONDS_FOR_A_SAMPLE)
            return entries
        else:
            self._stopping.wait(_POLL_SECONDS)
        return read

    def _compare(self, sides: _Sides, calm: Calm, is_enough: Callable[[], bool], *, seconds: float) -> None:
        """Compare until that is enough, or so many seconds have passed."""
        trial = Trial(sides.server, sides.engine, lambda each: each, self.ledger, looks_up=sides.looks_up, calm=calm)
        trial.run(seconds, is_over=lambda: self._stopping.is_set() or is_enough())


class _Sides:
    """Opens the two streams of a trial: everything, with the options of a profile."""

    def __init__(self, hub: Hub, client: MongoClient[Any], profile: Profile) -> None:
        self.hub = hub
        self._client = client
        self._options = {
            "fullDocument": _unless_default(profile.full_document, _PLAIN.full_document),
            "fullDocumentBeforeChange": _unless_default(
                profile.full_document_before_change, _PLAIN.full_document_before_change
            ),
        }
        self.looks_up = profile.looks_up

    def server(self, token: bytes | None) -> EventStream:
        """Open the upstream's own stream."""
        return ServerStream(self._client, self._spec(token), _AWAIT_MS)

    def engine(self, token: bytes | None) -> EventStream:
        """Open the hub's."""
        latest = operation_time(self._client)
        return stream_of(self.hub.subscribe(self._spec(token), latest=latest, now=datetime.now(UTC)))

    def _spec(self, token: bytes | None) -> StreamSpec:
        start = None if token is None else RawBSONDocument(token)
        return read_spec(self._client, [], {**self._options, "startAfter": start}, self.hub.dialect)


def _unless_default(value: str, default: str) -> str | None:
    return None if value == default else value
