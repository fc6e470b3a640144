"""Polls streams and oplogs, judges what it reads, exports it to Prometheus and raises alerts."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from bson import Timestamp

from tailrace.errors import TailraceError
from tailrace.logs import get_logger
from tailrace.monitor import metrics
from tailrace.monitor.alerts import DEFAULT_THRESHOLDS, Alarm, Level, Thresholds, Verdict, verdict_of
from tailrace.monitor.liveness import DEFAULT_LAG_LIMITS, LagLimits, Liveness, Observation, State, liveness_of
from tailrace.monitor.reader import ShardReader
from tailrace.monitor.window import MOST_SAMPLES, Lag, Oplog, Sample, lag_of
from tailrace.owned import repeated
from tailrace.settings import MonitorSettings

_log = get_logger("tailrace.monitor")
_SECONDS_TO_END = 30.0
_WAS_CRITICAL = "it was critical at the reading before"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A stream as its position store shows it, in plain values."""

    stream: str
    position: Timestamp
    shards: Mapping[str, Timestamp] = field(default_factory=dict)
    """The position on each shard, where they are known one by one."""
    events: int | None = None
    saved_at: float | None = None
    recovering: bool = False
    paused: bool = False
    sink_problem: str | None = None
    """Why nothing is delivered."""

    def position_on(self, shard: str) -> Timestamp:
        """Where it stands on this shard."""
        return self.shards.get(shard, self.position)


