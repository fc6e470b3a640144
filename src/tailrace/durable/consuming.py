"""`consume()`: call a handler for every change, at least once, across restarts."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from functools import update_wrapper
from typing import Any, overload

from tailrace.driver.options import refuse_unknown
from tailrace.driver.target import ASYNCHRONOUS, AsyncTarget, Target
from tailrace.durable.handling import DeadLetterFunction, Handling, dead_letters_of
from tailrace.durable.options import DurableOptions, refuse_number
from tailrace.durable.stream import AsyncDurableStream, DurableStream
from tailrace.monitor import serve_endpoint
from tailrace.owned import handling_signals


@overload
def consume(
    target: Target,
    handle: Callable[[Any], Any],
    *,
    retries: int = 3,
    dead_letters: str | DeadLetterFunction | None = None,
    metrics_port: int | None = None,
    **options: Any,
) -> None: ...
@overload
def consume(
    target: AsyncTarget,
    handle: Callable[[Any], Any],
    *,
    retries: int = 3,
    dead_letters: str | DeadLetterFunction | None = None,
    metrics_port: int | None = None,
    **options: Any,
) -> Coroutine[Any, Any, None]: ...
def consume(
    target: Target | AsyncTarget,
    handle: Callable[[Any], Any],
    *,
    retries: int = 3,
    dead_letters: str | DeadLetterFunction | None = None,
    metrics_port: int | None = None,
    **options: Any,
) -> Coroutine[Any, Any, None] | None:
    """Call `handle(event)` for every change of a collection, database or cluster, from the stored position on.

    The position moves when `handle` returns, so a crash repeats what was not finished and skips nothing. A handler that
    raises is called again `retries` times with growing pauses; then the event goes to `dead_letters` (`file:folder`, or
    a function of event and error), or without them `HandlerFailed` is raised, with the position before the event.
    `batch_size=100` makes it `handle(events)`. Ctrl-C and SIGTERM end it after the event that is being handled.

    `options` are those of `DurableOptions`; `store` is required. `metrics_port` serves Prometheus metrics. An
    asynchronous target takes a coroutine function and gives a coroutine, whose cancellation ends it as well.
    """
    refuse_number("retries", retries, 0, int)
    if metrics_port is not None:
        refuse_number("metrics_port", metrics_port, 0, int)
    if not callable(handle):
        raise TypeError(f"the handler is no function: {handle!r}")
    chosen = DurableOptions.of("consume()", options)
    kept = dead_letters_of(dead_letters)
    is_async = isinstance(target, ASYNCHRONOUS)
    if is_async != inspect.iscoroutinefunction(getattr(handle, "function", handle)):
        kinds = ("an asynchronous", "a coroutine function") if is_async else ("a synchronous", "a plain function")
        raise TypeError(f"{kinds[0]} target takes {kinds[1]} as its handler")
    handling = Handling(handle, lambda event: event, chosen.batch_size > 1, retries, kept)
    if isinstance(target, ASYNCHRONOUS):
        return _consume_async(AsyncDurableStream(target, chosen), handling, metrics_port)
    _consume(target, chosen, handling, metrics_port)
    return None


def _consume(target: Target, options: DurableOptions, handling: Handling, metrics_port: int | None) -> None:
    with ExitStack() as opened:
        opened.enter_context(suppress(Interrupted))  # the outermost: the stream has to see that its event is not done
        if metrics_port is not None:
            opened.enter_context(serve_endpoint(metrics_port))
        stream = opened.enter_context(DurableStream(target, options))
        stopping = opened.enter_context(_stopped_by_signals(stream.stop))
        handling.decode = stream.decode
        for events in stream.raw_batches():
            handling(events, lambda seconds: _sleep(stopping, seconds))


async def _consume_async(stream: AsyncDurableStream, handling: Handling, metrics_port: int | None) -> None:
    with ExitStack() as opened:
        if metrics_port is not None:
            opened.enter_context(serve_endpoint(metrics_port))
        async with stream:
            handling.decode = stream.decode
            async for events in stream.raw_batches():
                await handling.call_async(events, asyncio.sleep)


class Interrupted(Exception):
    """The end was asked for while a failed event waited for its next try; it is tried again after the restart."""


def _sleep(stopping: threading.Event, seconds: float) -> None:
    if stopping.wait(seconds):
        raise Interrupted


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM end the loop in order, where signals may be handled: in the main thread."""
    stopping = threading.Event()

    def on_signal(*_: object) -> None:
        stopping.set()
        stop()

    is_main = threading.current_thread() is threading.main_thread()
    with handling_signals(on_signal, (signal.SIGINT, signal.SIGTERM) if is_main else ()):
        yield stopping


HANDLER_OPTIONS = {"retries", "dead_letters", "metrics_port", *(field.name for field in fields(DurableOptions))}


class Handler:
    """A function that handles events, and the options to consume with. Called, it is the function itself.

    Made by `@handler(store=..., ...)`. `run(target)` consumes; `testing.deliver` calls it without a server.
    """

    def __init__(self, function: Callable[[Any], Any], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        update_wrapper(self, function)

    def __call__(self, event: Any) -> Any:
        """Handle one event, or one batch."""
        return self.function(event)

    def run(self, target: Any, **options: Any) -> Any:
        """Consume a collection, a database or a cluster; options given here win. To be awaited when that is async."""
        return consume(target, self.function, **{**self.options, **options})


def handler(*wrong: Any, **options: Any) -> Callable[[Callable[[Any], Any]], Handler]:
    """Declare a handler with the options of `consume`: store, name, retries, dead_letters, batch_size and others."""
    if wrong:
        raise TypeError("@handler takes options by name, such as @tailrace.handler(store='file:orders.pos')")
    refuse_unknown("@handler", options, HANDLER_OPTIONS)

    def declare(function: Callable[[Any], Any]) -> Handler:
        return Handler(function, options)

    return declare
