"""Guess the schema of a collection from a sample of its documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pymongo import MongoClient
from pyspark.sql import types

from tailrace.capture.snapshot.chunk import RAW
from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.policy import NO_POLICY, Policy
from tailrace.raw import extended_json
from tailrace.raw.bson_types import type_name
from tailrace.spark.columns import ENVELOPE, MISMATCHES

_DECIMAL = types.DecimalType(38, 18)
_NUMBERS: tuple[types.DataType, ...] = (types.IntegerType(), types.LongType(), types.DoubleType(), _DECIMAL)


def inferred_schema(
    client: MongoClient[Any], namespaces: Iterable[str], sampling_size: int, policy: Policy = NO_POLICY
) -> types.StructType:
    """Give the envelope with both images as structs; later documents may not fit, so mismatches have a column."""
    document: types.DataType = types.NullType()
    for namespace in namespaces:
        database, _, name = namespace.partition(".")
        collection = client[database].get_collection(name, codec_options=RAW)
        for found in collection.aggregate([{"$sample": {"size": sampling_size}}]):
            shown = policy.document(namespace, bytes(found.raw))
            with suppress(EventUnconvertible):  # others of the sample tell
                document = merged(document, type_of(extended_json.decode(shown)))
    if not isinstance(document, types.StructType):
        hint = "Name a collection that has documents in the option namespaces, or declare a schema."
        raise SettingsError("there is nothing to infer a schema from", hint=hint)
    document = _without_unknown(document)
    images = {"full_document", "full_document_before"}
    fields = [types.StructField(f.name, document) if f.name in images else f for f in ENVELOPE.fields]
    return types.StructType([*fields, types.StructField(MISMATCHES, types.StringType())])


def type_of(value: Any) -> types.DataType:
    """Give the type of one decoded value."""
    if value is None:
        return types.NullType()
    if isinstance(value, Mapping):
        return types.StructType([types.StructField(name, type_of(inner)) for name, inner in value.items()])
    if isinstance(value, list):
        element: types.DataType = types.NullType()
        for inner in value:
            element = merged(element, type_of(inner))
        return types.ArrayType(element)
    return _SCALARS.get(type_name(value), types.StringType())


_SCALARS: Mapping[str, types.DataType] = {
    "bool": types.BooleanType(),
    "long": types.LongType(),
    "int": types.IntegerType(),
    "double": types.DoubleType(),
    "decimal": _DECIMAL,
    "date": types.TimestampType(),
    "binData": types.BinaryType(),
}
"""The columns of types that have one; all others are strings."""


def merged(left: types.DataType, right: types.DataType) -> types.DataType:
    """Give the narrowest type that takes the values of both; a string takes all."""
    if left == right or isinstance(right, types.NullType):
        return left
    if isinstance(left, types.NullType):
        return right
    if left in _NUMBERS and right in _NUMBERS:
        return max(left, right, key=_NUMBERS.index)
    if isinstance(left, types.StructType) and isinstance(right, types.StructType):
        return _merged_structs(left, right)
    if isinstance(left, types.ArrayType) and isinstance(right, types.ArrayType):
        return types.ArrayType(merged(left.elementType, right.elementType))
    return types.StringType()


def _merged_structs(left: types.StructType, right: types.StructType) -> types.StructType:
    kinds = {field.name: field.dataType for field in left.fields}
    for field in right.fields:
        kinds[field.name] = merged(kinds.get(field.name, types.NullType()), field.dataType)
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


def _without_unknown(kind: types.DataType) -> types.DataType:
    """Give a type without the unknown: what was always null or empty is a string."""
    if isinstance(kind, types.NullType):
        return types.StringType()
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_without_unknown(kind.elementType))
    if isinstance(kind, types.StructType):
        return types.StructType([types.StructField(f.name, _without_unknown(f.dataType)) for f in kind.fields])
    return kind
