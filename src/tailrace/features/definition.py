"""What a set of features is, checked once; `declaration` reads it from TOML."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from tailrace.errors import SettingsError
from tailrace.features.arithmetic import names_in, parse_expression
from tailrace.features.conditions import fields_of
from tailrace.features.windows import Window

_RESERVED = {"as_of", "updated_at", "freshness_ms", "position", "computed_at", "valid_until"}
DAY_MS = 86_400_000
_LAYOUT = 2
"""How keys and rows in Redis look; state of another layout is refused like that of another definition."""


class Kind(StrEnum):
    """What is computed."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STDDEV = "stddev"
    """Of a sample, as $stdDevSamp."""
    PERCENTILE = "percentile"
    """The value of a rank, within 1 %."""
    DISTINCT = "distinct"
    VELOCITY = "velocity"
    """Events per minute."""
    LAST = "last"
    """The value of the newest document."""
    SINCE_LAST = "since_last"
    """Seconds since the newest document."""
    EXPRESSION = "expression"
    """Arithmetic over other features."""


_WITHOUT_FIELD = {Kind.COUNT, Kind.VELOCITY, Kind.SINCE_LAST, Kind.EXPRESSION}
BY_ROW = {Kind.COUNT, Kind.VELOCITY, Kind.LAST, Kind.SINCE_LAST}
"""Kinds that look at rows as a whole; the others look at single values of them."""
_MARKS = {Kind.STDDEV: "^", Kind.PERCENTILE: "%"}
MOST_LAST = 1_000
Default = str | float | bool | None


@dataclass(frozen=True, slots=True)
class Feature:
    """One value of an entity."""

    name: str
    kind: Kind
    window: Window
    of: str | None = None
    """The field it is computed of, a dotted path."""
    approximate: bool = False
    """distinct: count with bounded memory, within about 2 %."""

    where: str = ""
    """Only documents that fulfil this condition count: Extended JSON, as for find()."""
    namespace: str = ""
    """Only documents of this source count; empty is all."""
    q: float | None = None
    """percentile: which one, such as 0.95."""
    n: int | None = None
    """last: the values of this many documents, the newest first."""
    expression: str = ""
    default: Default = None
    """What stands for no value."""

    @property
    def condition(self) -> str:
        """How the documents that count are called in the state; empty when all do."""
        if not self.where and not self.namespace:
            return ""
        return hashlib.blake2b(f"{self.namespace}\0{self.where}".encode(), digest_size=4).hexdigest()

    @property
    def source(self) -> str:
        """How the values it is computed of are called in the state."""
        mark = "~" if self.approximate else _MARKS.get(self.kind, "")
        condition = f"?{self.condition}" if self.condition and self.kind not in BY_ROW else ""
        return f"{self.of}{mark}{condition}" if self.of else ""

    def problem(self) -> str | None:
        """Say what is wrong with it."""
        if self.name in _RESERVED or not self.name:
            return "has a name that is taken"
        if self.kind in _WITHOUT_FIELD and self.of is not None:
            return f"is a {self.kind}, which is of no field"
        if self.kind not in _WITHOUT_FIELD and not self.of:
            return f"is a {self.kind} and does not say of which field"
        if self.kind is Kind.VELOCITY and self.window.length is None:
            return "is a velocity, which needs a rolling window"
        if self.approximate and self.kind is not Kind.DISTINCT:
            return "is approximate, which only distinct can be"
        if (self.kind is Kind.PERCENTILE) != (self.q is not None) or not 0 < (self.q or 0.5) <= 1:
            return "is a percentile without a q above 0 and up to 1, or has a q without being one"
        if self.n is not None and (self.kind is not Kind.LAST or not 0 < self.n <= MOST_LAST):
            return f"has an n, which only last has, from 1 to {MOST_LAST:,}"
        if (self.kind is Kind.EXPRESSION) != bool(self.expression):
            return "is an expression without one, or has an expression without being one"
        if self.default is not None and not isinstance(
            self.default, str | float | int if self.kind is Kind.LAST and self.n is None else float | int
        ):
            return "has a default that its values cannot be"
        if self.kind is Kind.EXPRESSION and (self.where or self.namespace):
            return "is an expression, which is of features and not of documents"
        return None


@dataclass(frozen=True, slots=True)
class Source:
    """A collection whose documents belong to entities."""

    namespace: str
    entity: str | tuple[str, ...]
    """The field whose value is the entity, or the fields whose values together are."""
    time: str
    """The field with the time of the event."""

    @property
    def entity_fields(self) -> tuple[str, ...]:
        """The fields of the entity."""
        return (self.entity,) if isinstance(self.entity, str) else self.entity


