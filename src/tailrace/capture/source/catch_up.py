"""A stream that is far behind is read by a process of its own until it has caught up.

One Python process can use one core. While there is a lot to read, another one makes the events, and the records of some
of them; a stream that is near the end is read here, where the way of an event is shorter. The stream goes from one to
the other behind a batch, by its token. The process is a help and no more: if it cannot be had or ends, the stream is
read on here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, Final

import structlog
from pymongo import MongoClient

from tailrace.capture.formats import FormatOptions
from tailrace.capture.source.engine_process import EngineProcess, ProcessLost
from tailrace.capture.source.engine_program import Order
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.source import ClusterAccess, EventBatch, Selection, Start, Stream, token_time

_log = structlog.get_logger("tailrace.capture")
_FAR_SECONDS: Final = 5
_NEAR_SECONDS: Final = 1
_FAR_BATCHES: Final = 5
"""So many batches in a row that were far behind are not the end of a quiet hour, but work for a while."""


class CatchingUpSource(OplogSource):
    """The engine on the oplog, helped by a process of its own while the stream is far behind."""

    def __init__(
        self, client: MongoClient[Any], selection: Selection, cluster: ClusterAccess, format: FormatOptions | None
    ) -> None:
        """`format` is what records are made with, if the other process may make some of them too."""
        super().__init__(client, selection, cluster)
        self._format = format

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> Stream:
        """Open a stream; the way past a large event is short, and gone here."""
        if one_by_one or without_images:
            return super().open(start, one_by_one=one_by_one, without_images=without_images)
        return CatchingUp(start, super().open, self._order)

    def in_strict_order(self) -> CatchingUpSource:
        """Let the shards wait for each other."""
        return CatchingUpSource(self.client, self.selection, replace(self._cluster, order="strict"), self._format)

    def _order(self, start: Start) -> Order:
        """Order events, and records of them; not where a slice leaves most of what is in a batch to others."""
        format = self._format if self.selection.slice.is_whole else None
        return Order(self._cluster, self.selection, start, format)


class CatchingUp:
    """Gives the batches of one stream, wherever they are read."""

    def __init__(self, start: Start, open_here: Callable[[Start], Stream], order: Callable[[Start], Order]) -> None:
        """`open_here` opens the stream in this process, `order` says how the other one opens it."""
        self._open_here = open_here
        self._order = order
        self._stream = open_here(start)
        self._helper: EngineProcess | None = None
        self._may_help = _cores() > 1

    @property
    def helper(self) -> EngineProcess | None:
        """The other process, while there is one."""
        return self._helper

    def batches(self) -> Iterator[EventBatch]:
        """Give batch after batch, empty ones too."""
        while True:
            place = yield from self._read_here()
            if place is not None:
                place = yield from self._read_there(place)
            if place is None:
                return
            self._stream = self._open_here(place)

    def close(self) -> None:
        """Free the cursor on the server, and end the other process."""
        self._stream.close()
        self._dismiss()

    def _read_here(self) -> Generator[EventBatch, None, Start | None]:
        """Read until the other process can go on; gives where, or None at the end of the stream."""
        far = 0
        for batch in self._stream.batches():
            yield batch
            far = far + 1 if _seconds_behind(batch) >= _FAR_SECONDS else 0
            if not far:
                self._dismiss()
            elif far >= _FAR_BATCHES and self._helper is None and self._may_help:
                self._call_for_help()
            if self._helper is not None and self._helper.is_ready:
                self._stream.close()
                return Start(batch.resume_token)
        return None

    def _read_there(self, place: Start) -> Generator[EventBatch, None, Start | None]:
        """Let the other process read until the stream has caught up; gives where that is."""
        assert self._helper is not None
        has_begun = False
        try:
            for batch in self._helper.batches(self._order(place)):
                has_begun = True
                yield batch
                place = Start(batch.resume_token)
                if _seconds_behind(batch) <= _NEAR_SECONDS:
                    return place
            return None
        except Exception as error:
            if has_begun and not isinstance(error, ProcessLost):
                raise
            self._may_help = False
            _log.warning("the process that reads ahead is no help: the stream is read on here", why=str(error))
            return place
        finally:
            self._dismiss()

    def _call_for_help(self) -> None:
        try:
            self._helper = EngineProcess()
        except OSError as error:
            self._may_help = False
            _log.warning("no process can be started to read ahead: the stream is read here", why=str(error))
        else:
            _log.info("the stream is far behind: a process of its own reads it", pid=self._helper.pid)

    def _dismiss(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None


def _seconds_behind(batch: EventBatch) -> int:
    """Give how far the server was ahead; a server that does not answer for all of its shards is not known to be."""
    if batch.operation_time is None or batch.resume_token is None:
        return 0
    return batch.operation_time.time - token_time(batch.resume_token).time


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
