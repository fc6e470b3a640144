"""Features per entity in Redis: how they are declared, kept and read.

Belongs here: the definition, the windows, what an event contributes, the scripts that keep the state inside Redis, and
`read()`, which an application calls and which needs no Spark; `job` runs it all on Spark. Does not: how events arrive
(`spark`).
"""

from tailrace.features.definition import Definition, Feature, Kind, load_definition
from tailrace.features.reading import FeatureValues, read
from tailrace.features.store import FeatureStore
from tailrace.features.windows import FOREVER, Window

__all__ = [
    "FOREVER",
    "Definition",
    "Feature",
    "FeatureStore",
    "FeatureValues",
    "Kind",
    "Window",
    "load_definition",
    "read",
]
