"""The schema of a collection's documents, derived from those seen: as Avro and as JSON Schema.

It only grows: fields are added, each optional with null as its default; an int becomes a long; a second type becomes a
second branch. A registry judges whether its consumers can bear that. The schema is read back from the registry when a
process begins, so that processes agree and nothing is forgotten.

Types that Avro lacks are strings: ObjectIds and decimals as such, everything else (regular expressions, code,
timestamps) as canonical Extended JSON. A field that is null and one that is not there are alike. What the client has
encrypted is bytes, and the schema names such fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Any, Final

from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from tailrace.capture.formats.plain import loss_of_scalar, plain_value
from tailrace.policy.actions import ENCRYPTED_SUBTYPE
from tailrace.raw import extended_json

Json = dict[str, Any]
Write = Callable[[Any, bytearray], None]
UnionPlan = tuple[list[str], "RecordPlan | None", "UnionPlan | None"]
RecordPlan = list[tuple[str, UnionPlan]]
PROPERTY: Final = "bson"
"""The property of a schema that holds what a field is called, or what its values were, in MongoDB."""
ENCRYPTED: Final = "encrypted"
"""What the property holds of bytes that the client has encrypted (CSFLE, Queryable Encryption)."""
_DOUBLE: Final = Struct("<d")
_not_in_names = re.compile(r"[^A-Za-z0-9_]")
_PLAIN: Final[Mapping[type, str]] = {
    bool: "boolean", int: "int", Int64: "long", float: "double", str: "string", bytes: "bytes", Binary: "bytes",
    DatetimeMS: "date", ObjectId: "string", Decimal128: "string", dict: "record", list: "array",
}  # fmt: skip
_TIMESTAMP: Final = {"type": "long", "logicalType": "timestamp-millis"}
_JSON_TYPES: Final[Mapping[str, Json]] = {
    "boolean": {"type": "boolean"},
    "int": {"type": "integer"},
    "long": {"type": "integer"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date-time"},
}


class Unfit(Exception):
    """A value for which the schema has no place yet."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(f"{path} of the type {kind}")
        self.path = path
        self.kind = kind


def kind_of(value: Any) -> str:
    """Give the branch that a value goes to."""
    return _PLAIN.get(type(value), "string")


