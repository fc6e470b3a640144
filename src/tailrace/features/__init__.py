"""Features per entity in Redis: how they are declared, kept and read.

Belongs here: the definition, the windows, what an event contributes, the scripts that keep the state inside Redis, and
`read()`, which an application calls and which needs no Spark; `job` runs it all on Spark. Does not: how events arrive
(`spark`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tailrace.features.declaration import load_definition
from tailrace.features.definition import Definition, Feature, Kind, Source
from tailrace.features.windows import FOREVER, Window

if TYPE_CHECKING:
    from tailrace.features.reading import FeatureValues, read, read_named
    from tailrace.features.store import FeatureStore

__all__ = [
    "FOREVER",
    "Definition",
    "Feature",
    "FeatureStore",
    "FeatureValues",
    "Kind",
    "Source",
    "Window",
    "load_definition",
    "read",
    "read_named",
]

_WITH_REDIS = {
    "FeatureStore": "tailrace.features.store",
    "FeatureValues": "tailrace.features.reading",
    "read": "tailrace.features.reading",
    "read_named": "tailrace.features.reading",
}


def __getattr__(name: str) -> object:
    """Import what needs Redis's client when it is asked for: definitions are read and tried without."""
    if name in _WITH_REDIS:
        return getattr(import_module(_WITH_REDIS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
