"""What a set of features is: declared in TOML or in Python, checked once."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tailrace.capture.plugins import load_object
from tailrace.errors import SettingsError
from tailrace.features.windows import Window, parse_duration

_RESERVED = {"as_of", "updated_at", "freshness_ms", "position", "computed_at", "valid_until"}
DAY_MS = 86_400_000


class Kind(StrEnum):
    """What is computed."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    DISTINCT = "distinct"
    VELOCITY = "velocity"
    """Events per minute."""
    LAST = "last"
    """The value of the newest document."""
    SINCE_LAST = "since_last"
    """Seconds since the newest document."""


_WITHOUT_FIELD = {Kind.COUNT, Kind.VELOCITY, Kind.SINCE_LAST}


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

    @property
    def source(self) -> str:
        """How the values it is computed of are called in the state."""
        return f"{self.of}~" if self.approximate else self.of or ""

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
        return None


@dataclass(frozen=True, slots=True)
class Definition:
    """A set of features of one kind of entity, from one collection (or table, or topic)."""

    name: str
    """The prefix of its keys in Redis. A changed definition needs a new one, and is filled beside the old."""
    namespace: str
    """`db.collection`."""
    entity: str
    """The field whose value is the entity, such as `user_id`."""
    time: str
    """The field with the time of the event."""
    features: tuple[Feature, ...]
    lateness_ms: int = DAY_MS
    """How late an event, or the repetition of one, may come."""
    ttl_ms: int | None = None
    """How long an entity without events is kept; by default as long as a window reaches, or for ever with `forever`."""

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if not names:
            raise SettingsError(f"the definition {self.name} has no features", hint="Add a table [[feature]].")
        if len(set(names)) != len(names) or not self.name or ":" in self.name:
            raise SettingsError(f"the names in the definition {self.name!r} are not good", hint="Each once, no colon.")
        for feature in self.features:
            problem = feature.problem()
            if problem:
                raise SettingsError(f"feature {feature.name} {problem}", hint="See docs/spark.md for the kinds.")

    @property
    def windows(self) -> list[Window]:
        """The windows of its features, each once."""
        return list(dict.fromkeys(feature.window for feature in self.features))

    @property
    def paths(self) -> list[str]:
        """The fields that are looked at."""
        return list(dict.fromkeys([self.entity, self.time, *(feature.of for feature in self.features if feature.of)]))

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

    @property
    def fingerprint(self) -> str:
        """A text that changes with the definition."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Give the form in which a job leaves it in Redis for readers."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Definition:
        """Read what `to_json` gave."""
        form = json.loads(text)
        features = tuple(
            Feature(**{**feature, "kind": Kind(feature["kind"]), "window": Window(**feature["window"])})
            for feature in form.pop("features")
        )
        return cls(**form, features=features)

    def values_of(self, window: Window, kinds: set[Kind]) -> list[str]:
        """Give the sources that features of these kinds have in a window, each once."""
        chosen = (one.source for one in self.features if one.window == window and one.kind in kinds)
        return list(dict.fromkeys(chosen))


def load_definition(name: str) -> Definition:
    """Read a TOML file, or take the object that `module:name` stands for."""
    if not name.endswith(".toml") and ":" in name:
        found = load_object(name)
        if not isinstance(found, Definition):
            raise SettingsError(f"{name} is no Definition", hint="Make it with tailrace.features.Definition(...).")
        return found
    try:
        form = tomllib.loads(Path(name).read_text())
    except OSError as error:
        raise SettingsError(f"cannot read {name}: {error.strerror}", hint="Name a TOML file or module:name.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name} is not TOML: {error}", hint="Correct the line it names.") from None
    return parse_definition(form)


def parse_definition(form: Mapping[str, Any]) -> Definition:
    """Read a definition from the tables of a TOML file."""
    keys = {"name", "namespace", "entity", "time", "time_zone", "lateness", "ttl", "feature"}
    _refuse_unknown("the definition", form, keys)
    missing = [key for key in ("name", "namespace", "entity", "time") if not form.get(key)]
    if missing:
        raise SettingsError(f"the definition has no {', '.join(missing)}", hint="See examples/fraud_signals.")
    return Definition(
        name=form["name"],
        namespace=form["namespace"],
        entity=form["entity"],
        time=form["time"],
        features=tuple(_features(form.get("feature", ()), form.get("time_zone"))),
        lateness_ms=parse_duration(form.get("lateness", "1d")),
        ttl_ms=parse_duration(form["ttl"]) if "ttl" in form else None,
    )


def _features(forms: Sequence[Mapping[str, Any]], time_zone: str | None) -> list[Feature]:
    features = []
    for form in forms:
        _refuse_unknown("a feature", form, {"name", "kind", "of", "window", "time_zone", "approximate"})
        kind = form.get("kind")
        if kind not in set(Kind):
            raise SettingsError(f"there is no kind of feature {kind!r}", hint=f"Choose {', '.join(Kind)}.")
        window = Window.parse(form.get("window", "forever"), form.get("time_zone", time_zone))
        name = form.get("name", "")
        features.append(Feature(name, Kind(kind), window, form.get("of"), bool(form.get("approximate", False))))
    return features


def _refuse_unknown(what: str, form: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(form.keys() - known)
    if unknown:
        raise SettingsError(f"{what} has no key {', '.join(unknown)}", hint=f"It has {', '.join(sorted(known))}.")
