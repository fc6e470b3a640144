"""The keys that were captured before: what deletes made in a gap are found with."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import ClassVar, TypeVar

from tailrace.capture.formats.stored_records import RecordDecoder
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.record import Record
from tailrace.capture.recovery.local_inventory import LocalKeys, Unseen, nothing_unseen
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.errors import InventoryMissing
from tailrace.owned import OwnedThread

T = TypeVar("T")
_END = object()


class KeyInventory(ABC):
    """Knows the documents that the sink has, by collection."""

    description: str
    """Where it knows them from, for people."""

    keeps_keys: ClassVar[bool] = False
    """Whether it wants to be told of every record."""

    def note(self, records: Iterable[Record]) -> None:  # noqa: B027 - one that can read them back needs not be told
        """Take records into account that the sink has acknowledged."""

    @abstractmethod
    def keys(self, unseen: Unseen = nothing_unseen) -> Iterator[tuple[str, bytes]]:
        """Give the namespace and documentKey (BSON) of every document that the sink has, namespace by namespace.

        `unseen` is asked, before the first one is given, which renames are missing among the ends that were told; the
        documents are where these leave them.
        """


class TopicInventory(KeyInventory):
    """The keys read back from the topics, whose records tell which documents exist.

    Needs topics that keep at least the last record of every key: compacted, or without an end of retention.
    """

    def __init__(
        self,
        address: KafkaAddress,
        topics: Callable[[], list[str]],
        decoder: RecordDecoder,
        is_followed: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._address = address
        self._topics = topics
        self._decoder = decoder
        self._is_followed = is_followed
        self.description = f"the records in Kafka at {address.servers}"

    def keys(self, unseen: Unseen = nothing_unseen) -> Iterator[tuple[str, bytes]]:
        """Read the topics to their end, then give the keys of the documents that are left."""
        from tailrace.capture.recovery.topic_reader import TopicContents

        state = RebuiltState(with_documents=False, is_followed=self._is_followed)
        try:
            contents = TopicContents(self._address, self._topics())
            state.read(contents.messages, self._decoder)
            if state.add_ends(unseen(state.ends)):
                state.read(contents.messages, self._decoder)
            for namespace in state.namespaces():
                for _, key in state.keys(namespace):
                    yield namespace, key
        finally:
            state.close()


class LocalInventory(KeyInventory):
    """The keys kept in a file beside the producer, for sinks that cannot be read back."""

    keeps_keys = True

    def __init__(self, file: Path, is_followed: Callable[[str], bool] = lambda _: True) -> None:
        self._keys = LocalKeys(file, is_followed)
        self.description = f"the file {file}"

    def note(self, records: Iterable[Record]) -> None:
        """Take over what the records tell of documents and collections."""
        self._keys.apply(records)

    def keys(self, unseen: Unseen = nothing_unseen) -> Iterator[tuple[str, bytes]]:
        """Give the keys in the file."""
        yield from self._keys.all(unseen)


class NoInventory(KeyInventory):
    """For sinks that cannot be read back and have no file: a recovery would leave deleted documents in the sink."""

    description = "nowhere: deletes made in the gap would not be found"

    def keys(self, unseen: Unseen = nothing_unseen) -> Iterator[tuple[str, bytes]]:
        """Refuse: going on would pass over deletes silently."""
        raise InventoryMissing("nobody knows which documents the sink has, so deletes made in the gap cannot be found")


def in_background(items: Iterator[T], ahead: int = 4) -> Iterator[T | None]:
    """Read an iterator in a thread of its own; gives None while the next item is not there yet."""
    queue: Queue[T | object | BaseException] = Queue(ahead)
    ended = threading.Event()

    def put(item: T | object | BaseException) -> bool:
        while not ended.is_set():
            try:
                queue.put(item, timeout=0.2)
                return True
            except Exception:
                continue
        return False

    def run() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_END)
        except BaseException as error:
            put(error)

    OwnedThread(run, name="tailrace-inventory").start()
    try:
        while True:
            try:
                found = queue.get_nowait()
            except Empty:
                yield None
                continue
            if found is _END:
                return
            if isinstance(found, BaseException):
                raise found
            yield found  # type: ignore[misc]
    finally:
        ended.set()
