"""Change events into the changes that the features are made of; nothing else of an event is decoded."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tailrace.event import ChangeEvent
from tailrace.features import Definition
from tailrace.features.contribution import id_text
from tailrace.features.store import Change
from tailrace.fold import END_OPERATIONS, End, Ends, end_of
from tailrace.telemetry import Sampler
from tailrace.telemetry.tracing import written_at

TIME_ENDS: Final = 18
"""Where the cluster time ends in the digits of a token."""


class Collected:
    """The changes in a part of a batch, and how far it reaches."""

    def __init__(self, definition: Definition, sampler: Sampler | None = None) -> None:
        self._sampler = sampler if sampler is not None and sampler.ratio > 0 else None
        self._first, *others = definition.namespaces
        self._namespaces = frozenset((self._first, *others))
        self._ends = Ends()
        self.changes: list[Change] = []
        self.position = ""
        """The newest token."""
        self.as_of = 0
        """Its cluster time, in seconds."""
        self.bad = 0
        """Rows without an event: records that cannot be read."""
        self.sampled: list[tuple[str, str, str, int]] = []
        """Token, namespace, operation and time of the writes that are traced."""

    @property
    def ends(self) -> dict[str, End]:
        """The newest event that took a collection away, or put another one in its place, by the collection."""
        newest = ((namespace, self._ends.newest_of(namespace)) for namespace in sorted(self._namespaces))
        return {namespace: end for namespace, end in newest if end is not None}

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
        operation = view.required_operation_type
        if operation in END_OPERATIONS:
            self._ends.add(end_of(view))
            return
        key = view.document_key
        if key is not None and view.namespace in self._namespaces:
            document = view.full_document
            # A lookup that found nothing is no delete: what the update says is then all that is known.
            update = view.update_description if document is None else None
            is_delete = operation == "delete"
            namespace = "" if view.namespace == self._first else view.namespace
            if self._sampler is not None and operation != "read" and self._sampler.takes(token):
                self.sampled.append((token, view.namespace, operation, written_at(view.wall_time, as_of)))
            # A delete that recovery found is older than a row of its time, which the document may have under another
            # shard key: the digits of the time alone sort before every token of that time.
            version = token[:TIME_ENDS] if view.is_recovered else token
            self.changes.append(
                Change(id_text(key), version, document, update, is_delete, as_of, view.wall_time, namespace)
            )
