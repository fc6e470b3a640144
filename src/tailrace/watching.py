"""`tailrace.watch()`: the driver's stream, or with a store one that goes on where the last process was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from tailrace import driver
from tailrace.driver.target import ASYNCHRONOUS, AsyncTarget, Target

if TYPE_CHECKING:
    from tailrace.capture.positions import PositionStore
    from tailrace.driver import AsyncChangeStream, ChangeStream
    from tailrace.durable import AsyncDurableStream, DurableStream

Stages = Sequence[Mapping[str, Any]] | None


@overload
def watch(target: Target, pipeline: Stages = None, *, store: None = None, **options: Any) -> ChangeStream[Any]: ...
@overload
def watch(
    target: AsyncTarget, pipeline: Stages = None, *, store: None = None, **options: Any
) -> AsyncChangeStream[Any]: ...
@overload
def watch(target: Target, pipeline: Stages = None, *, store: str | PositionStore, **options: Any) -> DurableStream: ...
@overload
def watch(
    target: AsyncTarget, pipeline: Stages = None, *, store: str | PositionStore, **options: Any
) -> AsyncDurableStream: ...
def watch(
    target: Target | AsyncTarget,
    pipeline: Stages = None,
    *,
    store: str | PositionStore | None = None,
    **options: Any,
) -> ChangeStream[Any] | AsyncChangeStream[Any] | DurableStream | AsyncDurableStream:
    """Watch a collection, a database or, given a client, a whole cluster.

    With `store="file:orders.pos"` (or postgresql://, mongodb://, kafka://, redis://) the stream is durable: its
    position is kept under `name`, it goes on there after a restart, and one process of a name delivers at a time. Its
    `options` are those of `durable.DurableOptions`, without a store those of `driver.WatchOptions`.

    A synchronous target gives a stream to iterate, an asynchronous one a stream for `async with`.
    """
    if store is None:
        return driver.watch(target, pipeline, **options)
    from tailrace.durable import AsyncDurableStream, DurableOptions, DurableStream

    chosen = DurableOptions.of("watch() with a store", {"store": store, "pipeline": tuple(pipeline or ()), **options})
    if isinstance(target, ASYNCHRONOUS):
        return AsyncDurableStream(target, chosen)
    return DurableStream(target, chosen)
