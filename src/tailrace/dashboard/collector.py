"""Looks at everything, every second: readings become the state that the page shows and the points of its charts."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tailrace import __version__, kernel
from tailrace.dashboard.answers import ObservedEvent
from tailrace.dashboard.sources import PolledSource, Reading, reason_of
from tailrace.dashboard.sources.change_stream import ChangeStreamSource
from tailrace.dashboard.sources.dead_letters import dead_letters_source
from tailrace.dashboard.sources.features import FeaturesSource
from tailrace.dashboard.sources.job_dead_letters import FeatureDeadLetters, WarehouseDeadLetters
from tailrace.dashboard.sources.metrics_text import Rates
from tailrace.dashboard.sources.oplog import OplogSource
from tailrace.dashboard.sources.positions import PositionsSource
from tailrace.dashboard.sources.producers import GatewaySource, ProducerSource
from tailrace.dashboard.sources.tables import TablesSource
from tailrace.dashboard.sources.topics import TopicsSource
from tailrace.dashboard.values import Actions, Colour, Condition, DeadLetters, SourceStatus, State, Table
from tailrace.dashboard.view import conditions
from tailrace.dashboard.view.flow import Parts, flow_of, is_configured
from tailrace.dashboard.view.history import HistoryBook, points_of
from tailrace.dashboard.view.job_view import drift_of, feature_sets_of, gaps_of, gateways_of, newest_time, tables_of
from tailrace.dashboard.view.latencies import LatencyBook
from tailrace.dashboard.view.live_events import EventRing
from tailrace.dashboard.view.observed import Observed
from tailrace.dashboard.view.stream_view import shards_of, streams_of, windows_of
from tailrace.logs import get_logger
from tailrace.monitor import Consumer, DashboardMetrics, Thresholds
from tailrace.owned import OwnedThread
from tailrace.policy.configured import policy_of
from tailrace.settings import Settings
from tailrace.warehouse import TableKind, TableState

_log = get_logger("tailrace.dashboard")
_SECONDS_OF_A_POINT = 30.0
_SECONDS_TO_END = 2.0
_SECONDS_OF_TABLE_RATE = 60.0
_SECONDS_BETWEEN_POLLS = 3.0
Listener = Callable[[State], None]


class Collector:
    """Owns the sources, the history and the live events; `state` is the newest picture."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._policy = policy_of(settings)
        self._clock = clock
        self.history = HistoryBook()
        self.events = EventRing(settings.dashboard.events_mb * 2**20)
        self.latencies = LatencyBook()
        self._passed = PassedEvents()
        self._rates = Rates()
        self._listeners: list[Listener] = []
        self._stop = threading.Event()
        self._thread = OwnedThread(self._run, name="tailrace-dashboard", on_death=lambda _: 1.0)
        self._open_sources()
        self.state: State = self.collect()

    def _open_sources(self) -> None:
        settings, dashboard = self._settings, self._settings.dashboard
        capture = settings.capture
        to_kafka = capture.sink.get_secret_value().startswith("kafka:")
        self._positions = PolledSource(PositionsSource(capture.position_store.get_secret_value()))
        self._oplog = PolledSource(OplogSource(settings, self._consumers))
        self._producers = [PolledSource(ProducerSource(url)) for url in dashboard.producers]
        self._gateways = [PolledSource(GatewaySource(url)) for url in dashboard.gateways]
        self._topics = PolledSource(TopicsSource(capture, self._add_event), 0.1) if to_kafka else None
        self._changes = None if to_kafka else PolledSource(ChangeStreamSource(settings, self._add_event), 0.1)
        self.redis = FeaturesSource(settings.features.redis_url.get_secret_value(), dashboard.feature_sets)
        self._features = PolledSource(self.redis)
        self._tables = PolledSource(TablesSource(settings.warehouse, settings.spark.config), 2.0)
        self._dead_letters = self._dead_letter_sources()

    def _dead_letter_sources(self) -> list[PolledSource[DeadLetters]]:
        settings = self._settings
        of_capture = dead_letters_source(settings.capture)
        of_features = PolledSource(FeatureDeadLetters(settings.features.dead_letters), _SECONDS_BETWEEN_POLLS)
        tables = WarehouseDeadLetters(str(settings.warehouse.folder), self._dead_letters_in_table)
        of_jobs = [of_features, PolledSource(tables, _SECONDS_BETWEEN_POLLS)]
        return [PolledSource(of_capture, _SECONDS_BETWEEN_POLLS), *of_jobs] if of_capture else of_jobs

    def _dead_letters_in_table(self) -> int | None:
        """Give how many rows the warehouse's table of dead letters has."""
        tables = self._tables.reading().value
        return None if tables is None else sum(one.rows for one in tables if one.kind is TableKind.DEAD_LETTERS)

    @property
    def sources(self) -> list[PolledSource[Any]]:
        """Everything that is polled."""
        maybe = [self._topics, self._changes]
        always: list[PolledSource[Any]] = [self._oplog, self._positions, *self._producers, self._features, self._tables]
        return [*always, *self._gateways, *(each for each in maybe if each is not None), *self._dead_letters]

    def start(self) -> None:
        """Begin to poll."""
        for source in self.sources:
            source.start()
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        for source in self.sources:
            source.stop()
        deadline = time.monotonic() + _SECONDS_TO_END
        for source in self.sources:
            source.join(max(0.0, deadline - time.monotonic()))
        self._thread.join(_SECONDS_TO_END)

    def listen(self, listener: Listener) -> None:
        """Call this with every new state, from the collector's thread."""
        self._listeners.append(listener)

    def producer_url(self, location: str | None) -> str | None:
        """Give the endpoint that is shown as `location`; of a single producer also without a location."""
        sources = [watched.source for watched in self._producers]
        found = [each for each in sources if isinstance(each, ProducerSource) and location in (each.location, None)]
        return found[0].url if len(found) == 1 or (found and location is not None) else None

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self.state = self.collect()
                self.history.add(self.state.at, self.state.points)
                for listener in self._listeners:
                    listener(self.state)
            except Exception as error:
                _log.exception("state_not_made", reason=reason_of(error))
            self._stop.wait(max(0.05, 1.0 - (time.monotonic() - started)))

    def collect(self) -> State:
        """Make the state of this moment out of the newest readings."""
        observed = self._observed()
        self._measure(observed)
        settings, rates, now = self._settings, self._rates, observed.now
        states: Sequence[TableState] = observed.tables.value or []
        streams, gateways = streams_of(observed, rates, self._policy), gateways_of(observed, rates)
        features = feature_sets_of(observed, settings.monitor, self.latencies.newest("redis"))
        tables, latency = tables_of(states), self.latencies.summary(now)
        parts = Parts(
            streams, gateways, features, tables, latency, self._topic_rate(observed), self._feature_rate(observed),
            _table_rate(tables, now),
        )  # fmt: skip
        flow = flow_of(observed, parts, settings)
        jobs = {f"features {one.name}": one.as_of for one in features if one.as_of is not None}
        kept = [table for table in tables if table.kind in (TableKind.MIRROR, TableKind.HISTORY)]
        jobs |= {f"table {one.name}": one.cluster_time for one in kept if one.cluster_time is not None}
        lags: dict[str, float] = {}
        for lag in (lag for gateway in gateways for lag in gateway.lags):
            lags[lag.shard] = max(lag.seconds, lags.get(lag.shard, 0.0))
        gaps = gaps_of(observed.positions.value.gaps if observed.positions.value else [])
        verdicts = [Condition(box.condition.colour, f"{box.title}: {box.condition.reason}") for box in flow.boxes]
        verdicts += [Condition(Colour.RED, f"{g.stream} has an open gap: {g.reason}") for g in gaps if g.is_open]
        return State(
            at=now,
            version=f"{__version__}, {kernel.description()}",
            overall=conditions.overall(verdicts),
            flow=flow,
            oplog=windows_of(observed, Thresholds.of(settings.monitor), jobs, lags),
            streams=streams,
            shards=shards_of(observed, streams),
            gateways=gateways,
            features=features,
            tables=tables,
            drift=drift_of(states),
            gaps=gaps,
            dead_letters=[reading.value for reading in observed.dead_letters if reading.value is not None],
            latency=latency,
            sources=[self._status(source) for source in self.sources],
            actions=self._actions(),
            points=points_of(observed, rates, self.latencies.summary(now, _SECONDS_OF_A_POINT)),
        )

    def _observed(self) -> Observed:
        return Observed(
            now=self._clock(),
            oplog=self._oplog.reading(),
            positions=self._positions.reading(),
            producers={_location(watched): watched.reading() for watched in self._producers},
            topics=self._topics.reading() if self._topics else None,
            changes=self._changes.reading() if self._changes else None,
            features=self._features.reading(),
            tables=self._tables.reading(),
            gateways={_location(watched): watched.reading() for watched in self._gateways},
            dead_letters=[watched.reading() for watched in self._dead_letters],
        )

    def _add_event(self, event: ObservedEvent) -> None:
        """Take a live event."""
        added = self.events.add(event)
        self.latencies.event(added)
        self._passed.add(added.line.namespace, added.cluster_time.seconds)

    def _measure(self, observed: Observed) -> None:
        """Note which events have arrived in Redis and Iceberg by now."""
        for progress in observed.features.fresh or []:
            if progress.position and progress.updated_at is not None:
                time_ = int(progress.position[2:18], 16)
                self.latencies.arrived("redis", progress.definition.name, time_, progress.updated_at)
        for table in observed.tables.fresh or []:
            newest = newest_time(table)
            if newest is not None and str(table.kind) == "mirror":
                self.latencies.arrived("iceberg", table.name, *newest)

    def _topic_rate(self, observed: Observed) -> float | None:
        value = observed.topics.fresh if observed.topics else None
        return None if value is None else self._rates.per_second("topics", value.records, observed.now)

    def _feature_rate(self, observed: Observed) -> float | None:
        known = [one for one in observed.features.fresh or [] if one.as_of is not None]
        if not known or self._topics is None:
            return None
        total = sum(self._passed.up_to(each, one.as_of or 0) for one in known for each in one.definition.namespaces)
        return self._rates.per_second(("features", len(known)), total, observed.now)

    def _consumers(self) -> list[Consumer]:
        """Give the streams whose position in the oplogs is judged: those of the position store."""
        value = self._positions.reading().fresh
        return [] if value is None else [stream.consumer for stream in value.streams]

    def _status(self, watched: PolledSource[Any]) -> SourceStatus:
        reading: Reading[Any] = watched.reading()
        name = watched.source.name
        condition = conditions.of_reading(reading, name, is_wanted=is_configured(name, self._settings), good="answers")
        DashboardMetrics.source(name, is_up=reading.is_good)
        return SourceStatus(name, condition, reading.at, reading.took)

    def _actions(self) -> Actions:
        dashboard = self._settings.dashboard
        if dashboard.token is None:
            return Actions(False, "set dashboard.token to enable them for those who have it")
        if dashboard.control_token is None:
            return Actions(False, "set dashboard.control_token to the producers' monitor.control_token")
        return Actions(True, "with the token of the dashboard")


