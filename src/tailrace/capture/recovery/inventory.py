"""The keys that were captured before: what deletes made in a gap are found with.

By cluster time the records say which documents there are. A consumer that goes by the order of arrival may have others
when history is lost: a delete, drop or rename that was delivered ahead of the position would have been delivered again
behind everything before it, and now never is. So what these removed may have come back by what was delivered again
before the loss. Both readings are given; where a document is gone at the source, a delete ends it in both.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, ClassVar, TypeVar

from tailrace.capture.formats.stored_records import RecordDecoder
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.record import Record
from tailrace.capture.recovery.local_inventory import NO_TIMES, LocalKeys, Times, Unseen, nothing_unseen
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.errors import InventoryMissing
from tailrace.fold import END_OPERATIONS
from tailrace.owned import OwnedThread

if TYPE_CHECKING:
    from tailrace.capture.recovery.topic_reader import TopicContents, TopicMessage

T = TypeVar("T")
_END = object()
_READ_AHEAD = 4


class KeyInventory(ABC):
    """Knows the documents that the sink has, by collection."""

    description: str
    """Where it knows them from, for people."""

    keeps_keys: ClassVar[bool] = False
    """Whether it has to be given every record."""

    def note(self, records: Iterable[Record]) -> None:  # noqa: B027 - one that can read them back needs no notes
        """Take records into account that the sink has acknowledged."""

    def check(self) -> None:  # noqa: B027 - most always know their keys
        """Raise InventoryMissing where deletes made in a gap cannot be found, before anything is done for them."""

    @abstractmethod
    def keys(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        """Give the namespace and documentKey (BSON) of every document that the sink has, namespace by namespace.

        `unseen` is asked, before the first one is given, which renames are missing among the ends in the records; the
        documents are where these leave them. `lost`: from the cluster time of the lost position on, up to that at which
        the stream begins again; what was removed in there is given too.
        """


class TopicInventory(KeyInventory):
    """The keys read back from the topics, whose records say which documents exist.

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

    def check(self) -> None:
        """Refuse topics that have lost their beginning: whoever captured a key there has no record of it."""
        if cut := self._contents().cut_topics():
            raise InventoryMissing(
                f"records of {', '.join(cut)} were deleted by retention, so deletes made in the gap cannot be found",
                hint="tailrace recover --from-now, then tailrace snapshot; and let these topics be compacted or kept.",
            )

    def keys(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        """Read the topics to their end, then give the keys of the documents that are left."""
        self.check()
        yield from captured_keys(self._contents().messages, self._decoder, self._is_followed, unseen, lost)

    def _contents(self) -> TopicContents:
        from tailrace.capture.recovery.topic_reader import TopicContents

        return TopicContents(self._address, self._topics())


def captured_keys(
    messages: Callable[[], Iterable[TopicMessage]],
    decoder: RecordDecoder,
    is_followed: Callable[[str], bool],
    unseen: Unseen = nothing_unseen,
    lost: Times = NO_TIMES,
) -> Iterator[tuple[str, bytes]]:
    """Give the keys in records, and those that what was `lost` has removed; `messages` gives the records."""
    removals = 0

    def all_messages() -> Iterator[TopicMessage]:
        nonlocal removals
        for message in messages():
            removals += _removes(message, lost)
            yield message

    def without_removals() -> Iterator[TopicMessage]:
        return (message for message in messages() if not _removes(message, lost))

    with (
        closing(RebuiltState(with_documents=False, is_followed=is_followed)) as state,
        closing(RebuiltState(with_documents=False, is_followed=is_followed)) as before,
    ):
        state.read(all_messages, decoder)
        renames = list(unseen(state.ends))
        if state.add_ends(renames):
            state.read(messages, decoder)
        for namespace in state.namespaces():
            for _, key in state.keys(namespace):
                yield namespace, key
        if not removals:
            return
        before.add_ends(renames)
        before.read(without_removals, decoder)
        for namespace in before.namespaces():
            for id_, key in before.keys(namespace):
                if state.get(namespace, id_) is None:
                    yield namespace, key


def _removes(message: TopicMessage, lost: Times) -> bool:
    begin, end = lost
    return begin <= message.moment[0] < end and message.operation in ("delete", *END_OPERATIONS)


class LocalInventory(KeyInventory):
    """The keys kept in a file beside the producer, for sinks that cannot be read back."""

    keeps_keys = True

    def __init__(self, file: Path, is_followed: Callable[[str], bool] = lambda _: True) -> None:
        self._keys = LocalKeys(file, is_followed)
        self.description = f"the file {file}"

    def note(self, records: Iterable[Record]) -> None:
        """Take over the documents and collections of the records."""
        self._keys.apply(records)

    def keys(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        """Give the keys in the file."""
        yield from self._keys.all(unseen, lost)


class NoInventory(KeyInventory):
    """For sinks that cannot be read back and have no file: a recovery would leave deleted documents in the sink."""

    description = "nowhere"

    def check(self) -> None:
        """Refuse: going on would pass over deletes silently."""
        raise InventoryMissing("nobody knows which documents the sink has, so deletes made in the gap cannot be found")

    def keys(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        """Refuse, as `check` does."""
        self.check()
        yield from ()


def in_background(items: Iterator[T]) -> Iterator[T | None]:
    """Read an iterator in a thread of its own; gives None while the next item is not there yet."""
    queue: Queue[T | object | BaseException] = Queue(_READ_AHEAD)
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
