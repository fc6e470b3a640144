"""Features without a server to keep them: documents, or events in their order, replayed in memory.

The rows are those that Redis gets and the values are computed by the model that Redis has to equal, so the three ways
of a definition (kept in Redis, replayed for training data, tried on a collection) give the same values.

A replay shows each moment what was known then: an event counts from its wall time on, which is never taken to be before
that of an event before it. So no value of a past moment knows anything of its future.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from tailrace.event import ChangeEvent
from tailrace.features.contribution import FieldValues, document_id, entity_of, id_text, row_of, updated, values_of
from tailrace.features.definition import Definition
from tailrace.features.values import Row, computed, typed
from tailrace.fold import END_OPERATIONS, end_of


class Replay:
    """The documents of a definition's collections at one moment, and the features of their entities."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.known_until = 0
        """Wall time of the newest event, in milliseconds."""
        self.unknown = 0
        """Updates of documents that were never told: their effect cannot be computed."""
        self._sources = {source.namespace: source for source in definition.sources}
        self._paths = {source.namespace: definition.paths(source) for source in definition.sources}
        self._documents: dict[str, dict[str, tuple[FieldValues, str | None]]] = {name: {} for name in self._sources}
        """What is seen of each document, and its entity, by collection and name."""
        self._rows: dict[str, dict[str, Row]] = {}

    @property
    def entities(self) -> list[str]:
        """The entities that have documents, by name."""
        return sorted(entity for entity, rows in self._rows.items() if rows)

    def documents_of(self, entity: str) -> int:
        """Tell how many documents an entity has."""
        return len(self._rows.get(entity, ()))

    def put(self, namespace: str, document: bytes) -> None:
        """Take a document as it is."""
        self._set(namespace, id_text(document), values_of(self._paths[namespace], document))

    def apply(self, event: bytes) -> None:
        """Take an event; each document's events come in the order of their tokens."""
        view = ChangeEvent(event)
        self.known_until = max(self.known_until, visible_from(view))
        operation = view.required_operation_type
        if operation in END_OPERATIONS:
            self._end(end_of(view).namespace)
            return
        namespace, key = view.namespace, view.document_key
        if namespace not in self._sources or key is None:
            return
        id_ = id_text(key)
        document, update = view.full_document, view.update_description
        if operation == "delete":
            self._set(namespace, id_, None)
        elif document is not None:
            self._set(namespace, id_, values_of(self._paths[namespace], document))
        elif update is not None:
            known = self._documents[namespace].get(id_)
            after = None if known is None else updated(known[0], update, self._paths[namespace])
            if after is None:
                self.unknown += 1
            else:
                self._set(namespace, id_, after)

    def values(self, entity: str, at: int) -> dict[str, Any]:
        """Give the features of an entity at a moment."""
        rows = self._rows.get(entity, {})
        ordered = [rows[id_] for id_ in sorted(rows, key=lambda id_: (rows[id_]["t"], id_))]
        return typed(self.definition, computed(self.definition, ordered, at))

    def _set(self, namespace: str, key: str, values: FieldValues | None) -> None:
        documents, source = self._documents[namespace], self._sources[namespace]
        name = document_id("" if namespace == self.definition.namespace else namespace, key)
        _, before = documents.pop(key, (None, None))
        if before is not None:
            rows = self._rows[before]
            rows.pop(name, None)
            if not rows:
                del self._rows[before]
        if values is None:
            return
        entity = entity_of(source, values)
        documents[key] = values, entity
        if entity is not None:
            self._rows.setdefault(entity, {})[name] = orjson.loads(row_of(self.definition, source, values, ""))

    def _end(self, namespace: str) -> None:
        """Forget the documents of a collection, or of all collections of a database."""
        for name, documents in self._documents.items():
            if name == namespace or name.startswith(f"{namespace}."):
                for key in list(documents):
                    self._set(name, key, None)


def visible_from(event: ChangeEvent) -> int:
    """Give the time from which an event could be known; without a wall time (before 6.0) its second has passed then."""
    wall = event.wall_time
    return wall if wall is not None else event.cluster_time.seconds * 1000 + 999


def at_moments(replay: Replay, events: Iterable[bytes], moments: Iterable[int]) -> Iterator[int]:
    """Replay events up to each of some moments in their order, and stop there: nothing later is known yet."""
    waiting = iter(events)
    event = next(waiting, None)
    for moment in moments:
        while event is not None and max(replay.known_until, visible_from(ChangeEvent(event))) <= moment:
            replay.apply(event)
            event = next(waiting, None)
        yield moment
