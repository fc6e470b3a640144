"""The kind of an event: what has to match before the next one of it is believed.

Operation and kind of namespace are what a report shows. The shape is part of the kind too, because the engine makes
events of another shape in another way: an `_id` of another type has other bits in the token, a truncated array takes
another path through the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tailrace import raw
from tailrace.errors import BsonMalformed
from tailrace.raw.bson_types import TYPE_NAMES

_DOCUMENTS: Final = frozenset({"insert", "update", "replace", "delete"})


class NamespaceKind(StrEnum):
    """What the operation was done to, or in."""

    PLAIN = "plain"
    SHARDED = "sharded"
    TRANSACTION = "transaction"
    DDL = "ddl"


@dataclass(frozen=True, slots=True)
class Kind:
    """Operation, kind of namespace, and shape."""

    operation: str
    namespace: NamespaceKind
    shape: str = ""

    @classmethod
    def of(cls, event: bytes) -> Kind:
        """Read an event's kind; bytes that are no event have one too."""
        try:
            return _read(event)
        except (BsonMalformed, UnicodeDecodeError, IndexError):
            return UNREADABLE

    @property
    def name(self) -> str:
        """What reports and metrics show: `update/sharded`."""
        return f"{self.operation}/{self.namespace.value}"

    @property
    def key(self) -> str:
        """The whole kind as a text, which a ledger keeps."""
        return f"{self.name} {self.shape}".rstrip()

    @classmethod
    def parse(cls, key: str) -> Kind:
        """Read what `key` gives."""
        name, _, shape = key.partition(" ")
        operation, _, namespace = name.rpartition("/")
        return cls(operation, NamespaceKind(namespace), shape)


MARK: Final = Kind("mark", NamespaceKind.PLAIN)
"""The positions of empty batches, which are no events and compared all the same."""
UNREADABLE: Final = Kind("unreadable", NamespaceKind.PLAIN)


def _read(event: bytes) -> Kind:
    operation, in_transaction, key_fields = "", False, 0
    shape: list[str] = []
    for kind, field, begin, end in raw.elements(event):
        name = field.decode()
        if name == "operationType" and kind == raw.STRING:
            operation = event[begin + 4 : end - 1].decode()
        elif name == "lsid":
            in_transaction = True
        elif name == "documentKey" and kind == raw.DOCUMENT:
            types = [TYPE_NAMES.get(each[0], "?") for each in raw.elements(event, begin)]
            key_fields = len(types)
            name += f"({','.join(types)})"
        elif name == "updateDescription" and kind == raw.DOCUMENT:
            name += f"({','.join(_parts_of_update(event, begin))})"
        elif name == "operationDescription" and kind == raw.DOCUMENT:
            name += f"({','.join(each[1].decode() for each in raw.elements(event, begin))})"
        elif kind == raw.NULL:
            name += "(null)"
        shape.append(name)
    if operation not in _DOCUMENTS:
        namespace = NamespaceKind.DDL
    elif in_transaction:
        namespace = NamespaceKind.TRANSACTION
    else:
        namespace = NamespaceKind.SHARDED if key_fields > 1 else NamespaceKind.PLAIN
    return Kind(operation or "unreadable", namespace, ";".join(shape))


def _parts_of_update(event: bytes, start: int) -> list[str]:
    """Name the parts that say something, and whether their paths lead into documents or arrays."""
    parts = []
    for _, field, begin, _ in raw.elements(event, start):
        inside = list(raw.elements(event, begin))
        if inside:
            names = [each[1] for each in inside] if field == b"updatedFields" else []
            nested = "." if any(b"." in name for name in names) else ""
            index = "#" if any(part.isdigit() for name in names for part in name.split(b".")[1:]) else ""
            parts.append(f"{field.decode()}{nested}{index}")
    return parts
