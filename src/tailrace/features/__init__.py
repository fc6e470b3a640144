"""Features per entity in Redis: how they are declared, kept and read.

Belongs here: the definition, the windows, what an event contributes, the scripts that keep the state inside Redis, and
`read()`, which an application calls and which needs no Spark; `job` runs it all on Spark. Does not: how events arrive
(`spark`).
"""

from tailrace.features.declaration import load_definition
from tailrace.features.definition import Definition, Feature, Kind, Source
from tailrace.features.reading import FeatureValues, read, read_named
from tailrace.features.store import FeatureStore
from tailrace.features.windows import FOREVER, Window

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