@dataclass(frozen=True, slots=True)
class Report:
    """One shard at one moment, and a stream's lag in it when there is a stream."""

    at: float
    oplog: Oplog
    stream: str | None = None
    lag: Lag | None = None
    liveness: Liveness | None = None
    verdict: Verdict = field(default_factory=Verdict)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values; the keys are part of the interface."""
        oplog = self.oplog
        result: dict[str, Any] = {
            "at": self.at,
            "shard": oplog.shard,
            "oplog": {
                "first": oplog.first.time,
                "last": oplog.last.time,
                "window_seconds": oplog.window_seconds,
                "used_bytes": oplog.used_bytes,
                "limit_bytes": oplog.limit_bytes,
                "full": oplog.full,
                "member": oplog.member,
            },
            "others": [
                {"member": other.member, "first": other.first.time, "window_seconds": other.window_seconds}
                for other in oplog.others
            ],
            "level": self.verdict.level.name.lower(),
            "reasons": list(self.verdict.reasons),
        }
        if self.lag and self.liveness:
            result |= {"stream": self.stream, "state": self.liveness.state.value, "proof": self.liveness.proof}
            result |= _lag_to_json(self.lag)
        return result


def _lag_to_json(lag: Lag) -> dict[str, Any]:
    trend, forecast = lag.trend, lag.forecast
    return {
        "position": {"t": lag.position.time, "i": lag.position.inc},
        "position_age_seconds": lag.age_seconds,
        "headroom_ratio": round(lag.headroom_ratio, 6),
        "lost": lag.lost,
        "seconds_until_history_lost": forecast.until_lost,
        "seconds_until_history_lost_if_stopped": forecast.until_lost_if_stopped,
        "seconds_until_caught_up": forecast.until_caught_up,
        "written_bytes_per_second": trend.written_per_second if trend else None,
        "consumer_speed": trend.position_speed if trend else None,
    }


class Observer:
    """Keeps the last samples of every shard and stream, so that each poll is judged by the trend.

    `consumers` gives the streams as they are now. Used by `tailrace check`, and by a producer that watches itself.
    """

    def __init__(
        self,
        readers: Sequence[ShardReader],
        consumers: Callable[[], Sequence[Consumer]],
        *,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        limits: LagLimits = DEFAULT_LAG_LIMITS,
        alarm: Alarm | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._readers = tuple(readers)
        self._consumers = consumers
        self._thresholds = thresholds
        self._limits = limits
        self._alarm = alarm
        self._clock = clock
        self.latest: tuple[Report, ...] = ()
        """The reports of the last poll; may be read from any thread."""
        self._critical: dict[tuple[str, str], tuple[bool, bool]] = {}
        self._samples: dict[tuple[str, str], deque[Sample]] = defaultdict(lambda: deque(maxlen=MOST_SAMPLES))
        self._observations: dict[tuple[str, str], deque[Observation]] = defaultdict(lambda: deque(maxlen=MOST_SAMPLES))

    @classmethod
    def of(
        cls,
        settings: MonitorSettings,
        readers: Sequence[ShardReader],
        consumers: Callable[[], Sequence[Consumer]],
        *,
        log: bool = True,
    ) -> Observer:
        """Make the observer that the settings describe; `log` says whether alerts go to the log too."""
        return cls(
            readers,
            consumers,
            thresholds=Thresholds.of(settings),
            limits=LagLimits.of(settings),
            alarm=Alarm.of(settings, log=log),
        )

    def poll(self) -> list[Report]:
        """Take one reading of every shard and judge every stream on it."""
        # Positions first: one that is read after the oplog could lie beyond its last entry.
        consumers = self._consumers()
        reports = []
        for reader in self._readers:
            oplog, now = reader.read(), self._clock()
            reports += [self.judge(consumer, oplog, now) for consumer in consumers] or [Report(now, oplog)]
        self.latest = tuple(reports)
        show_reports(reports)
        if self._alarm:
            for report in reports:
                if report.stream is not None:
                    self._alarm.hear(report.stream, report.oplog.shard, report.verdict, report.to_json(), report.at)
        return reports

    def running(self, every_seconds: float) -> AbstractContextManager[None]:
        """Poll in a thread of its own while a block runs, as a producer does that monitors itself.

        What cannot be read now is tried again at the next poll; an outage is logged once.
        """
        problem: str | None = None

        def poll() -> None:
            nonlocal problem
            try:
                self.poll()
                problem = None
            except TailraceError as error:
                if error.code != problem:
                    _log.warning(error.message, code=error.code, hint=error.hint)
                problem = error.code

        return repeated(poll, every_seconds, name="tailrace-observer", at_once=True, seconds_to_end=_SECONDS_TO_END)

    def judge(self, consumer: Consumer, oplog: Oplog, now: float) -> Report:
        """Add one reading to what is known of a stream on a shard, and judge it."""
        position = consumer.position_on(oplog.shard)
        key = (consumer.stream, oplog.shard)
        samples, observed = self._samples[key], self._observations[key]
        samples.append(Sample(now, oplog, position))
        observed.append(
            Observation(
                now,
                position,
                oplog.last,
                consumer.events,
                consumer.saved_at,
                recovering=consumer.recovering,
                paused=consumer.paused,
                sink_problem=consumer.sink_problem,
            )
        )
        lag = lag_of(tuple(samples))
        liveness = liveness_of(tuple(observed), self._limits)
        verdict = verdict_of(lag, liveness, self._thresholds)
        steady = verdict if lag.lost else self._steadied(key, verdict)
        return Report(now, oplog, consumer.stream, lag, liveness, steady)

    def _steadied(self, key: tuple[str, str], verdict: Verdict) -> Verdict:
        """Let a stream become critical, and stop being it, only when two readings in a row say so."""
        was_critical, shown = self._critical.get(key, (verdict.level is Level.CRITICAL,) * 2)
        is_critical = verdict.level is Level.CRITICAL
        now_shown = is_critical if is_critical == was_critical else shown
        self._critical[key] = (is_critical, now_shown)
        if is_critical and not now_shown:
            return replace(verdict, level=Level.WARNING)
        if now_shown and not is_critical:
            return replace(verdict, level=Level.CRITICAL, reasons=(_WAS_CRITICAL, *verdict.reasons))
        return verdict


def show_reports(reports: Sequence[Report]) -> None:
    """Put the numbers of one look into the metrics; a stream is in the worst state that it has on any shard."""
    worst: dict[str, State] = {}
    severity = list(State).index
    for report in reports:
        oplog = report.oplog
        metrics.show_oplog(
            oplog.shard, window=oplog.window_seconds, used_bytes=oplog.used_bytes, limit_bytes=oplog.limit_bytes
        )
        metrics.show_members(oplog.shard, {each.member: each.window_seconds for each in (oplog, *oplog.others)})
        if report.stream is None or report.lag is None or report.liveness is None:
            continue
        lag, state = report.lag, report.liveness.state
        metrics.show_lag(
            report.stream,
            oplog.shard,
            age=lag.age_seconds,
            headroom=lag.headroom_ratio,
            until_lost=lag.forecast.until_lost,
        )
        worst[report.stream] = max(worst.get(report.stream, state), state, key=severity)
    for stream, state in worst.items():
        metrics.show_state(stream, state)
