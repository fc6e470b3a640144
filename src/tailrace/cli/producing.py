"""Run a producer in the foreground: signals, the monitor beside it, and what the terminal shows."""

from __future__ import annotations

import ctypes
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tailrace import __version__
from tailrace.cli.failures import error_for
from tailrace.cli.log import configure_log
from tailrace.cli.renewal import Renewal
from tailrace.cli.session import connected
from tailrace.cli.units import shown_time
from tailrace.deployment import missing_namespaces
from tailrace.logs import get_logger
from tailrace.owned import handling_signals, repeated

if TYPE_CHECKING:
    from types import FrameType

    from pymongo import MongoClient

    from tailrace.audit import AuditLog
    from tailrace.capture.producer.assembly import Capture
    from tailrace.capture.producer.control import FirstStep
    from tailrace.capture.producer.producer import Producer
    from tailrace.capture.producer.status import ProducerStatus
    from tailrace.settings import Settings

_log = get_logger("tailrace.cli")
_MISSING = "check the spelling; they are captured as soon as somebody writes to them"
_SECONDS_BETWEEN_LINES = 1.0
_SOCKET_TIMEOUT_MS = 20_000
"""A network that swallows packets is noticed by this; the server answers an idle stream every second."""


def run_producer(
    settings: Settings,
    *,
    as_json: bool,
    stop_when_idle: bool,
    first_step: FirstStep | None = None,
    metrics_port: int | None = None,
) -> None:
    """Run a producer until it ends or is stopped; Ctrl-C is exit code 130, SIGTERM 0.

    Only the verb that stays answers over HTTP: a snapshot or a recovery by hand may run beside it. When the file of a
    secret changes, everything is opened anew with the new one, from the position that was just saved.
    """

    limit_malloc_arenas()
    configure_log(settings.log)
    before = _StopRequest(renewed=settings)
    while before.renewed is not None:
        before = _run(before, as_json, stop_when_idle, first_step, metrics_port)
        first_step = None


def _run(
    before: _StopRequest, as_json: bool, stop_when_idle: bool, first_step: FirstStep | None, metrics_port: int | None
) -> _StopRequest:
    """Run a producer with the settings to go on with; gives why it ended. A pause outlives a renewal."""
    from tailrace.audit import open_audit
    from tailrace.capture.producer.assembly import Capture
    from tailrace.capture.producer.control import FirstStep
    from tailrace.telemetry.tracing import telemetry_of

    settings = before.renewed
    assert settings is not None
    renewal = Renewal(settings)
    with ExitStack() as opened:
        tracing = opened.enter_context(telemetry_of(settings.telemetry))
        needs_oplog = settings.capture.source == "oplog"
        client = opened.enter_context(
            connected(settings, needs_oplog=needs_oplog, for_capture=True, socketTimeoutMS=_SOCKET_TIMEOUT_MS)
        )
        capture = opened.enter_context(Capture.open(settings, client))
        audit = opened.enter_context(open_audit(settings))
        audit.prepare()
        _record_intent(audit, capture, settings, first_step)
        producer = capture.producer(
            stop_when_idle=stop_when_idle, first_step=first_step or FirstStep.GO_ON, tracing=tracing
        )
        if before.is_paused:
            producer.pause()
        reason = opened.enter_context(_signals(producer))
        opened.enter_context(renewal.watching(lambda: reason.renew(renewal, producer)))
        opened.enter_context(_observed(settings, client, producer, metrics_port, audit))
        opened.enter_context(_shown(producer.status, as_json=as_json))
        _log_start(settings)
        if missing := missing_namespaces(client, settings.capture.namespaces):
            _log.warning("namespaces_missing", namespaces=missing, hint=_MISSING)
        with _log_stop(producer.status, reason):
            producer.run()
    if reason.signal == signal.SIGINT:
        raise KeyboardInterrupt
    return _StopRequest() if reason.signal else reason


def _record_intent(audit: AuditLog, capture: Capture, settings: Settings, first_step: FirstStep | None) -> None:
    """Write down what somebody asks for with a verb, and that the policy is another one than last time."""
    from tailrace.audit import Actor, record_policy_change
    from tailrace.capture.producer.control import FirstStep

    actor = Actor.of_this_process()
    if first_step is not None:
        names = {FirstStep.SNAPSHOT: "snapshot", FirstStep.START_NOW: "start from now"}
        audit.record(actor, names.get(first_step, "recover"), settings.capture.name)
    record_policy_change(audit, capture.store, settings, actor)


@dataclass(slots=True)
class _StopRequest:
    """The signal that asked the producer to stop, if one did, or the settings to go on with."""

    signal: int | None = None
    renewed: Settings | None = None
    is_paused: bool = False
    """Whether somebody has paused the producer, in this process."""

    def renew(self, renewal: Renewal, producer: Producer) -> None:
        """Stop the producer, to go on with what is new."""
        self.renewed, self.is_paused = renewal.settings, producer.is_paused
        producer.stop()


@contextmanager
def _signals(producer: Producer) -> Iterator[_StopRequest]:
    """Let Ctrl-C and SIGTERM end the producer cleanly; a second Ctrl-C ends it at once."""
    request = _StopRequest()

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT == request.signal:
            raise KeyboardInterrupt
        request.signal = number
        producer.stop()

    with handling_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        yield request


