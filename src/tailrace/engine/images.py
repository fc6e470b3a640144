"""Sixth stage: documents as they were before and after a change, looked up where the server does.

Where images come from is passed in (`ImageStore`), so that the stage knows no connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Change, Event
from tailrace.engine.options import ChangeStreamOptions
from tailrace.engine.scope import split_namespace
from tailrace.errors import HistoryLost, ImageMissing, OplogEntryInvalid
from tailrace.oplog.entry import NO_TIME
from tailrace.oplog.transactions import EntryAt
from tailrace.oplog.update_diff import apply_delta, delta_of
from tailrace.raw.cluster_time import ClusterTime

_NULL_IMAGE: Final = {name: raw.element(raw.NULL, name, b"") for name in (b"fullDocument", b"fullDocumentBeforeChange")}
_WITH_PRE_IMAGE: Final = frozenset({"update", "replace", "delete"})
_NO_PRE_IMAGE: Final = (
    "Change stream was configured to require a pre-image for all update, delete and replace events, but "
)
_NO_POST_IMAGE: Final = "Change stream was configured to require a post-image for all update events, but "


class ImageStore(Protocol):
    """Where images are kept, and the shard keys that servers before 6.0 do not log."""

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        """Read the majority-committed document with this key, not older than the time `since`.

        With a UUID from the collection that has it, renamed or not; without from the one of that name.
        None when the document is gone.
        """
        ...

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        """Read the pre-image that the server stored for an operation (6.0)."""
        ...

    def shard_key(self, uuid: bytes) -> Sequence[bytes] | None:
        """Give the paths of a collection's shard key, none when it is not sharded; None outside of clusters."""
        ...


class NoImages:
    """An `ImageStore` that has nothing."""

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        """Find no document."""
        return None

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        """Find no pre-image."""
        return None

    def shard_key(self, uuid: bytes) -> Sequence[bytes] | None:
        """Find no shard keys."""
        return None


class AddImages:
    """Adds `fullDocument` to updates and `fullDocumentBeforeChange` to all that change a document."""

    def __init__(
        self,
        options: ChangeStreamOptions,
        dialect: Dialect,
        store: ImageStore,
        entry_at: EntryAt,
    ) -> None:
        self._before = options.full_document_before_change
        self._after = options.full_document
        self._dialect = dialect
        self._store = store
        self._entry_at = entry_at
        self._by_name = dialect.looks_up_by_name and not options.match_collection_uuid_for_update_lookup

    @staticmethod
    def are_asked_for(options: ChangeStreamOptions) -> bool:
        """Tell whether a stream needs the stage at all."""
        return options.full_document != "default" or options.full_document_before_change != "off"

    @staticmethod
    def fields_of(options: ChangeStreamOptions) -> list[str]:
        """Name the fields that are not complete before the stage."""
        before = ["fullDocumentBeforeChange"] if options.full_document_before_change != "off" else []
        return before + (["fullDocument"] if options.full_document != "default" else [])

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Look the images of events up, one after the other."""
        for event in events:
            if event.operation_type not in _WITH_PRE_IMAGE or event.change is None:
                given.append(event)
            else:
                given.append(self._with_images(event, event.change))

    def _with_images(self, event: Event, change: Change) -> Event:
        before = after = b""
        if self._before != "off":
            before = self._pre_image_element(event, change)
        if self._after != "default" and event.operation_type == "update":
            after = self._post_image_element(event, change)
        if not before and not after:
            return event
        namespace_at = _element_start(event.raw, b"ns")
        if self._dialect.stores_pre_images:
            body = event.raw[4:namespace_at], after, event.raw[namespace_at:-1], before
        else:
            body = event.raw[4:namespace_at], after, before, event.raw[namespace_at:-1]
        return event._replace(raw=raw.document(*body))

    # --- before

    def _pre_image_element(self, event: Event, change: Change) -> bytes:
        if not self._dialect.stores_pre_images and change.operation.pre_image_time == NO_TIME:
            return self._without_pre_image(event)
        image = self._pre_image(change)
        if image is None and self._before == "required":
            found = f"the pre-image was not found for event: {_render(event)}"
            code = None if self._dialect.stores_pre_images else HistoryLost.server_code
            raise ImageMissing(_NO_PRE_IMAGE + found, server_code=code)
        return _image_element(b"fullDocumentBeforeChange", image)

    def _pre_image(self, change: Change) -> bytes | None:
        operation = change.operation
        if self._dialect.stores_pre_images:
            if operation.uuid is None:
                return None
            return self._store.pre_image(operation.uuid, change.logged_at, change.logged_number)
        try:
            return self._entry_at(operation.pre_image_time).o
        except HistoryLost:
            return None

    def _without_pre_image(self, event: Event) -> bytes:
        """Leave the field out when 4.4 or 5.0 recorded no pre-image: there `null` means that it is lost."""
        if self._before == "required":
            found = f"no pre-image optime was recorded for event: {_render(event)}"
            raise ImageMissing(_NO_PRE_IMAGE + found, server_code=51770)
        return b""

    # --- after

    def _post_image_element(self, event: Event, change: Change) -> bytes:
        if self._after == "updateLookup":
            image = self._current(event, change)
        else:
            image = self._computed_post_image(change)
            if image is None and self._after == "required":
                found = f"the post-image was not found for event: {_render(event)}"
                raise ImageMissing(_NO_POST_IMAGE + found)
        return _image_element(b"fullDocument", image)

    def _current(self, event: Event, change: Change) -> bytes | None:
        uuid, key = change.operation.uuid, change.operation.o2
        if uuid is None or key is None:
            raise OplogEntryInvalid("an update without its key", entry=change.operation.raw)
        return self._store.current_document(event.namespace, None if self._by_name else uuid, key, change.time)

    def _computed_post_image(self, change: Change) -> bytes | None:
        """Apply the update to the stored pre-image, as the server does."""
        before = self._pre_image(change)
        delta = delta_of(change.operation.o)
        return None if before is None or delta is None else apply_delta(before, delta)


def _image_element(name: bytes, image: bytes | None) -> bytes:
    return _NULL_IMAGE[name] if image is None else raw.element(raw.DOCUMENT, name, image)


def _element_start(doc: bytes, name: bytes) -> int:
    """Give the offset of the type byte of an element."""
    at = 4
    for _, found, _, end in raw.elements(doc):
        if found == name:
            return at
        at = end
    return len(doc) - 1


def _transaction(event: Event) -> str:
    number = None if event.change is None else raw.field(raw.document(event.change.session), b"txnNumber")
    return "" if number is None else f", txnNumber: {raw.to_python(*number)}"


def _render(event: Event) -> str:
    database, collection = split_namespace(event.namespace)
    time = ClusterTime(event.cluster_time)
    return (
        f'{{operationType: "{event.operation_type}", ns: {{db: "{database.decode()}", '
        f'coll: "{collection.decode()}"}}, '
        f"clusterTime: Timestamp({time.seconds}, {time.increment}){_transaction(event)}}}"
    )