class Union:
    """What a field, or the elements of an array, may be: null, or one of some branches."""

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._path = path
        self._kinds: list[str] = []
        self._is_encrypted = False
        self.record: DocumentSchema | None = None
        self.elements: Union | None = None
        self._writers: dict[type, tuple[bytes, Write]] = {}

    def grow(self, value: Any) -> None:
        """Make a place for a value."""
        if value is None:
            return
        kind = self._branch_of(kind_of(value))
        if kind not in self._kinds:
            self._is_encrypted |= isinstance(value, Binary) and value.subtype == ENCRYPTED_SUBTYPE
            if kind == "long" and "int" in self._kinds:
                self._kinds[self._kinds.index("int")] = kind
            else:
                self._kinds.append(kind)
        if kind == "record":
            self.record = self.record or DocumentSchema(self._name, self._path)
            self.record.grow(value)
        elif kind == "array":
            self.elements = self.elements or Union(f"{self._name}_item", f"{self._path}[]")
            for each in value:
                self.elements.grow(each)
        self._prepare()

    def _branch_of(self, kind: str) -> str:
        """Give the branch of a kind; Avro has one long in a union, so a date beside longs is a string, and so on."""
        if kind == "int" and "long" in self._kinds:
            return "long"
        if (kind == "date" and "long" in self._kinds) or (kind == "long" and "date" in self._kinds):
            return "string"
        return kind

    def write(self, value: Any, out: bytearray) -> None:
        """Write a value in Avro's binary form."""
        if value is None:
            out.append(0)
            return
        kind = type(value)
        found = self._writers.get(kind if kind in _PLAIN else object)
        if found is None:
            raise Unfit(self._path, kind_of(value))
        out += found[0]
        found[1](value, out)

    def unfit(self, value: Any) -> Iterator[tuple[str, str]]:
        """Give where a value, or what is in it, has no place; and of which types that is."""
        if value is None:
            return
        kind = kind_of(value)
        if self._branch_of(kind) not in self._kinds:
            yield self._path, kind
        elif kind == "record" and self.record is not None:
            yield from self.record.unfit(value)
        elif kind == "array" and self.elements is not None:
            for each in value:
                yield from self.elements.unfit(each)

    def _prepare(self) -> None:
        """Set up who writes values of which Python type; `object` is any that has no branch of its own."""
        writers: dict[type, tuple[bytes, Write]] = {}
        for kind in _PLAIN:
            branch_kind = self._branch_of(_PLAIN[kind])
            if branch_kind in self._kinds:
                branch = bytearray()
                write_long(self._kinds.index(branch_kind) + 1, branch)
                writers[kind] = bytes(branch), self._writer(kind, branch_kind)
        if "string" in self._kinds:
            branch = bytearray()
            write_long(self._kinds.index("string") + 1, branch)
            writers[object] = bytes(branch), write_other
        self._writers = writers

    def _writer(self, kind: type, branch_kind: str) -> Write:
        if kind is dict:
            assert self.record is not None
            return self.record.write
        if kind is list:
            return self._write_array
        if branch_kind == "string" and kind in (DatetimeMS, Int64):
            return write_other
        return _WRITERS[kind]

    def _write_array(self, values: list[Any], out: bytearray) -> None:
        assert self.elements is not None
        if values:
            write_long(len(values), out)
            for each in values:
                self.elements.write(each, out)
        out.append(0)

    def plain(self, value: Any) -> Any:
        """Give a value as JSON has it under this schema."""
        if value is None:
            return None
        kind = self._branch_of(kind_of(value))
        if kind not in self._kinds:
            raise Unfit(self._path, kind_of(value))
        if kind == "record":
            assert self.record is not None
            return self.record.plain(value)
        if kind == "array":
            assert self.elements is not None
            return [self.elements.plain(each) for each in value]
        return _plain_scalar(value, kind)

    def losses(self, value: Any) -> Iterator[str]:
        """Name what `plain` has no form for: numbers that are not finite, dates outside the years 1 to 9999."""
        kind = self._branch_of(kind_of(value))
        if kind == "record" and self.record is not None:
            yield from self.record.losses(value)
        elif kind == "array" and self.elements is not None:
            for each in value:
                yield from self.elements.losses(each)
        elif kind in ("double", "date") and (loss := loss_of_scalar(value, self._path)) is not None:
            yield loss

    def plan(self) -> UnionPlan:
        """Give the union as the kernel takes it."""
        record, elements = self.record, self.elements
        return self._kinds, None if record is None else record.plan(), None if elements is None else elements.plan()

    def avro(self) -> list[Any]:
        """Give the union as Avro's schema has it."""
        branches: list[Any] = ["null"]
        for kind in self._kinds:
            if kind == "record":
                assert self.record is not None
                branches.append(self.record.avro())
            elif kind == "array":
                assert self.elements is not None
                branches.append({"type": "array", "items": self.elements.avro()})
            elif kind == "bytes" and self._is_encrypted:
                branches.append({"type": kind, PROPERTY: ENCRYPTED})
            else:
                branches.append(_TIMESTAMP if kind == "date" else kind)
        return branches

    def json_schema(self) -> Json:
        """Give the union as JSON Schema."""
        branches: list[Json] = [{"type": "null"}]
        for kind in self._kinds:
            if kind == "record":
                assert self.record is not None
                branches.append(self.record.json_schema())
            elif kind == "array":
                assert self.elements is not None
                branches.append({"type": "array", "items": self.elements.json_schema()})
            elif kind == "bytes" and self._is_encrypted:
                branches.append({**_JSON_TYPES[kind], PROPERTY: ENCRYPTED})
            elif _JSON_TYPES[kind] not in branches:
                branches.append(_JSON_TYPES[kind])
        return {"anyOf": branches, "x-kinds": list(self._kinds)}

    @classmethod
    def of_avro(cls, name: str, path: str, branches: list[Any]) -> Union:
        """Read the union of an Avro schema that was made here."""
        made = cls(name, path)
        for branch in branches[1:]:
            form = branch if isinstance(branch, dict) else {"type": branch}
            kind = "date" if "logicalType" in form else form["type"]
            made._kinds.append(kind)
            made._is_encrypted |= form.get(PROPERTY) == ENCRYPTED
            if kind == "record":
                made.record = DocumentSchema.of_avro(name, path, form)
            elif kind == "array":
                made.elements = cls.of_avro(f"{name}_item", f"{path}[]", form["items"])
        made._prepare()
        return made

    @classmethod
    def of_json_schema(cls, name: str, path: str, form: Json) -> Union:
        """Read the union of a JSON Schema that was made here."""
        made = cls(name, path)
        made._kinds = list(form["x-kinds"])
        for branch in form["anyOf"]:
            made._is_encrypted |= branch.get(PROPERTY) == ENCRYPTED
            if branch["type"] == "object":
                made.record = DocumentSchema.of_json_schema(name, path, branch)
            elif branch["type"] == "array":
                made.elements = cls.of_json_schema(f"{name}_item", f"{path}[]", branch["items"])
        made._prepare()
        return made


