"""When somebody should look: levels, what raises them, and how an alert reaches a log or a webhook."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from tailrace.errors import AlertUndelivered
from tailrace.logs import get_logger
from tailrace.monitor.liveness import Liveness, State
from tailrace.monitor.window import Lag
from tailrace.settings import MonitorSettings

_log = get_logger("tailrace.monitor")
_CLOSE_TO_THE_END = 0.9
_ROUNDING_SECONDS = 2.0
"""Position and last entry are each rounded to a second."""


class Level(IntEnum):
    """How bad it is; the values are the exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where the levels begin: shares of the oplog after the position, and seconds until history is lost."""

    warn_ratio: float = 0.5
    critical_ratio: float = 0.75
    warn_forecast_seconds: float = 14_400.0
    critical_forecast_seconds: float = 3_600.0

    @classmethod
    def of(cls, settings: MonitorSettings) -> Thresholds:
        """Take them from the settings."""
        return cls(
            settings.warn_ratio,
            settings.critical_ratio,
            settings.warn_forecast_seconds,
            settings.critical_forecast_seconds,
        )


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level with the reasons for it, the worst first."""

    level: Level = Level.OK
    reasons: tuple[str, ...] = ()


def verdict_of(lag: Lag, liveness: Liveness, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Verdict:
    """Judge a consumer's lag.

    A forecast counts for a stream that is behind, or that has used up a good part of a short oplog, and that does not
    keep up. At the end of the oplog the trend is mostly the rounding of cluster times, and in an oplog of a few seconds
    so is the share that lies after the position. A stream that gains on the log is never critical, unless history is
    lost already.
    """
    trend = lag.trend
    keeps_up = trend is not None and trend.keeps_up
    found = []
    if lag.lost or not (keeps_up and lag.age_seconds <= _ROUNDING_SECONDS):
        found.append(_by_share(lag, thresholds))
    is_behind = liveness.state not in (State.IDLE, State.LIVE) or lag.headroom_ratio < _CLOSE_TO_THE_END
    if is_behind and not keeps_up:
        found.append(_by_forecast(lag, thresholds))
    if trend is not None and trend.gains and not lag.lost:
        found = [(min(level, Level.WARNING), reason) for level, reason in found]
    if liveness.state in (State.STALLED, State.RECOVERING):
        found.append((Level.WARNING, f"{liveness.state}: {liveness.proof}"))
    found += [(Level.WARNING, reason) for reason in _lost_by_failover(lag)]
    bad = sorted((each for each in found if each[0] is not Level.OK), key=lambda each: -each[0])
    return Verdict(bad[0][0] if bad else Level.OK, tuple(reason for _, reason in bad))


def _by_share(lag: Lag, thresholds: Thresholds) -> tuple[Level, str]:
    if lag.lost:
        missing = lag.oplog.first.time - lag.position.time
        return Level.CRITICAL, f"history is lost: the oplog begins {missing:,} s after the position"
    share = 1 - lag.headroom_ratio
    reason = f"{share:.0%} of the oplog's capacity lies after the position"
    return _level(share >= thresholds.warn_ratio, share >= thresholds.critical_ratio), reason


def _lost_by_failover(lag: Lag) -> list[str]:
    """Say which members have too short a history, as long as the one that is read now has enough."""
    if lag.lost:
        return []
    return [
        f"a failover to {oplog.member} would lose history: its oplog begins "
        f"{oplog.first.time - lag.position.time:,} s after the position"
        for oplog in lag.oplog.others
        if not oplog.contains(lag.position)
    ]


def _by_forecast(lag: Lag, thresholds: Thresholds) -> tuple[Level, str]:
    seconds = lag.forecast.until_lost
    if seconds is None or lag.lost:
        return Level.OK, ""
    reason = f"history will be lost in {seconds:,.0f} s at this pace"
    warn, critical = thresholds.warn_forecast_seconds, thresholds.critical_forecast_seconds
    return _level(seconds < warn, seconds < critical), reason


def _level(warn: bool, critical: bool) -> Level:
    return Level.CRITICAL if critical else Level.WARNING if warn else Level.OK


@dataclass(frozen=True, slots=True)
class Alert:
    """A message about one stream on one shard."""

    stream: str
    shard: str
    level: Level
    previous: Level
    reasons: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """One line for people; chat services show the field `text` of what is posted to them."""
        why = "; ".join(self.reasons) or "all is well again"
        return f"tailrace {self.level.name}: {self.stream} on {self.shard}: {why}"

    def to_json(self) -> dict[str, Any]:
        """What a webhook gets."""
        return {
            "text": self.text,
            "stream": self.stream,
            "shard": self.shard,
            "level": self.level.name.lower(),
            "previous": self.previous.name.lower(),
            "reasons": list(self.reasons),
            **self.facts,
        }


class Channel(Protocol):
    """A way to a person. `send` returns when the alert has arrived and raises AlertUndelivered when it has not."""

    def send(self, alert: Alert) -> None:
        """Deliver one alert."""


class LogChannel:
    """Writes alerts to the log, at the level that fits."""

    def send(self, alert: Alert) -> None:
        """Write one line."""
        write = {Level.OK: _log.info, Level.WARNING: _log.warning, Level.CRITICAL: _log.error}[alert.level]
        write(alert.text, stream=alert.stream, shard=alert.shard, previous=alert.previous.name.lower())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Following a redirect would turn the post into a GET, and the alert would be gone although all looks well."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        """Make the redirect an error."""


class WebhookChannel:
    """Posts alerts as JSON, a few times if need be. The URL is a secret: only its host is ever shown."""

    def __init__(
        self, url: str, *, timeout: float = 5.0, attempts: int = 3, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._url = url
        self._host = urllib.parse.urlsplit(url).hostname or "?"
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._timeout = timeout
        self._attempts = attempts
        self._sleep = sleep

    def send(self, alert: Alert) -> None:
        """Post it; waits 1, 2, 4 ... seconds between attempts, and none after an answer that will stay the same."""
        body = json.dumps(alert.to_json()).encode()
        for attempt in range(self._attempts):
            if attempt:
                self._sleep(2.0 ** (attempt - 1))
            problem, is_final = self._post(body)
            if problem is None:
                return
            if is_final:
                break
        raise AlertUndelivered(f"the webhook at {self._host} did not take an alert: {problem}")

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        headers = {"Content-Type": "application/json", "User-Agent": "tailrace"}
        if not self._url.startswith(("http://", "https://")):
            return "monitor.webhook_url is no http address", True
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout):
                return None, True
        except urllib.error.HTTPError as error:
            with error:
                may_change = error.code >= 500 or error.code in (408, 429)
                return f"HTTP {error.code}", not may_change
        except (OSError, http.client.HTTPException) as error:
            return type(getattr(error, "reason", error)).__name__, False


class Alarm:
    """Turns verdicts into alerts: one when the level changes, and again when a bad one lasts.

    A channel that fails gets the alert at the next verdict again; the others do not get it twice.
    """

    def __init__(self, channels: Sequence[Channel], repeat_seconds: float = 3_600.0) -> None:
        self._channels = tuple(channels)
        self._repeat = repeat_seconds
        self._sent: dict[tuple[int, str, str], tuple[Level, float]] = {}

    @classmethod
    def of(cls, settings: MonitorSettings, *, log: bool = True) -> Alarm:
        """Make the alarm that the settings describe: the log, and a webhook when there is a URL."""
        channels: list[Channel] = [LogChannel()] if log else []
        if settings.webhook_url is not None:
            url = settings.webhook_url.get_secret_value()
            channels.append(
                WebhookChannel(url, timeout=settings.webhook_timeout_seconds, attempts=settings.webhook_attempts)
            )
        return cls(channels, settings.repeat_seconds)

    def hear(self, stream: str, shard: str, verdict: Verdict, facts: Mapping[str, Any], now: float) -> list[Alert]:
        """Take the verdict of this moment; gives the alerts that were delivered."""
        delivered = []
        for number, channel in enumerate(self._channels):
            key = (number, stream, shard)
            level, sent_at = self._sent.get(key, (Level.OK, now))
            lasts = verdict.level is not Level.OK and now - sent_at >= self._repeat
            if verdict.level is level and not lasts:
                continue
            alert = Alert(stream, shard, verdict.level, level, verdict.reasons, facts)
            try:
                channel.send(alert)
            except AlertUndelivered as error:
                _log.error(error.message, code=error.code, alert=alert.text)
                continue
            self._sent[key] = (verdict.level, now)
            delivered.append(alert)
        return delivered
