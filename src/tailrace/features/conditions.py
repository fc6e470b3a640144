"""Which documents a feature is computed of: MongoDB's own query language, evaluated by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from bson import json_util

from tailrace import raw
from tailrace.engine.expression import Pipeline, compile_pipeline
from tailrace.errors import ChangeStreamError, SettingsError
from tailrace.raw import extended_json

_DIALECT: Final = "6.0.5"
_NOTHING: Final = "\ufeffnothing"
"""A field that nobody has: it is what is kept of a document, so that only the condition's own fields are read."""
_SECONDS: Final = 1.0
"""The processor time that a condition may take for one document."""


def condition_text(where: Mapping[str, Any], feature: str) -> str:
    """Give the form in which a definition keeps a condition; refuse one that MongoDB would."""
    text = extended_json.canonical(dict(where)).decode()
    try:
        pipeline = _compiled(text)
    except ChangeStreamError as error:
        hint = 'Write it as for find(): where = { status = "paid", amount = { "$gt" = 100 } }.'
        raise SettingsError(f"feature {feature} has a condition that cannot be evaluated: {error}", hint=hint) from None
    if pipeline.fields is None:
        hint = "Name the fields one by one; $expr over whole documents is not possible."
        raise SettingsError(f"the condition of the feature {feature} looks at whole documents", hint=hint)
    return text


def fields_of(text: str) -> list[str]:
    """Give the top-level fields that a condition looks at."""
    fields = _compiled(text).fields
    assert fields is not None
    return sorted(fields - {_NOTHING})


def holds(text: str, fields: Mapping[str, Any]) -> bool:
    """Tell whether a document with these fields fulfils a condition."""
    return _compiled(text)(raw.encode(fields)) is not None


@lru_cache(maxsize=256)
def _compiled(text: str) -> Pipeline:
    stages = [{"$match": json_util.loads(text)}, {"$project": {"_id": 0, _NOTHING: 1}}]
    return compile_pipeline(stages, server_version=_DIALECT, seconds=_SECONDS)
