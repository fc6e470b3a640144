"""Let Python look for reference cycles less often while records are made: they have none, and there are many."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS_BETWEEN_COLLECTIONS = 50_000


@contextmanager
def fewer_garbage_collections() -> Iterator[None]:
    """Raise the collector's threshold while the block runs; a fifth of the time of `json` goes into it otherwise."""
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS_BETWEEN_COLLECTIONS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
