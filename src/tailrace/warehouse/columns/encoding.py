"""Documents into columns: what fits goes into its column, what fits nowhere is handed back.

The document itself is never in danger: every row carries its BSON. Columns and `_rest` are for queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId

from tailrace.raw.decimals import to_decimal
from tailrace.warehouse.columns.shapes import Columns, Shape, merged, shape_of

MISFIT: Final = object()
_FIRST_MS: Final = -62_135_596_800_000
"""The year 1."""
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
_DIGITS: Final = Decimal(10) ** 20
_EXACT_IN_DOUBLE: Final = 2**53

Fit = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document in columns."""

    values: dict[str, Any]
    rest: dict[str, Any] | None
    """What is in no column, in the structure of the document."""
    drift: dict[str, Shape] | None
    """The shapes of what is in no column."""


class Encoder:
    """Makes rows for one set of columns."""

    def __init__(self, columns: Columns) -> None:
        self._struct = _Struct(columns)

    def encode(self, document: Mapping[str, Any]) -> Encoded:
        """Put a decoded document (dates as DatetimeMS) into the columns."""
        return Encoded(*self._struct.encode(document))


_Parts = tuple[dict[str, Any], dict[str, Any] | None, dict[str, Shape] | None]


class _Struct:
    """The fields of a document."""

    def __init__(self, columns: Mapping[str, Shape]) -> None:
        self._fits = {name: _fit(shape) for name, shape in columns.items()}

    def encode(self, document: Any) -> _Parts:
        values: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        drift: dict[str, Shape] = {}
        fits = self._fits
        for name, value in document.items():
            if value is None:
                continue
            fit = fits.get(name)
            if isinstance(fit, _Struct | _Array):
                if type(value) is fit.takes:
                    values[name], left, strange = fit.encode(value)
                    if left is not None:
                        rest[name] = left
                        drift[name] = strange
                    continue
            elif fit is not None:
                stored = fit(value)
                if stored is not MISFIT:
                    values[name] = stored
                    continue
            rest[name] = value
            drift[name] = shape_of(value)
        return values, rest or None, drift or None

    takes: Final = dict


class _Array:
    """The elements of an array. When one does not fit, it is null in the column, and the rest has the whole array."""

    takes: Final = list

    def __init__(self, element: Shape) -> None:
        self._fit = _fit(element)

    def encode(self, elements: Any) -> tuple[list[Any], list[Any] | None, list[Shape] | None]:
        fit = self._fit
        values: list[Any] = []
        drift: Shape = None
        is_whole = True
        for element in elements:
            stored: Any = None
            if element is not None:
                stored, strange = _stored(fit, element)
                if strange is not None:
                    is_whole, drift = False, merged(drift, strange)
            values.append(stored)
        return (values, None, None) if is_whole else (values, elements, [drift])


def _stored(fit: _Struct | _Array | Fit, element: Any) -> tuple[Any, Shape]:
    """Give an element as the column has it, and the shape of what is not in there."""
    if isinstance(fit, _Struct | _Array):
        if type(element) is fit.takes:
            stored, _, strange = fit.encode(element)
            return stored, strange
    elif (stored := fit(element)) is not MISFIT:
        return stored, None
    return None, shape_of(element)


def _fit(shape: Shape) -> _Struct | _Array | Fit:
    if isinstance(shape, dict):
        return _Struct(shape)
    if isinstance(shape, list):
        return _Array(shape[0])
    return _FITS[shape or ""]


def _bool(value: Any) -> Any:
    return value if type(value) is bool else MISFIT


def _int(value: Any) -> Any:
    return value if type(value) is int else MISFIT


def _long(value: Any) -> Any:
    kind = type(value)
    return int(value) if kind is Int64 or kind is int else MISFIT


def _double(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return value
    if kind is int or (kind is Int64 and -_EXACT_IN_DOUBLE <= value <= _EXACT_IN_DOUBLE):
        return float(value)
    return MISFIT


def _decimal(value: Any) -> Any:
    kind = type(value)
    if kind is int or kind is Int64:
        return Decimal(int(value))
    if kind is not Decimal128:
        return MISFIT
    exact: Decimal = to_decimal(value)
    # Rounding would change the value, and 38 digits are all a column has.
    if not exact.is_finite() or abs(exact) >= _DIGITS or exact.normalize().as_tuple().exponent < -18:  # type: ignore[operator]
        return MISFIT
    return exact or Decimal(0)  # Arrow refuses a zero with a large exponent


def _string(value: Any) -> Any:
    return value if type(value) is str else MISFIT


def _object_id(value: Any) -> Any:
    return value.binary.hex() if type(value) is ObjectId else MISFIT


def _date(value: Any) -> Any:
    """Give microseconds; dates that other engines cannot show stay in the rest."""
    if type(value) is not DatetimeMS:
        return MISFIT
    milliseconds = int(value)
    return milliseconds * 1_000 if _FIRST_MS <= milliseconds <= _LAST_MS else MISFIT


def _uuid(value: Any) -> Any:
    if type(value) is not Binary or value.subtype != UUID_SUBTYPE or len(value) != 16:
        return MISFIT
    return str(value.as_uuid())


def _binary(value: Any) -> Any:
    return value if type(value) is bytes else MISFIT


_FITS: Mapping[str, Fit] = {
    "bool": _bool,
    "int": _int,
    "long": _long,
    "double": _double,
    "decimal": _decimal,
    "string": _string,
    "objectId": _object_id,
    "date": _date,
    "uuid": _uuid,
    "binary": _binary,
}
