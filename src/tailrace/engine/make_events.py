"""The first stages as one: entries of the oplog become events, by the reference or in the compiled kernel.

The kernel makes the events of inserts, updates and deletes, a batch in one call. It gives the very events of the
reference (`EventsOfEntries`), and leaves to it what it does not do:
transactions, commands, views, whatever is not as servers usually write it. What depends on the stream and not on the
entry (which namespaces are watched, what the user's filter says of them, shard keys) it gets once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from tailrace import kernel
from tailrace.engine.event import DOCUMENT_TYPES, Event, EventColumns, Events
from tailrace.engine.match import Relevance, Relevant, match
from tailrace.engine.prefilter import Prefilter
from tailrace.engine.transform import EventForm, Transform
from tailrace.engine.unwind import Unwind
from tailrace.errors import OplogEntryInvalid
from tailrace.oplog.entry import OplogEntry

MakeEvents: TypeAlias = Callable[[Sequence[bytes]], Iterator[Events]]
"""Gives the events of a batch of entries, in batches of bounded size; an error comes behind what precedes it."""
_NAMESPACES_REMEMBERED: Final = 100_000


class EventsOfEntries:
    """Match, unwind and transform: the reference for whatever does the same faster."""

    def __init__(self, relevant: Relevant, unwind: Unwind, transform: Transform) -> None:
        self._relevant = relevant
        self._unwind = unwind
        self._transform = transform

    def __call__(self, entries: Sequence[bytes]) -> Iterator[list[Event]]:
        """Give the events of entries."""
        matched: list[tuple[OplogEntry, Relevance]] = []
        error: Exception | None = None
        try:
            match(entries, self._relevant, matched)
        except Exception as raised:
            error = raised
        for changes in self._unwind(matched):
            events: list[Event] = []
            try:
                self._transform(changes, events)
            except Exception:
                yield events
                raise
            yield events
        if error is not None:
            raise error


def compiled_events(
    reference: MakeEvents,
    relevant: Relevant,
    transform: Transform,
    shard_key: Callable[[bytes], Sequence[bytes] | None],
    *,
    version: int,
    declined_until: int,
    prefilter: Prefilter | None,
) -> MakeEvents | None:
    """Make events in the kernel, behind a time; None where there is no kernel."""
    module = kernel.module()
    if module is None:
        return None
    form: EventForm = transform.form
    engine = module.Engine(
        version=version,
        has_wall_time=form.has_wall_time,
        shows_uuid=form.expanded,
        shows_migrations=relevant.shows_migrations,
        shows_raw_updates=form.raw_updates,
        disambiguates=form.disambiguates,
        logs_keys=form.logs_keys_of_inserts,
        declined_until=declined_until,
        prefilter=None if prefilter is None else (prefilter.name, list(prefilter.values)),
    )
    return _CompiledEvents(engine, reference, relevant, transform, shard_key)


class _CompiledEvents:
    """Hands batches to the kernel, teaches it what it asks for, and has the reference do the rest, in order."""

    def __init__(
        self,
        engine: Any,
        reference: MakeEvents,
        relevant: Relevant,
        transform: Transform,
        shard_key: Callable[[bytes], Sequence[bytes] | None],
    ) -> None:
        self._engine = engine
        self._reference = reference
        self._relevant = relevant
        self._transform = transform
        self._shard_key = shard_key
        self._names: list[bytes] = []
        self._may_be_sharded = False

    def __call__(self, entries: Sequence[bytes]) -> Iterator[Events]:
        """Give the events of entries."""
        if self._may_be_sharded:
            self._engine.forget_shard_keys()  # a key may come while the stream runs
        start = 0
        while start < len(entries):
            columns, declined, start = self._engine.events(entries, start)
            events = EventColumns(columns, self._names)
            if declined:
                yield from self._in_order(entries, list(events), declined)
            else:
                yield events
            if start < len(entries):
                self._teach(OplogEntry(entries[start]))

    def _in_order(
        self, entries: Sequence[bytes], events: list[Event], declined: list[tuple[int, int]]
    ) -> Iterator[Events]:
        """Put the events of declined entries where they belong; neighbours go to the reference together."""
        given = 0
        waiting: list[bytes] = []
        for before, position in declined:
            if before > given:
                yield from self._reference(waiting)
                yield events[given:before]
                given, waiting = before, []
            waiting.append(entries[position])
        yield from self._reference(waiting)
        yield events[given:]

    def _teach(self, entry: OplogEntry) -> None:
        """Say what is to be known of an entry's namespace, or else of its collection's shard key."""
        namespace = entry.namespace
        if not self._engine.knows_namespace(namespace):
            if len(self._names) >= _NAMESPACES_REMEMBERED:
                self._names = []
                self._engine.forget_namespaces()
            is_watched = self._relevant.is_watched(namespace)
            self._engine.learn_namespace(
                namespace,
                is_watched,
                self._passing_types(namespace) if is_watched else 0,
                self._transform.namespace_element(namespace),
            )
            self._names.append(namespace)
        elif entry.uuid is not None:
            key = self._shard_key(entry.uuid)
            self._may_be_sharded |= key is not None
            self._engine.learn_shard_key(entry.uuid, list(key or ()))

    def _passing_types(self, namespace: bytes) -> int | None:
        """Ask the user's filter: a bit for each type; None for what the reference has to look at.

        That is definitions of views, which are no documents, and names that no filter can be asked about.
        """
        if self._transform.is_view_catalog(namespace):
            return None
        try:
            passing = [self._transform.passes_filter(name.encode(), namespace) for name in DOCUMENT_TYPES]
        except OplogEntryInvalid:
            return None
        return sum(1 << bit for bit, passes_filter in enumerate(passing) if passes_filter)
