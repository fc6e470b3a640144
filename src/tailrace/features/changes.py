"""Change events into the changes that the features are made of; nothing else of an event is decoded."""

from __future__ import annotations

import pyarrow as pa

from tailrace import raw
from tailrace.event import ChangeEvent
from tailrace.features import Definition
from tailrace.features.store import Change
from tailrace.raw import extended_json

_ENDS = {"drop", "rename", "dropDatabase"}


class Collected:
    """The changes in a part of a batch, and how far it reaches."""

    def __init__(self, definition: Definition) -> None:
        self._namespaces = {definition.namespace, definition.namespace.partition(".")[0]}
        self.changes: list[Change] = []
        self.position = ""
        """The newest token."""
        self.as_of = 0
        """Its cluster time, in seconds."""
        self.drops = ""
        """The token of the newest event that took the collection away."""
        self.bad = 0
        """Rows without an event: records that cannot be read."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a record batch, each with the BSON of its event in the column `raw`."""
        for event in batch.column("raw").to_pylist():
            if event is None:
                self.bad += 1
            else:
                self._take(event)

    def _take(self, event: bytes) -> None:
        view = ChangeEvent(event)
        token, as_of = view.token_text.decode(), view.cluster_time.seconds
        if token > self.position:
            self.position, self.as_of = token, as_of
        if view.namespace not in self._namespaces:
            return
        operation = view.required_operation_type
        key = view.document_key
        if operation in _ENDS:
            self.drops = max(self.drops, token)
        elif key is not None:
            document = view.full_document
            # A lookup that found nothing is no delete: what the update says is then all that is known.
            update = view.update_description if document is None else None
            is_delete = operation == "delete"
            self.changes.append(Change(_key_text(key), token, document, update, is_delete, as_of, view.wall_time))


def _key_text(key: bytes) -> str:
    """Give the documentKey as text: the `_id` alone, which is what identifies a document."""
    span = raw.find(key, b"_id")
    identity = key if span is None else raw.document(raw.element(span[0], b"_id", key[span[1] : span[2]]))
    return extended_json.relaxed(extended_json.decode(identity)["_id"], identity).decode()
