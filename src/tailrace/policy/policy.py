"""A policy applied to change events: to documents, images, deltas, keys and tokens alike.

The bytes of an event are walked once; runs of fields that nothing happens to are copied as they are, and an event that
no rule touches is given back as it came.

In the compiled kernel a policy is applied to a batch of events in one call. The rules stay with the reference
(`paths.py`): the states that they have for a collection, and where a name leads from each, are handed over as tables
when its first event comes. The kernel gives the very events of the reference and leaves to it those whose key changes,
because the key is part of their token, and what is unusual.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from tailrace import kernel, raw
from tailrace.errors import BsonMalformed, EventUnconvertible, InvalidResumeToken
from tailrace.event import ChangeEvent
from tailrace.policy.actions import Action, Kind, ValueChange, value_change
from tailrace.policy.paths import OTHER, AmbiguousPath, FieldState, Rule, fields_of
from tailrace.raw import Value
from tailrace.token import ResumeToken

_DOCUMENTS: Final = frozenset({b"fullDocument", b"fullDocumentBeforeChange", b"documentKey"})
_OF_A_DOCUMENT: Final = _DOCUMENTS | {b"updateDescription"}
"""Fields of an event that only the rules of a collection can govern."""
_MOST_NAMESPACES: Final = 10_000
_ABOUT_THE_EVENT: Final = (b"_id", b"operationType", b"clusterTime", b"ns")
_OF_DDL: Final = (b"operationDescription", b"stateBeforeChange")
_CONSTANTS_OF_DDL: Final = Rule(
    ("*",), ("**.partialFilterExpression", "**.validator", "**.pipeline", "**.min", "**.max"), Action(Kind.DROP)
)
"""Where descriptions of `createIndexes`, `create`, `modify` and the like may hold values of documents."""

Rewrite = Callable[[int, bytes, int, int], Value | None]
"""Gives what an element becomes: type, name, where its value is; None removes it."""


class Policy:
    """What the settings say of fields. Has no state that depends on earlier events."""

    def __init__(self, rules: Iterable[Rule] = (), key: bytes | None = None) -> None:
        """`key` is that of the hashes; rules that hash need one."""
        self._rules = tuple(rules)
        self._key = key
        actions = {rule.action for rule in self._rules if rule.action is not None}
        self._changes: dict[Action, ValueChange] = {
            action: value_change(action, key) for action in actions if action.kind is not Kind.DROP
        }
        self._by_namespace: dict[str, FieldState | None] = {}
        self._compiled: CompiledPolicy | None = None
        ddl = fields_of((_CONSTANTS_OF_DDL,), "")
        assert ddl is not None
        self._ddl = ddl

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __reduce__(self) -> tuple[type[Policy], tuple[tuple[Rule, ...], bytes | None]]:
        return Policy, (self._rules, self._key)

    def event(self, event: bytes) -> bytes:
        """Give an event as it may leave the process.

        Raises EventUnconvertible for bytes that are no event: the caller may keep `stripped` of them, nothing else.
        """
        if not self._rules:
            return event
        view = ChangeEvent(event)
        try:
            return self._event(view)
        except (BsonMalformed, InvalidResumeToken, UnicodeDecodeError, RecursionError):
            # The error's own text may quote a value.
            raise EventUnconvertible("the policy cannot be applied: the event is not valid BSON") from None
        except AmbiguousPath as error:
            raise EventUnconvertible(
                f"the policy cannot be applied: in {error} of an update a number is a position or a name, "
                "and the allow-list has only one of them",
                hint="Add the path with * in the place of the number to the rule: items.*.sku beside items.sku.",
            ) from None

    def events(self, events: Sequence[bytes]) -> list[bytes]:
        """Give many events as they may leave the process; the compiled kernel does it where it runs."""
        if not self._rules:
            return list(events)
        compiled = self.compiled()
        return [self.event(event) for event in events] if compiled is None else compiled.events(events)

    def compiled(self) -> CompiledPolicy | None:
        """Give what applies the rules in the kernel; None where there are no rules, or no kernel."""
        module = kernel.module() if self._rules else None
        if module is not None and self._compiled is None:
            self._compiled = CompiledPolicy(module.Policy(self._key), self.event, self.fields)
        return None if module is None else self._compiled

    def event_or_stripped(self, event: bytes) -> bytes:
        """Give an event as it may leave the process, or what little of it may when the rules cannot be applied."""
        try:
            return self.event(event)
        except EventUnconvertible:
            return stripped(event)

    def document(self, namespace: str, document: bytes) -> bytes:
        """Give a document of a collection, or its documentKey, as it may leave the process."""
        fields = self.fields(namespace)
        return document if fields is None else self._document(document, 0, fields)

    def shown_token(self, token: bytes) -> str:
        """Give a position's token as people may see it.

        The token of an event holds its documentKey, and does not say of which collection it is: under any rules at all
        it is shown as the high-water mark of its time.
        """
        position = ResumeToken.parse(token)
        if not self._rules or position.is_of_other_family:  # no token of another family holds a key
            return position.hex
        return ResumeToken.high_water_mark(position.cluster_time).hex

    def changes_keys(self, namespace: str) -> bool:
        """Whether `_id` leaves the process changed."""
        fields = self.fields(namespace)
        return fields is not None and not fields.field(b"_id").is_untouched

    def fields(self, namespace: str) -> FieldState | None:
        """Give what the rules say of the fields of a collection; None when it is nothing."""
        if namespace not in self._by_namespace:
            if len(self._by_namespace) >= _MOST_NAMESPACES:
                self._by_namespace.clear()
            self._by_namespace[namespace] = fields_of(self._rules, namespace)
        return self._by_namespace[namespace]

    def _event(self, view: ChangeEvent) -> bytes:
        namespace = view.namespace
        if None in view.database_and_collection and not _OF_A_DOCUMENT.isdisjoint(view.spans):
            raise EventUnconvertible("the policy cannot be applied: the event names no collection")
        fields = self.fields(namespace)
        if fields is None or not (fields.may_touch(view.raw) or b"operationDescription" in view.raw):
            return view.raw
        if view.is_recovered:  # its key is one that left the process before
            return view.raw
        new_token = self._token(view, fields)

        def rewrite(kind: int, name: bytes, begin: int, end: int) -> Value | None:
            value = Value(kind, view.raw[begin:end])
            if kind != raw.DOCUMENT:
                return value
            if name in _DOCUMENTS:
                return Value(kind, self._document(view.raw, begin, fields))
            if name == b"updateDescription":
                return Value(kind, self._update_description(value.data, fields))
            if name in _OF_DDL:
                return Value(kind, self._document(view.raw, begin, self._ddl))
            return Value(kind, new_token) if name == b"_id" else value

        return _rewritten(view.raw, 0, rewrite)

    def _token(self, view: ChangeEvent, fields: FieldState) -> bytes:
        """Give the event's token; it holds the documentKey or what a DDL event describes, and is made anew with them.

        It stands for the same place in the order of events, but no server knows it: a stream is resumed from the
        position, which is not part of what leaves the process.
        """
        key = view.document_key
        has_description = b"operationDescription" in view.spans
        if not has_description and (key is None or self._document(key, 0, fields) == key):
            return view.token
        token = ResumeToken.parse(view.token)
        if token.is_of_other_family:
            return view.token  # no such token holds a key
        data = token.decode()
        known = data.event_identifier
        if known is None:
            return view.token
        rules = {b"documentKey": fields, b"operationDescription": self._ddl}

        def rewrite(kind: int, name: bytes, begin: int, end: int) -> Value:
            is_ruled = kind == raw.DOCUMENT and name in rules
            return Value(kind, self._document(known, begin, rules[name]) if is_ruled else known[begin:end])

        # The identifier of an event with a document is the documentKey itself before version 2.
        is_named = has_description or (data.version >= 2 and raw.field(known, b"documentKey") is not None)
        changed = _rewritten(known, 0, rewrite) if is_named else self._document(known, 0, fields)
        return view.token if changed == known else ResumeToken.encode(replace(data, event_identifier=changed)).to_bson()

    def _update_description(self, description: bytes, fields: FieldState) -> bytes:
        """Apply the rules to a delta: the names of its fields are paths."""

        def rewrite(kind: int, name: bytes, begin: int, end: int) -> Value:
            if name in (b"updatedFields", b"disambiguatedPaths") and kind == raw.DOCUMENT:
                keeps_values = name == b"disambiguatedPaths"
                return Value(kind, self._paths(description, begin, fields, keeps_values=keeps_values))
            if name in (b"removedFields", b"truncatedArrays") and kind == raw.ARRAY:
                return Value(kind, _named(description, begin, fields))
            return Value(kind, description[begin:end])

        return _rewritten(description, 0, rewrite)

    def _paths(self, doc: bytes, start: int, fields: FieldState, *, keeps_values: bool) -> bytes:
        def rewrite(kind: int, name: bytes, begin: int, end: int) -> Value | None:
            if keeps_values:
                return Value(kind, doc[begin:end]) if _is_shown(fields.field(name)) else None
            return self._value(doc, kind, begin, end, fields.field(name))

        return _rewritten(doc, start, rewrite)

    def _document(self, doc: bytes, start: int, fields: FieldState) -> bytes:
        def rewrite(kind: int, name: bytes, begin: int, end: int) -> Value | None:
            return self._value(doc, kind, begin, end, fields.field(name))

        return _rewritten(doc, start, rewrite)

    def _array(self, doc: bytes, start: int, fields: FieldState) -> bytes:
        """Apply the rules to the elements of an array; a dropped one becomes null: the others keep their positions."""

        def rewrite(kind: int, name: bytes, begin: int, end: int) -> Value:
            return self._value(doc, kind, begin, end, fields.position(name)) or Value(raw.NULL, b"")

        return _rewritten(doc, start, rewrite)

    def _value(self, doc: bytes, kind: int, begin: int, end: int, state: FieldState) -> Value | None:
        """Give what stands in the place of a value; None when nothing does."""
        if state.is_untouched:
            return Value(kind, doc[begin:end])
        action = state.action
        if action is not None and action.kind is Kind.DROP:
            return None
        if not state.is_kept and not (kind in (raw.DOCUMENT, raw.ARRAY) and state.may_contain_kept):
            return None
        if kind == raw.DOCUMENT:
            return Value(kind, self._document(doc, begin, state))
        if kind == raw.ARRAY:
            return Value(kind, self._array(doc, begin, state))
        value = Value(kind, doc[begin:end])
        return value if action is None else self._changes[action](value)


NO_POLICY: Final = Policy()
"""Everything leaves as it is."""


def _is_shown(state: FieldState) -> bool:
    """Whether a field is there for those outside, in whatever shape."""
    dropped = state.action is not None and state.action.kind is Kind.DROP
    return not dropped and (state.is_kept or state.may_contain_kept)


def _named(doc: bytes, start: int, fields: FieldState) -> bytes:
    """Give an array of paths (or of documents that name one in `field`) without the fields that are dropped."""
    kept = []
    for kind, _, begin, end in raw.elements(doc, start):
        value = Value(kind, doc[begin:end])
        path = raw.field(value.data, b"field") if kind == raw.DOCUMENT else value
        if path is None or path.kind != raw.STRING or _is_shown(fields.field(path.data[4:-1])):
            kept.append(value)
    return raw.array(kept)


def _rewritten(doc: bytes, start: int, rewrite: Rewrite) -> bytes:
    """Give the document with its elements rewritten; elements that stay as they are, are copied in runs."""
    end_of_document = raw.document_end(doc, start)
    parts: list[bytes] = []
    copied = start + 4
    position = copied
    for kind, name, begin, end in raw.elements(doc, start):
        new = rewrite(kind, name, begin, end)
        if new is None or new.kind != kind or new.data != doc[begin:end]:
            parts.append(doc[copied:position])
            if new is not None:
                parts.append(raw.element(new.kind, name, new.data))
            copied = end
        position = end
    if copied == start + 4:
        return doc[start:end_of_document]
    parts.append(doc[copied : end_of_document - 1])
    return raw.document(*parts)


def stripped(event: bytes) -> bytes:
    """Give what of an event holds no value of a document: what a dead letter may keep when no policy can be applied.

    The token is left out too, because it may hold an `_id`.
    """
    view = ChangeEvent(event)
    try:
        spans = view.spans
    except EventUnconvertible:
        return raw.EMPTY
    named = [(name, spans[name]) for name in _ABOUT_THE_EVENT[1:] if name in spans]
    return raw.document(*(raw.element(kind, name, event[begin:end]) for name, (kind, begin, end) in named))


_MOST_STATES: Final = 1_000
"""Rules with more states, as many `**` may have, are left to the reference."""
_ACTIONS: Final = {Kind.TRUNCATE: 1, Kind.HASH: 2, Kind.MASK: 3, Kind.DROP: 4}
_NO_ACTION: Final = 0

State = tuple[int, int, bool, bool, bool]
"""The action and the length that it leaves; whether the field is kept, untouched, or may contain what is kept."""


class CompiledPolicy:
    """Hands events to the kernel, teaches it the rules of collections, and has the reference do the rest."""

    def __init__(
        self, compiled: Any, event: Callable[[bytes], bytes], fields: Callable[[str], FieldState | None]
    ) -> None:
        self.compiled = compiled
        """The kernel's `Policy`, for a format that applies it while it makes records."""
        self.reference = event
        """Applies the rules to an event that the kernel declines."""
        self._fields = fields
        self._learned = 0

    def events(self, events: Sequence[bytes]) -> list[bytes]:
        """Give the events as they may leave the process."""
        made: list[bytes]
        made, declined, unknown = self.compiled.events(events)
        if unknown:
            self.learn(unknown)
            made, declined, _ = self.compiled.events(events)
        for index in declined:
            made[index] = self.reference(made[index])
        return made

    def learn(self, namespaces: Collection[str]) -> None:
        """Teach the kernel the rules of collections; beyond what it may hold the reference looks at their events."""
        if self._learned + len(namespaces) > _MOST_NAMESPACES:
            self.compiled.forget()
            self._learned = 0
        for namespace in itertools.islice(namespaces, _MOST_NAMESPACES):
            self._learned += 1
            self._learn(namespace)

    def _learn(self, namespace: str) -> None:
        root = self._fields(namespace)
        tables = None if root is None else tables_of(root)
        if "." not in namespace:  # no collection's: rare, and the reference sees whether it may be
            self.compiled.learn(namespace, False)
        elif root is None or tables is None:
            self.compiled.learn(namespace, root is None)
        else:
            ends = None if root.ends is None else sorted(root.ends)
            self.compiled.learn_rules(namespace, sorted(root.names), ends, *tables)


def tables_of(root: FieldState) -> tuple[list[State], list[int], list[int]] | None:
    """Number the states that can be reached: each of them, and by state and name where fields and positions lead.

    The names are `OTHER` and then those that rules spell out, in order. None when there are too many states.
    """
    names = [OTHER, *sorted(root.names)]
    numbers = {id(root): 0}
    states = [root]

    def number(state: FieldState) -> int:
        if id(state) not in numbers:
            numbers[id(state)] = len(states)
            states.append(state)
        return numbers[id(state)]

    fields: list[int] = []
    positions: list[int] = []
    for state in states:  # which grows meanwhile
        if len(states) > _MOST_STATES:
            return None
        fields += [number(state.field(name)) for name in names]
        positions += [number(state.position(name)) for name in names]
    return [_described(state) for state in states], fields, positions


def _described(state: FieldState) -> State:
    action = _NO_ACTION if state.action is None else _ACTIONS[state.action.kind]
    length = 0 if state.action is None else state.action.length
    return action, length, state.is_kept, state.is_untouched, state.may_contain_kept
