"""The schema of a collection's documents, derived from those seen: as Avro and as JSON Schema.

It only grows: fields are added, each optional with null as its default; an int becomes a long; a second type becomes a
second branch. A registry judges whether its consumers can bear that. The schema is read back from the registry when a
process begins, so that processes agree and nothing is forgotten.

Types that Avro lacks are strings: ObjectIds and decimals as such, everything else (regular expressions, code,
timestamps, dates outside the years 1 to 9999) as canonical Extended JSON. A field that is null and one that is not
there are alike. What the client has encrypted is bytes, and the schema names such fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from tailrace.capture.formats.avro_binary import WRITERS, Write, other_text, write_long, write_other
from tailrace.capture.formats.avro_names import Names, spelt
from tailrace.capture.formats.plain import is_distant, loss_of_scalar, plain_value
from tailrace.policy.actions import ENCRYPTED_SUBTYPE

Json = dict[str, Any]
UnionPlan = tuple[list[str], "RecordPlan | None", "UnionPlan | None"]
RecordPlan = list[tuple[str, UnionPlan]]
PROPERTY: Final = "bson"
"""The property of a schema that holds what a field is called, or what its values were, in MongoDB."""
ENCRYPTED: Final = "encrypted"
"""What the property holds of bytes that the client has encrypted (CSFLE, Queryable Encryption)."""
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
    """Give the branch that a value goes to; that of strings for dates which consumers cannot read."""
    return "string" if is_distant(value) else _PLAIN.get(type(value), "string")


class Union:
    """What a field, or the elements of an array, may be: null, or one of some branches."""

    def __init__(self, name: str, path: str, names: Names) -> None:
        self._name = name
        self._path = path
        self._names = names
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
            self.record = self.record or DocumentSchema(self._names.take(self._name), self._path, self._names)
            self.record.grow(value)
        elif kind == "array":
            self.elements = self.elements or Union(f"{self._name}_item", f"{self._path}[]", self._names)
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
        found = self._writers.get(kind if kind in _PLAIN and not is_distant(value) else object)
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
        return WRITERS[kind]

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
        """Name what `plain` has no form for: numbers that are not finite."""
        kind = self._branch_of(kind_of(value))
        if kind == "record" and self.record is not None:
            yield from self.record.losses(value)
        elif kind == "array" and self.elements is not None:
            for each in value:
                yield from self.elements.losses(each)
        elif kind == "double" and (loss := loss_of_scalar(value, self._path)) is not None:
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
    def of_avro(cls, name: str, path: str, branches: list[Any], names: Names) -> Union:
        """Read the union of an Avro schema that was made here."""
        made = cls(name, path, names)
        for branch in branches[1:]:
            form = branch if isinstance(branch, dict) else {"type": branch}
            kind = "date" if "logicalType" in form else form["type"]
            made._kinds.append(kind)
            made._is_encrypted |= form.get(PROPERTY) == ENCRYPTED
            if kind == "record":
                made.record = DocumentSchema.of_avro(form, path, names)
            elif kind == "array":
                made.elements = cls.of_avro(f"{name}_item", f"{path}[]", form["items"], names)
        made._prepare()
        return made

    @classmethod
    def of_json_schema(cls, name: str, path: str, form: Json, names: Names) -> Union:
        """Read the union of a JSON Schema that was made here."""
        made = cls(name, path, names)
        made._kinds = list(form["x-kinds"])
        for branch in form["anyOf"]:
            made._is_encrypted |= branch.get(PROPERTY) == ENCRYPTED
            if branch["type"] == "object":
                made.record = DocumentSchema.of_json_schema(names.take(name), branch, path, names)
            elif branch["type"] == "array":
                made.elements = cls.of_json_schema(f"{name}_item", f"{path}[]", branch["items"], names)
        made._prepare()
        return made


class DocumentSchema:
    """The fields of a document, in the order in which they were first seen."""

    def __init__(self, name: str, path: str = "", names: Names | None = None) -> None:
        if names is None:
            names = Names()
            names.take(name)
        self._names = names
        """Those of all records in the schema; `name` is one that they have handed out."""
        self._name = name
        self._path = path
        self._fields: dict[str, tuple[str, Union]] = {}
        self._field_names = Names()

    def grow(self, document: Mapping[str, Any]) -> None:
        """Make places for all values of a document."""
        for name, value in document.items():
            if name not in self._fields:
                field = self._field_names.take(spelt(name))
                self._fields[name] = field, Union(f"{self._name}_{field}", self._at(name), self._names)
            self._fields[name][1].grow(value)

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

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
            {"name": field, "type": union.avro(), "default": None, **({} if field == name else {PROPERTY: name})}
            for name, (field, union) in self._fields.items()
        ]
        return {"type": "record", "name": self._name, "fields": fields}

    def json_schema(self) -> Json:
        """Give the object as JSON Schema: nothing but the known fields, so that a new one is a new version."""
        properties = {name: union.json_schema() for name, (_, union) in self._fields.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    @classmethod
    def of_avro(cls, form: Json, path: str = "", names: Names | None = None) -> DocumentSchema:
        """Read the record of an Avro schema that was made here; names stay as they are."""
        names = Names() if names is None else names
        made = cls(names.keep(form["name"]), path, names)
        for field in form["fields"]:
            own, called = field.get(PROPERTY, field["name"]), made._field_names.keep(field["name"])
            made._fields[own] = called, Union.of_avro(f"{made._name}_{called}", made._at(own), field["type"], names)
        return made

    @classmethod
    def of_json_schema(cls, name: str, form: Json, path: str = "", names: Names | None = None) -> DocumentSchema:
        """Read the object of a JSON Schema that was made here."""
        made = cls(name, path, names)
        for own, union in form["properties"].items():
            called = made._field_names.take(spelt(own))
            read = Union.of_json_schema(f"{made._name}_{called}", made._at(own), union, made._names)
            made._fields[own] = called, read
        return made


def _plain_scalar(value: Any, kind: str) -> Any:
    if kind == "string" and type(value) not in (str, ObjectId, Decimal128):  # Code is a str, too
        return other_text(value)
    found = plain_value(value)
    return str(found) if kind == "date" else found
