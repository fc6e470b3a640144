"""Reads definitions: TOML files, or objects of a Python module. Unknown words are refused with what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tailrace.capture.plugins import load_object
from tailrace.errors import SettingsError
from tailrace.features.conditions import condition_text
from tailrace.features.definition import Definition, Feature, Kind, Source, suggestion
from tailrace.features.windows import FOREVER, Window, parse_duration
from tailrace.settings_source import read_toml

_KINDS: Final = {**{kind.value: kind for kind in Kind}, "avg": Kind.MEAN}
_KEYS: Final = {"name", "namespace", "entity", "time", "time_zone", "lateness", "ttl", "source", "feature"}
_SOURCE_KEYS: Final = {"namespace", "entity", "time"}
_FEATURE_KEYS: Final = {
    "name", "kind", "of", "window", "windows", "time_zone", "approximate", "where", "from", "q", "n", "expression",
    "default",
}  # fmt: skip


def load_definition(name: str) -> Definition:
    """Read a TOML file, or take the object that `module:name` stands for."""
    if not name.endswith(".toml") and ":" in name:
        found = load_object(name)
        if not isinstance(found, Definition):
            raise SettingsError(f"{name} is not a Definition", hint="Make it with tailrace.features.Definition(...).")
        return found
    return parse_definition(read_toml(Path(name), "Name a TOML file or module:name."))


def parse_definition(form: Mapping[str, Any]) -> Definition:
    """Read a definition from the tables of a TOML file."""
    _refuse_unknown("the definition", form, _KEYS)
    sources = [_source(one) for one in form.get("source", ())]
    if not sources or "namespace" in form:
        sources.insert(0, _source({key: form[key] for key in _SOURCE_KEYS if key in form}, "the definition"))
    if not form.get("name"):
        raise SettingsError("the definition has no name", hint="See examples/fraud_signals.")
    first, *others = sources
    return Definition(
        name=form["name"],
        namespace=first.namespace,
        entity=first.entity,
        time=first.time,
        features=tuple(one for each in form.get("feature", ()) for one in _features(each, form.get("time_zone"))),
        lateness_ms=parse_duration(form.get("lateness", "1d")),
        ttl_ms=parse_duration(form["ttl"]) if "ttl" in form else None,
        others=tuple(others),
    )


def _source(form: Mapping[str, Any], what: str = "a source") -> Source:
    _refuse_unknown(what, form, _SOURCE_KEYS)
    missing = [key for key in ("namespace", "entity", "time") if not form.get(key)]
    if missing:
        raise SettingsError(f"{what} has no {', '.join(missing)}", hint="See examples/fraud_signals.")
    entity = form["entity"]
    fields = [entity] if isinstance(entity, str) else entity
    if not isinstance(fields, list) or not fields or not all(isinstance(one, str) and one for one in fields):
        raise SettingsError(f"{entity!r} names no entity", hint='Write a field, or several: ["user_id", "merchant"].')
    return Source(form["namespace"], entity if isinstance(entity, str) else tuple(fields), form["time"])


def _features(form: Mapping[str, Any], time_zone: str | None) -> Iterator[Feature]:
    """Give the features of one table: one for each window that it names."""
    _refuse_unknown("a feature", form, _FEATURE_KEYS)
    name, kind = form.get("name", ""), _kind(form.get("kind", "expression" if "expression" in form else None))
    if "window" in form and "windows" in form:
        raise SettingsError(f"feature {name} has window and windows", hint="Write one of them.")
    if kind is Kind.EXPRESSION and {"window", "windows"} & form.keys():
        hint = "The features that it is made of have windows."
        raise SettingsError(f"feature {name} is an expression, which has no window", hint=hint)
    where = form.get("where", {})
    if not isinstance(where, Mapping):
        raise SettingsError(f"the condition of the feature {name} is not a table", hint='where = { status = "paid" }')
    texts: Sequence[str] = form.get("windows", [form.get("window", "forever")])
    if not isinstance(texts, list) or not texts:
        raise SettingsError(f"feature {name} has windows that are no list", hint='windows = ["1m", "1h", "today"]')
    for text in texts:
        yield Feature(
            _named(name, text) if "windows" in form else name,
            kind,
            FOREVER if kind is Kind.EXPRESSION else Window.parse(text, form.get("time_zone", time_zone)),
            form.get("of"),
            bool(form.get("approximate", False)),
            condition_text(where, name) if where else "",
            form.get("from", ""),
            form.get("q"),
            form.get("n"),
            form.get("expression", ""),
            form.get("default"),
        )


def _named(name: str, window: str) -> str:
    """Give the name of a feature in one of its windows: where the name says it, or behind it."""
    return name.replace("{window}", window) if "{window}" in name else f"{name}_{window}"


def _kind(name: Any) -> Kind:
    if name in _KINDS:
        return _KINDS[name]
    hint = suggestion(str(name), _KINDS) or f"Choose {', '.join(_KINDS)}."
    raise SettingsError(f"there is no kind of feature {name!r}", hint=hint)


def _refuse_unknown(what: str, form: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(form.keys() - known)
    if unknown:
        hint = suggestion(unknown[0], known) or f"It has {', '.join(sorted(known))}."
        raise SettingsError(f"{what} has no key {', '.join(unknown)}", hint=hint)