def _location(watched: PolledSource[Any]) -> str:
    return str(watched.source.location)  # type: ignore[attr-defined]


def _table_rate(tables: Sequence[Table], now: float) -> float | None:
    """Give the events per second that the histories took in over the last minute, or the mirrors without them."""
    kinds = {table.kind for table in tables}
    if not kinds:
        return None
    kind = "history" if "history" in kinds else "mirror"
    recent = [
        snapshot.added_rows or 0
        for table in tables
        if table.kind == kind
        for snapshot in table.snapshots
        if snapshot.operation != "replace" and snapshot.at > now - _SECONDS_OF_TABLE_RATE
    ]
    return sum(recent) / _SECONDS_OF_TABLE_RATE


_SECONDS_KEPT = 900
_MOST_NAMESPACES = 200


class PassedEvents:
    """Counts live events by the second they happened in; written by one thread, read by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, OrderedDict[int, int]] = defaultdict(OrderedDict)
        self._forgotten: dict[str, int] = defaultdict(int)

    def add(self, namespace: str, second: int) -> None:
        """Count an event."""
        with self._lock:
            if namespace not in self._seconds and len(self._seconds) >= _MOST_NAMESPACES:
                return
            seconds = self._seconds[namespace]
            seconds[second] = seconds.get(second, 0) + 1
            if len(seconds) > _SECONDS_KEPT:
                _, count = seconds.popitem(last=False)
                self._forgotten[namespace] += count

    def up_to(self, namespace: str, second: int) -> int:
        """Give how many events were counted up to a second; grows as the second does."""
        with self._lock:
            seconds = self._seconds.get(namespace) or OrderedDict[int, int]()
            return self._forgotten[namespace] + sum(count for at, count in seconds.items() if at <= second)