def _log_start(settings: Settings) -> None:
    """Log what runs, from where to where."""
    chosen = settings.capture
    _log.info(
        "starting",
        version=__version__,
        stream=chosen.name,
        mongodb=settings.mongodb.uri,
        source=chosen.source,
        namespaces=list(chosen.namespaces) or "all",
        sink=chosen.sink,
        format=chosen.format,
        delivery=chosen.delivery,
        position_store=chosen.position_store,
    )


@contextmanager
def _log_stop(status: ProducerStatus, request: _StopRequest) -> Iterator[None]:
    """Log why it ended, and where it stands then."""
    reason = "interrupted"
    try:
        yield
        reason = signal.Signals(request.signal).name if request.signal else "all was delivered"
        reason = "secrets were renewed" if request.renewed and not request.signal else reason
    except Exception as error:
        known = error_for(error)
        reason = known.code if known else type(error).__name__
        raise
    finally:
        position = status.position
        stands_at = shown_time(position.cluster_time) if position else "none"
        _log.info("stopped", stream=status.stream, reason=reason, position=stands_at, events=status.events)


@contextmanager
def _observed(
    settings: Settings, client: MongoClient[Any], producer: Producer, metrics_port: int | None, audit: AuditLog
) -> Iterator[None]:
    """Watch the oplog window beside the producer, and answer over HTTP when there is a port."""
    from tailrace.cli.producer_site import site_of
    from tailrace.monitor import LagLimits, Observer, serve_endpoint, shard_readers

    monitor, status = settings.monitor, producer.status
    status.lag_limits = LagLimits.of(monitor)
    uri = settings.mongodb.uri.get_secret_value()
    with ExitStack() as opened:
        mongodb = settings.mongodb
        readers = opened.enter_context(
            shard_readers([uri], mongodb.timeout_seconds, mongodb.family, mongodb.retention_hours)
        )

        def consumers() -> list[Any]:
            consumer = status.consumer()
            return [] if consumer is None else [consumer]

        observer = Observer.of(monitor, readers, consumers, log=True)
        opened.enter_context(observer.running(monitor.every_seconds))
        if metrics_port is not None:
            site = site_of(settings, client, producer, observer, audit)
            opened.enter_context(serve_endpoint(metrics_port, monitor.metrics_address, site))
        yield


@contextmanager
def _shown(status: ProducerStatus, *, as_json: bool) -> Iterator[None]:
    """Show the state once a second: JSON lines, a live line on a terminal, and nothing into a plain pipe."""
    from tailrace.capture.producer.state_document import brief_state

    console = Console(stderr=True)
    rate = _Rate(status)

    def print_line(rate_now: float) -> None:
        with suppress(OSError):  # nobody reads any more, or the disk is full: no reason to stop a stream
            typer.echo(json.dumps(brief_state(status, rate_now)))

    with ExitStack() as shown:
        if as_json:
            shown.callback(print_line, 0.0)
            every = _SECONDS_BETWEEN_LINES
            shown.enter_context(repeated(lambda: print_line(rate.events_per_second()), every, name="tailrace-status"))
        elif console.is_terminal:
            live = shown.enter_context(Live(console=console, auto_refresh=False, transient=True))
            shown.enter_context(
                repeated(
                    lambda: live.update(_line(status, rate.events_per_second()), refresh=True),
                    _SECONDS_BETWEEN_LINES / 4,
                    name="tailrace-status",
                )
            )
        yield


class _Rate:
    """Events per second between two samples."""

    def __init__(self, status: ProducerStatus) -> None:
        self._status = status
        self._last = time.monotonic(), status.events

    def events_per_second(self) -> float:
        before, events = self._last
        now = time.monotonic()
        if now - before < _SECONDS_BETWEEN_LINES / 2:
            return 0.0
        self._last = now, self._status.events
        return (self._status.events - events) / (now - before)


def _line(status: ProducerStatus, rate: float) -> Text:
    liveness, position, snapshot = status.liveness(), status.position, status.snapshot
    text = f"{status.stream}  {liveness.state.value}  {status.events:,} events  {rate:,.0f}/s"
    if position is not None:
        text += f"  at {shown_time(position.cluster_time)}"
    if snapshot is not None and snapshot.chunks_done < snapshot.chunks:
        share = snapshot.documents_read / max(1, snapshot.documents)
        left = snapshot.seconds_left
        bar = "█" * int(min(1.0, share) * 20)
        text += f"  snapshot {bar:░<20} {share:.0%} {snapshot.rate:,.0f}/s, {left or 0:,.0f} s left"
    return Text(text, no_wrap=True, overflow="ellipsis")


_M_ARENA_MAX: Final = -8
"""M_ARENA_MAX of `malloc.h`."""


def limit_malloc_arenas() -> None:
    """Let all threads share one malloc arena, which halves the memory of a process that only captures.

    Events are made in the thread that reads and freed in the one that delivers. With the arena of its own that glibc
    gives each thread, neither gets back what the other freed: a producer took 210 to 230 MB at full speed, and 110 MB
    with one. Other C libraries have one arena anyway.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)
