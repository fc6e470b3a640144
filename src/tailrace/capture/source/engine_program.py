"""The program of the process that helps a producer which is far behind; `engine_process` starts it.

It takes one order from its standard input, writes batch after batch to its standard output, and ends with the
process that started it. What its parts log goes to standard error.

Making events takes a third of the time that making records and handing them to Kafka takes. So every second batch has
its records with it, and both processes have about the same to do, whatever the format.
"""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import cycle
from struct import Struct
from typing import Any, Final

from pymongo import MongoClient

from tailrace.capture.formats import FormatOptions
from tailrace.capture.record import Record, new_record
from tailrace.capture.source.garbage import rare_collections
from tailrace.capture.source.oplog import OplogSource
from tailrace.capture.source.source import ClusterAccess, EventBatch, Selection, Start, UnfinishedBatch
from tailrace.engine.stream import to_int
from tailrace.errors import EventUnconvertible

HEAD: Final = Struct("<BQIII")
"""What a message begins with: its kind, the operation time (0: none), and the lengths of token, body and records."""
_SOCKET_TIMEOUT_MS: Final = 20_000


class Kind(IntEnum):
    """What a message from the process means."""

    READY = 1
    BATCH = 2
    UNFINISHED = 3
    ERROR = 4
    END = 5


@dataclass(frozen=True, slots=True)
class Order:
    """What the process reads, and what it makes of it."""

    cluster: ClusterAccess
    selection: Selection
    start: Start
    format: FormatOptions | None
    """None: records are made elsewhere."""


class Outlet:
    """Writes messages; whoever does not read them holds the process back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(
        self, kind: Kind, body: bytes = b"", *, token: bytes = b"", operation_time: int = 0, records: bytes = b""
    ) -> None:
        """Write one message."""
        head = HEAD.pack(kind, operation_time, len(token), len(body), len(records))
        left = memoryview(head + token + body + records)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def send_batch(self, batch: EventBatch, records: bytes) -> None:
        """Write a batch: its events are documents, which tell their lengths themselves."""
        kind = Kind.UNFINISHED if isinstance(batch, UnfinishedBatch) else Kind.BATCH
        time = 0 if batch.operation_time is None else to_int(batch.operation_time)
        body = b"".join(batch.events)
        self.send(kind, body, token=batch.resume_token or b"", operation_time=time, records=records)


def main() -> None:
    """Say that it is ready, take the order, and follow the stream to its end."""
    outlet = Outlet(_standard_output_alone())
    outlet.send(Kind.READY)
    try:
        with open(0, "rb", closefd=False) as given:
            order: Order = pickle.load(given)
    except EOFError:  # it is not needed any more
        return
    with rare_collections():
        follow(order, outlet)


def follow(order: Order, outlet: Outlet) -> None:
    """Write what the stream gives, and what ended it."""
    convert = Converter(order.format) if order.format is not None else None
    try:
        with MongoClient[Any](order.cluster.uri, socketTimeoutMS=_SOCKET_TIMEOUT_MS) as client:
            stream = OplogSource(client, order.selection, order.cluster).open(order.start)
            for batch, is_second in zip(stream.batches(), cycle((False, True))):
                outlet.send_batch(batch, convert(batch.events) if convert and is_second else b"")
    except BrokenPipeError:
        return
    except Exception as error:
        outlet.send(Kind.ERROR, pickle.dumps(error))
    else:
        outlet.send(Kind.END)


class Converter:
    """Makes records as bytes: column by column, with the places of their events, which travel anyway.

    `marshal` takes half of the time of `pickle` here; both processes are the same Python.
    """

    def __init__(self, options: FormatOptions) -> None:
        self._format = options.make()

    def __call__(self, events: Sequence[bytes]) -> bytes:
        """Give nothing when there is an event that no record can be made of: the other process sets it aside."""
        places = {id(event): place for place, event in enumerate(events)}
        try:
            records = self._format.batch(events)
        except EventUnconvertible:
            return b""
        *columns, made_of = zip(*records, strict=True) if records else [()] * len(Record._fields)
        return marshal.dumps([*columns, [places[id(event)] for event in made_of]])


def records_from(data: bytes, events: Sequence[bytes]) -> list[Record]:
    """Put together what a `Converter` took apart."""
    *columns, places = marshal.loads(data)
    made_of = map(events.__getitem__, places)
    return [new_record(Record, fields) for fields in zip(*columns, made_of, strict=True)]


def _standard_output_alone() -> int:
    """Keep standard output for messages; what else is printed goes to standard error."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return descriptor


if __name__ == "__main__":
    main()
