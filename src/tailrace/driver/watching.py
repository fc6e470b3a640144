"""`watch()`: the way into the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, overload

from tailrace.driver.async_stream import AsyncChangeStream
from tailrace.driver.options import WatchOptions, refuse_unknown
from tailrace.driver.stream import ChangeStream
from tailrace.driver.target import ASYNCHRONOUS, AsyncTarget, Target


@overload
def watch(target: Target, pipeline: Sequence[Mapping[str, Any]] | None = None, **options: Any) -> ChangeStream[Any]: ...
@overload
def watch(
    target: AsyncTarget, pipeline: Sequence[Mapping[str, Any]] | None = None, **options: Any
) -> AsyncChangeStream[Any]: ...
def watch(
    target: Target | AsyncTarget, pipeline: Sequence[Mapping[str, Any]] | None = None, **options: Any
) -> ChangeStream[Any] | AsyncChangeStream[Any]:
    """Watch a collection, a database or, given a client, a whole cluster.

    `pipeline` is appended to the `$changeStream` stage; `options` are the fields of `WatchOptions`. Prefer this
    to an aggregation with a `$changeStream` stage of your own: that would not resume. The server
    requires read concern "majority", or none.

    A synchronous target gives a `ChangeStream`, open already; an asynchronous one an `AsyncChangeStream`, to be
    used with `async with` or awaited.
    """
    stages = [] if pipeline is None else pipeline
    refuse_unknown("watch() without a store", options, {field.name for field in fields(WatchOptions)})
    chosen = WatchOptions(**options)
    if isinstance(target, ASYNCHRONOUS):
        return AsyncChangeStream(target, stages, chosen)
    return ChangeStream(target, stages, chosen)
