"""From the settings to a format."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.capture.formats.bson import BsonFormat
from tailrace.capture.formats.debezium import DebeziumFormat
from tailrace.capture.formats.flat import FlatFormat
from tailrace.capture.formats.format import Format
from tailrace.capture.formats.function import FunctionFormat
from tailrace.capture.formats.json import CanonicalFormat, JsonFormat
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.plugins import load_object
from tailrace.errors import SettingsError

NAMES = ("json", "canonical", "bson", "flat", "debezium")


def make_format(
    name: str,
    *,
    key_field: str | None = None,
    fields: Sequence[str] = (),
    tombstones: bool | None = None,
    server_name: str = "tailrace",
    looks_up: bool = False,
) -> Format:
    """Make the format called `name`, or the one of a user's function, `module:function`.

    `fields` are those of `flat`; `server_name` is `source.name` of `debezium`; `tombstones` follow deletes, by default
    with `debezium` only; `looks_up` says that the stream looks documents up after their events.
    """
    made = _make(name, key_field, fields, tombstones, server_name)
    made.looks_up = looks_up
    return made


def _make(name: str, key_field: str | None, fields: Sequence[str], tombstones: bool | None, server_name: str) -> Format:
    key = KeyRule(key_field) if key_field else DOCUMENT_KEY
    wanted = (name == "debezium") if tombstones is None else tombstones
    if name == "json":
        return JsonFormat(key, tombstones=wanted)
    if name == "canonical":
        return CanonicalFormat(key, tombstones=wanted)
    if name == "bson":
        return BsonFormat(key, tombstones=wanted)
    if name == "flat":
        return FlatFormat(fields, key, tombstones=wanted)
    if name == "debezium":
        return DebeziumFormat(server_name, key, tombstones=wanted)
    if ":" in name:
        return FunctionFormat(load_object(name), key, tombstones=wanted)
    raise SettingsError(f"there is no format {name!r}", hint=f"Use {', '.join(NAMES)} or module:function.")