class DocumentSchema:
    """The fields of a document, in the order in which they were first seen."""

    def __init__(self, name: str, path: str = "") -> None:
        self._name = name
        self._path = path
        self._fields: dict[str, tuple[str, Union]] = {}

    def grow(self, document: Mapping[str, Any]) -> None:
        """Make places for all values of a document."""
        for name, value in document.items():
            if name not in self._fields:
                spelt = self._spelt(name)
                self._fields[name] = spelt, Union(f"{self._name}_{spelt}", self._at(name))
            self._fields[name][1].grow(value)

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _spelt(self, name: str) -> str:
        """Give a name as Avro allows it, and not one that another field has."""
        spelt = _not_in_names.sub(lambda found: f"_x{ord(found[0]):x}_", name) or "_"
        spelt = f"_{spelt}" if spelt[0].isdigit() else spelt
        taken = {known for known, _ in self._fields.values()}
        while spelt in taken:
            spelt += "_"
        return spelt

    def write(self, document: Mapping[str, Any], out: bytearray) -> None:
        """Write a document in Avro's binary form."""
        left = len(document)
        for name, (_, union) in self._fields.items():
            if name in document:
                left -= 1
                union.write(document[name], out)
            else:
                out.append(0)
        if left:
            self._refuse_new(document)

    def plain(self, document: Mapping[str, Any]) -> Json:
        """Give a document as JSON has it under this schema; JSON has no trouble with names."""
        if not document.keys() <= self._fields.keys():
            self._refuse_new(document)
        return {name: self._fields[name][1].plain(value) for name, value in document.items()}

    def unfit(self, document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Give where a document has values that the schema has no place for, and of which types they are."""
        for name, value in document.items():
            if name in self._fields:
                yield from self._fields[name][1].unfit(value)
            else:
                yield self._at(name), kind_of(value)

    def losses(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Name what `plain` has no form for."""
        for name, value in document.items():
            yield from self._fields[name][1].losses(value)

    def _refuse_new(self, document: Mapping[str, Any]) -> None:
        name = next(name for name in document if name not in self._fields)
        raise Unfit(self._at(name), kind_of(document[name]))

    def plan(self) -> RecordPlan:
        """Give the record as the kernel takes it: fields by their names in MongoDB, in order."""
        return [(name, union.plan()) for name, (_, union) in self._fields.items()]

    def avro(self) -> Json:
        """Give the record as Avro's schema has it."""
        fields = [
            {"name": spelt, "type": union.avro(), "default": None, **({} if spelt == name else {PROPERTY: name})}
            for name, (spelt, union) in self._fields.items()
        ]
        return {"type": "record", "name": self._name, "fields": fields}

    def json_schema(self) -> Json:
        """Give the object as JSON Schema: nothing but the known fields, so that a new one is a new version."""
        properties = {name: union.json_schema() for name, (_, union) in self._fields.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    @classmethod
    def of_avro(cls, name: str, path: str, form: Json) -> DocumentSchema:
        """Read the record of an Avro schema that was made here."""
        made = cls(name, path)
        for field in form["fields"]:
            own = field.get(PROPERTY, field["name"])
            union = Union.of_avro(f"{name}_{field['name']}", made._at(own), field["type"])
            made._fields[own] = field["name"], union
        return made

    @classmethod
    def of_json_schema(cls, name: str, path: str, form: Json) -> DocumentSchema:
        """Read the object of a JSON Schema that was made here."""
        made = cls(name, path)
        for own, union in form["properties"].items():
            spelt = made._spelt(own)
            made._fields[own] = spelt, Union.of_json_schema(f"{name}_{spelt}", made._at(own), union)
        return made


def write_long(value: int, out: bytearray) -> None:
    """Write an int or a long: zigzag, seven bits a byte."""
    left = (value << 1) ^ (value >> 63)
    while left > 0x7F:
        out.append((left & 0x7F) | 0x80)
        left >>= 7
    out.append(left)


def write_bytes(value: bytes, out: bytearray) -> None:
    """Write bytes after their length."""
    write_long(len(value), out)
    out += value


def write_text(value: Any, out: bytearray) -> None:
    """Write a string; ObjectIds are their digits."""
    write_bytes(str(value).encode(), out)


def write_other(value: Any, out: bytearray) -> None:
    """Write a value of a type that Avro lacks, as canonical Extended JSON."""
    write_bytes(_other_text(value).encode(), out)


def _other_text(value: Any) -> str:
    return extended_json.canonical({"v": value})[5:-1].decode().strip()


def _write_double(value: float, out: bytearray) -> None:
    out += _DOUBLE.pack(value)


_WRITERS: Final[Mapping[type, Write]] = {
    bool: lambda value, out: out.append(1 if value else 0),
    int: write_long,
    Int64: write_long,
    float: _write_double,
    str: write_text,
    bytes: write_bytes,
    Binary: write_bytes,
    DatetimeMS: lambda value, out: write_long(int(value), out),
    ObjectId: write_text,
    Decimal128: lambda value, out: write_bytes(extended_json.decimal_text(value).encode(), out),
}


def _plain_scalar(value: Any, kind: str) -> Any:
    if kind == "string" and type(value) not in (str, ObjectId, Decimal128):  # Code is a str, too
        return _other_text(value)
    found = plain_value(value)
    return str(found) if kind == "date" else found