@dataclass(frozen=True)
class Definition:
    """A set of features of one kind of entity, from one collection (or table, or topic) or several."""

    name: str
    """The prefix of its keys in Redis. A changed definition needs a new one, and is filled beside the old."""
    namespace: str
    """`db.collection`."""
    entity: str | tuple[str, ...]
    """The field whose value is the entity, such as `user_id`, or the fields whose values together are."""
    time: str
    """The field with the time of the event."""
    features: tuple[Feature, ...]
    lateness_ms: int = DAY_MS
    """How late an event, or the repetition of one, may come."""
    ttl_ms: int | None = None
    """How long an entity without events is kept; by default as long as a window reaches, or for ever with `forever`."""
    others: tuple[Source, ...] = ()
    """More collections whose documents belong to the same entities."""

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if not names:
            raise SettingsError(f"the definition {self.name} has no features", hint="Add a table [[feature]].")
        if len(set(names)) != len(names) or not self.name or {":", "#"} & set(self.name):
            raise SettingsError(f"the names in the definition {self.name!r} are not good", hint="Each once, no : or #.")
        for feature in self.features:
            problem = feature.problem()
            if problem:
                raise SettingsError(f"feature {feature.name} {problem}", hint="See docs/spark.md for the kinds.")
        self._check_sources()
        self._check_expressions()

    def _check_sources(self) -> None:
        known = [source.namespace for source in self.sources]
        if len(set(known)) != len(known):
            raise SettingsError(f"the definition {self.name} names a collection twice", hint="Name each source once.")
        for feature in self.features:
            if feature.namespace and feature.namespace not in known:
                raise SettingsError(
                    f"feature {feature.name} is of {feature.namespace}, which is not a source",
                    hint=f"The sources are {', '.join(known)}.",
                )

    def _check_expressions(self) -> None:
        """An expression is of features that are declared before it, so none is of itself."""
        before: list[str] = []
        for feature in self.features:
            missing = (
                [name for name in names_in(parse_expression(feature.expression)) if name not in before]
                if (feature.expression)
                else []
            )
            if missing:
                hint = suggestion(missing[0], before) or "An expression names features that are declared before it."
                raise SettingsError(
                    f"feature {feature.name} is of {missing[0]}, which is not declared before it", hint=hint
                )
            before.append(feature.name)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The collections, the first one first."""
        return (Source(self.namespace, self.entity, self.time), *self.others)

    @cached_property
    def namespaces(self) -> list[str]:
        """Their names."""
        return [source.namespace for source in self.sources]

    @cached_property
    def conditions(self) -> dict[str, tuple[str, str]]:
        """Namespace and filter of the conditions that features of whole rows have, by their names in the state."""
        return {
            one.condition: (one.namespace, one.where) for one in self.features if one.condition and one.kind in BY_ROW
        }

    def source_of(self, namespace: str) -> Source:
        """Give the source of a namespace; the first one when that is empty."""
        return next((source for source in self.sources if source.namespace == namespace), self.sources[0])

    @cached_property
    def windows(self) -> list[Window]:
        """The windows of its features, each once."""
        return list(dict.fromkeys(one.window for one in self.features if one.kind is not Kind.EXPRESSION))

    def paths(self, source: Source) -> list[str]:
        """The fields that are looked at in the documents of a source; conditions look at whole top-level fields."""
        mine = [one for one in self.features if one.namespace in ("", source.namespace)]
        conditions = (name for one in mine if one.where for name in fields_of(one.where))
        fields = [*source.entity_fields, source.time, *(one.of for one in mine if one.of), *conditions]
        return list(dict.fromkeys(fields))

    @property
    def has_forever(self) -> bool:
        """Whether a window holds everything."""
        return any(window.is_forever for window in self.windows)

    @property
    def reach_ms(self) -> int | None:
        """How old an event may be and still count; None for ever."""
        return None if self.has_forever else max(window.longest for window in self.windows) + self.lateness_ms

    @property
    def lifetime_ms(self) -> int | None:
        """How long the state of an entity without events is kept; None for ever."""
        return self.ttl_ms if self.ttl_ms is not None else self.reach_ms

    def to_json(self) -> str:
        """Give the form in which a job leaves it in Redis for readers."""
        form = {**_form_of(self), "features": [_form_of(feature) for feature in self.features], "layout": _LAYOUT}
        return json.dumps(form, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Definition:
        """Read what `to_json` gave."""
        form = json.loads(text)
        form.pop("layout", None)
        features = tuple(
            Feature(**{**feature, "kind": Kind(feature["kind"]), "window": Window(**feature["window"])})
            for feature in form.pop("features")
        )
        others = tuple(Source(**{**one, "entity": _names(one["entity"])}) for one in form.pop("others", ()))
        return cls(**{**form, "entity": _names(form["entity"])}, features=features, others=others)

    def values_of(self, window: Window, kinds: set[Kind]) -> list[str]:
        """Give the sources that features of these kinds have in a window, each once."""
        chosen = (one.source for one in self.features if one.window == window and one.kind in kinds)
        return list(dict.fromkeys(chosen))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Give a question for the word that was meant, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else ""


def _form_of(value: Definition | Feature) -> dict[str, Any]:
    """Give the fields of a value; those that came later are left out where nobody sets them, as they were before."""
    form = asdict(value)
    since_layout_2 = (
        {"where", "namespace", "q", "n", "expression", "default"} if isinstance(value, Feature) else {"others"}
    )
    for one in fields(value):
        if one.name in since_layout_2 and one.default is not MISSING and getattr(value, one.name) == one.default:
            form.pop(one.name)
    return form


def _names(entity: Any) -> str | tuple[str, ...]:
    return entity if isinstance(entity, str) else tuple(entity)
