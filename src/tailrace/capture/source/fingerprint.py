"""Which stream a token belongs to, as a short text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import bson


def fingerprint_of(namespaces: Sequence[str], pipeline: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Give a short text that changes when the stream that a token belongs to changes.

    Order matters in a pipeline and inside its stages, and in nothing else.
    """
    document = {
        "namespaces": sorted(namespaces),
        "pipeline": list(pipeline),
        "options": dict(sorted(options.items())),
    }
    return hashlib.sha256(bson.encode(document)).hexdigest()[:16]
