"""Events as a user's function writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.capture.formats.decoded import DecodedFormat
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json


class FunctionFormat(DecodedFormat):
    """What `function(event)` returns for the decoded event becomes the value.

    None leaves the event out; `bytes` and `str` are written as they are; documents, lists and all BSON types as relaxed
    Extended JSON. A function that raises sends the event to the dead letters.
    """

    def __init__(
        self, function: Callable[[dict[str, Any]], Any], key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False
    ) -> None:
        if not callable(function):
            hint = "Write module:function in capture.format."
            raise SettingsError(f"{function!r} is no function that could be a format", hint=hint)
        super().__init__(key, tombstones=tombstones)
        self._function = function

    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes | None:
        try:
            value = self._function(extended_json.decode_for_people(view.raw))
        except Exception as error:
            name = getattr(self._function, "__qualname__", self._function)
            raise EventUnconvertible(f"{name} raised {type(error).__name__}: {error}") from error
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else extended_json.relaxed_of(value)
