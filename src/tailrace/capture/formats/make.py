"""From the settings to a format, and from its name to its decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.capture.formats.bson import BsonDecoder, BsonFormat
from tailrace.capture.formats.debezium import DebeziumDecoder, DebeziumFormat
from tailrace.capture.formats.flat import FlatDecoder, FlatFormat
from tailrace.capture.formats.format import Format
from tailrace.capture.formats.function import FunctionFormat
from tailrace.capture.formats.json import CanonicalDecoder, CanonicalFormat, JsonDecoder, JsonFormat
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.formats.stored_records import RecordDecoder
from tailrace.capture.plugins import load_object
from tailrace.errors import SettingsError

_DECODERS: Mapping[str, type[RecordDecoder]] = {
    decoder.name: decoder for decoder in (JsonDecoder, CanonicalDecoder, BsonDecoder, FlatDecoder, DebeziumDecoder)
}
NAMES = tuple(_DECODERS)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What the settings say of a format, and all that another process needs to make the same one."""

    name: str
    """One of `NAMES`, or a user's function, `module:function`."""
    key_field: str | None = None
    fields: Sequence[str] = ()
    """Those of `flat`."""
    tombstones: bool | None = None
    """Whether they follow deletes; by default with `debezium` only."""
    server_name: str = "tailrace"
    """`source.name` of `debezium`."""
    looks_up: bool = False
    """Whether the stream looks documents up after their events."""
    keeps_unrepresentable: bool = False
    """Whether events that the format cannot carry whole are written all the same, with a header."""

    @property
    def is_users_function(self) -> bool:
        """Whether it is a user's function, which may remember things and so runs in one process only."""
        return ":" in self.name

    def make(self) -> Format:
        """Make the format."""
        made = self._make()
        made.looks_up = self.looks_up
        made.keeps_unrepresentable = self.keeps_unrepresentable
        return made

    def _make(self) -> Format:
        name, key = self.name, KeyRule(self.key_field) if self.key_field else DOCUMENT_KEY
        wanted = (name == "debezium") if self.tombstones is None else self.tombstones
        if name == "json":
            return JsonFormat(key, tombstones=wanted)
        if name == "canonical":
            return CanonicalFormat(key, tombstones=wanted)
        if name == "bson":
            return BsonFormat(key, tombstones=wanted)
        if name == "flat":
            return FlatFormat(self.fields, key, tombstones=wanted)
        if name == "debezium":
            return DebeziumFormat(self.server_name, key, tombstones=wanted)
        if self.is_users_function:
            return FunctionFormat(load_object(name), key, tombstones=wanted)
        raise SettingsError(f"there is no format {name!r}", hint=f"Use {', '.join(NAMES)} or module:function.")


def make_format(name: str, **options: Any) -> Format:
    """Make the format called `name`; the options are those of `FormatOptions`."""
    return FormatOptions(name, **options).make()


def decoder_of(name: str) -> RecordDecoder:
    """Give the decoder of a format; records of a user's own function cannot be read back."""
    if name not in _DECODERS:
        raise SettingsError(
            f"records of the format {name!r} cannot be read back", hint=f"Possible with {', '.join(NAMES)}."
        )
    return _DECODERS[name]()
