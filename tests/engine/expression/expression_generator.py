"""Random documents, expressions, queries and stages, from a seed.

Documents have fields of known types, so that operators get mostly what they are made for; now and then a
field, or an operand, is of any type. Decimals stay out of the transcendental functions, where the last digit of
the server's decimal library is its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

INTS = [0, 1, -1, 2, 3, 5, 7, 10, 100, 31, 63, -8, 255, 1000, 2**31 - 1, -(2**31), 65536]
LONGS = [0, 1, -1, 3, 9, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 10**12, 1500000000000]
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, 1e-7, 123.456, 1e15, 1e17, 1e300, -1e300, 5e-324, 3.0, 255.0,
    math.inf, -math.inf, math.nan, 2.0**31, 2.0**53, 2.0**63, -(2.0**63), 1.1, 99.995, 2147483647.5,
]  # fmt: skip
DECIMALS = [
    "0", "-0", "1", "-1", "1.50", "0.1", "2.5", "-2.5", "1E+3", "1E-7", "123.456", "9999999999999999999999999999999999",
    "1E+6000", "1E-6100", "NaN", "Infinity", "-Infinity", "3", "1E+20", "12345678901234567890.5", "2147483648",
]  # fmt: skip
STRINGS = [
    "", "a", "b", "A", "abc", "ABC", "aBc", "hello world", "  padded\t", "äöü", "Grüße", "日本語", "😀x", "a,b,,c",
    "a.b", "$dollar", "123", "-5", "1.5", "1e3", "abcabc", "xyz", "2020-02-29", "2021-03-04T05:06:07.089Z", "\u00a0nb",
    "line\nbreak", "507f1f77bcf86cd799439011", "true", "0x1F", "NaN",
]  # fmt: skip
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "+05:30", "-0800", "+02", "Australia/Sydney"]
UNITS = ["year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond"]
FORMATS = ["%Y-%m-%d", "%H:%M:%S.%L", "%G-W%V-%u", "%j|%w|%U", "%Y%m%dT%H%M%S%z", "%Z %%", "plain"]
TYPES = ["int", "long", "double", "decimal", "string", "bool", "date", "objectId"]

Generate = Callable[[], Any]


class Generator:
    """One stream of random choices."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.choice = self.random.choice

    def chance(self, probability: float) -> bool:
        """Say yes with a probability."""
        return self.random.random() < probability

    # --- values

    def int32(self) -> int:
        return self.choice(INTS) if self.chance(0.7) else self.random.randint(-1000, 1000)

    def int64(self) -> Int64:
        return Int64(self.choice(LONGS) if self.chance(0.7) else self.random.randint(-(2**62), 2**62))

    def double(self) -> float:
        return self.choice(DOUBLES) if self.chance(0.6) else round(self.random.uniform(-1000, 1000), 3)

    def decimal(self) -> Decimal128:
        if self.chance(0.6):
            return Decimal128(self.choice(DECIMALS))
        return Decimal128(str(self.random.randint(-(10**9), 10**9)) + "." + str(self.random.randint(0, 999)))

    def number(self) -> Any:
        return self.choice([self.int32, self.int32, self.int64, self.double, self.decimal])()

    def small(self) -> Any:
        return self.choice([self.random.randint(-4, 6), Int64(self.random.randint(-3, 5)), 2.0, 1.5, Decimal128("2")])

    def string(self) -> str:
        return self.choice(STRINGS)

    def boolean(self) -> bool:
        return self.chance(0.5)

    def date(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=self.random.randint(0, 2_050_000_000), milliseconds=self.random.randint(0, 999)
        )

    def object_id(self) -> ObjectId:
        return ObjectId(bytes(self.random.randrange(256) for _ in range(12)))

    def timestamp(self) -> Timestamp:
        return Timestamp(self.random.randint(0, 2**31), self.random.randint(0, 1000))

    def binary(self) -> Binary:
        return Binary(
            bytes(self.random.randrange(256) for _ in range(self.random.randrange(5))), self.choice([0, 5, 128])
        )

    def array(self) -> list[Any]:
        makers = [self.int32, self.string, self.number, self.scalar, self.small_object]
        maker = self.choice(makers)
        return [maker() for _ in range(self.random.randrange(5))]

    def small_object(self) -> dict[str, Any]:
        names = self.random.sample(["k", "v", "a", "b", "n", "0", "x y"], self.random.randrange(4))
        return {name: self.scalar() for name in names}

    def scalar(self) -> Any:
        return self.choice(
            [
                self.int32, self.int64, self.double, self.decimal, self.string, self.string, self.boolean, self.date,
                self.object_id, self.timestamp, self.binary, lambda: None, lambda: Regex("a.c", self.choice(["", "i"])),
                MinKey, MaxKey, lambda: Code("f()"), lambda: Code("f()", {"x": 1}),
            ]
        )()  # fmt: skip

    def value(self) -> Any:
        return self.choice([self.scalar, self.scalar, self.array, self.small_object])()

    def document(self, identity: int) -> bytes:
        """Make a document; its fields are of the types their names promise, with exceptions."""
        fields: dict[str, Generate] = {
            "i": self.int32, "l": self.int64, "f": self.double, "d": self.decimal, "n": self.number, "s": self.string,
            "t": self.string, "b": self.boolean, "when": self.date, "then": self.date, "id": self.object_id,
            "ts": self.timestamp, "a": self.array, "nums": lambda: [self.number() for _ in range(4)],
            "docs": lambda: [self.small_object() for _ in range(self.random.randrange(4))], "o": self.small_object,
            "x": self.value, "small": self.small,
            "deep": lambda: {"a": {"b": self.value(), "c": [self.small_object(), self.scalar()]}, "n": self.number()},
        }  # fmt: skip
        document: dict[str, Any] = {"_id": identity}
        for name, make in fields.items():
            if self.chance(0.9):
                document[name] = self.value() if self.chance(0.06) else make()
        return bson.encode(document)

    # --- expressions

    def expression(self, kind: str = "any", depth: int = 2) -> Any:
        """Make an expression that should give a value of a kind."""
        if kind != "whole" and self.chance(0.07):
            kind = "any"
        if depth <= 0 or self.chance(0.35):
            return self.leaf(kind)
        makers = _BY_RESULT.get(kind) or _ALL
        return self.choice(makers)(self, depth - 1)

    def leaf(self, kind: str) -> Any:
        """Make a field path or a literal."""
        fields = {
            "number": ["$i", "$l", "$f", "$d", "$n", "$deep.n"], "string": ["$s", "$t"],
            "array": ["$a", "$nums", "$docs", "$deep.a.c"], "object": ["$o", "$deep", "$$ROOT", "$deep.a"],
            "date": ["$when", "$then", "$ts", "$id"], "bool": ["$b"], "small": ["$small"],
            "any": ["$x", "$i", "$s", "$a", "$missing", "$deep.a.b", "$docs.a", "$deep.a.c.k", "$o.v", "$$CURRENT.x"],
        }  # fmt: skip
        if kind != "whole" and self.chance(0.65):
            return self.choice(fields.get(kind, fields["any"]))
        literals: dict[str, Generate] = {
            "number": self.number, "whole": lambda: self.choice([self.random.randint(-9, 70), Int64(3)]),
            "string": self.string, "array": self.array,
            "object": self.small_object, "date": self.date, "bool": self.boolean, "small": self.small,
        }  # fmt: skip
        return {"$literal": literals.get(kind, self.value)()}

    def stage(self) -> dict[str, Any]:
        """Make one stage."""
        return self.choice(
            [
                lambda: {"$project": {"r": self.expression(self.kind(), 3)}},
                lambda: {"$project": {"r": self.expression(self.kind(), 2)}},
                lambda: {"$addFields": {"r": self.expression(self.kind(), 3), "q.z": self.expression(self.kind(), 1)}},
                lambda: {"$match": self.query(2)},
                lambda: {"$match": self.query(2)},
                lambda: {"$match": {"$expr": self.expression("bool", 3)}},
                lambda: {"$project": self.inclusion()},
                lambda: {"$project": self.exclusion()},
                lambda: {"$unset": self.random.sample(["i", "a", "docs.a", "deep.a.b", "o.k", "deep.a.c.k"], 3)},
                lambda: {"$set": {self.path(): self.expression(self.kind(), 2)}},
                lambda: {"$replaceWith": self.expression("object", 2)},
                lambda: {"$replaceRoot": {"newRoot": {"_id": "$_id", "r": self.expression(self.kind(), 2)}}},
                lambda: {"$redact": self.redaction()},
            ]
        )()

    def kind(self) -> str:
        return self.choice(["number", "string", "array", "object", "date", "bool", "any", "small"])

    def path(self) -> str:
        return self.choice(
            ["i", "a", "o.k", "deep.a.b", "docs.a", "new", "new.x", "deep.a.c.z", "x", "docs.n.m", "s.t"]
        )

    def inclusion(self) -> dict[str, Any]:
        paths = self.random.sample(["i", "s", "o", "docs.a", "deep.a.b", "a.k", "x.v", "missing", "deep.n", "nums"], 3)
        spec: dict[str, Any] = {path: self.choice([1, True, 1.0, Int64(1)]) for path in paths}
        if self.chance(0.4):
            spec["_id"] = 0
        if self.chance(0.5):
            spec[self.choice(["computed", "a.added", "docs.more", "o"])] = self.expression(self.kind(), 2)
        return spec

    def exclusion(self) -> dict[str, Any]:
        paths = self.random.sample(["i", "s", "o", "docs.a", "deep.a.b", "a.k", "x.v", "missing", "deep", "nums"], 3)
        return {path: self.choice([0, False, 0.0]) for path in paths}

    def redaction(self) -> Any:
        test = self.choice([{"$gt": ["$n", 0]}, {"$ifNull": ["$k", False]}, {"$eq": [{"$type": "$a"}, "array"]}, "$b"])
        return {"$cond": [test, self.choice(["$$DESCEND", "$$KEEP"]), self.choice(["$$PRUNE", "$$KEEP", "$$DESCEND"])]}

    # --- queries

    def query(self, depth: int) -> dict[str, Any]:
        """Make a query."""
        if depth > 0 and self.chance(0.3):
            parts = [self.query(depth - 1) for _ in range(self.random.randint(1, 3))]
            return {self.choice(["$and", "$or", "$nor"]): parts}
        path = self.choice(
            ["i", "n", "s", "a", "x", "o.k", "docs.a", "docs", "deep.a.b", "deep.a.c.k", "a.0", "docs.1.v", "nums", "b",
             "missing", "deep.a.c.0.a", "when", "o", "nums.2", "x.v", "f", "d", "l"]
        )  # fmt: skip
        return {path: self.predicate(depth)}

    def predicate(self, depth: int) -> Any:
        literal = self.query_value
        makers: list[Generate] = [
            literal,
            lambda: {self.choice(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]): literal()},
            lambda: {"$gt": self.number(), "$lte": self.number()},
            lambda: {self.choice(["$in", "$nin"]): [literal() for _ in range(self.random.randrange(4))]},
            lambda: {"$exists": self.choice([True, False, 1, 0])},
            lambda: {"$type": self.choice(["number", "string", "array", "object", "null", 16, 2, ["int", "long"], -1])},
            lambda: {"$regex": self.choice(["^a", "b$", "A", "[0-9]+", "ö", "l+", "^.$", "a|b", r"\bworld", r"\s"]),
                     "$options": self.choice(["", "i", "m", "s", "im"])},
            lambda: {"$mod": [self.choice([2, 3, 5, Int64(7), 2.0]), self.choice([0, 1, 2, -1])]},
            lambda: {"$all": [literal() for _ in range(self.random.randint(1, 2))]},
            lambda: {"$size": self.random.randrange(5)},
            lambda: {self.choice(["$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear"]):
                     self.choice([1, 5, [0, 2], [1, 70], Binary(b"\x05")])},
            lambda: {"$elemMatch": self.predicate_operators(depth)},
            lambda: {"$elemMatch": {self.choice(["a", "k", "v", "n", "0"]): self.predicate(0)}},
            lambda: {"$not": self.predicate_operators(depth)},
        ]  # fmt: skip
        return self.choice(makers)()

    def predicate_operators(self, depth: int) -> dict[str, Any]:
        while True:
            made = self.predicate(depth - 1) if depth > 0 else {"$gt": self.query_value()}
            if isinstance(made, dict) and made and next(iter(made)).startswith("$"):
                return made

    def query_value(self) -> Any:
        while True:
            value = self.value() if self.chance(0.4) else self.choice([self.int32, self.string, self.number])()
            if not isinstance(value, Regex | Code):
                return value


Maker = Callable[[Generator, int], Any]


def _operator(name: str, *kinds: str) -> Maker:
    return lambda make, depth: {name: [make.expression(kind, depth) for kind in kinds]}


def _single(name: str, kind: str) -> Maker:
    return lambda make, depth: {name: make.expression(kind, depth)}


def _of_doubles(name: str, count: int = 1) -> Maker:
    return lambda make, depth: {name: [{"$toDouble": make.expression("number", depth)} for _ in range(count)]}


def _several(name: str, kind: str) -> Maker:
    return lambda make, depth: {name: [make.expression(kind, depth) for _ in range(make.random.randint(1, 4))]}


def _named(name: str, **kinds: str | list[Any]) -> Maker:
    def maker(make: Generator, depth: int) -> Any:
        return {
            name: {
                key: make.choice(kind) if isinstance(kind, list) else make.expression(kind, depth)
                for key, kind in kinds.items()
            }
        }

    return maker


def _zoned(name: str) -> Maker:
    return lambda make, depth: {
        name: make.expression("date", depth)
        if make.chance(0.5)
        else {"date": make.expression("date", depth), "timezone": make.choice(ZONES)}
    }


_PATTERNS = ["a", "b+", "(a)(b)?", "[0-9]", "^h", "o", "ö", "(?i)B", r"\w+", "", "(x)|(y)", r"\d{2,}", "l{2}", "c$"]

_BY_RESULT: dict[str, list[Maker]] = {
    "number": [
        _several("$add", "number"), _several("$multiply", "number"), _operator("$subtract", "number", "number"),
        _operator("$divide", "number", "number"), _operator("$mod", "number", "number"), _single("$abs", "number"),
        _single("$ceil", "number"), _single("$floor", "number"), _operator("$round", "number", "small"),
        _operator("$trunc", "number", "small"), _single("$sqrt", "number"), _several("$sum", "number"),
        _single("$sum", "array"), _several("$avg", "number"), _single("$max", "array"), _several("$min", "number"),
        _single("$stdDevPop", "array"), _single("$size", "array"), _single("$strLenCP", "string"),
        _single("$strLenBytes", "string"), _operator("$indexOfCP", "string", "string"), _operator("$cmp", "any", "any"),
        _operator("$indexOfBytes", "string", "string", "small"), _operator("$indexOfArray", "array", "any"),
        _of_doubles("$pow", 2), _of_doubles("$exp"), _operator("$pow", "whole", "whole"),
        _of_doubles("$ln"), _of_doubles("$log10"), _of_doubles("$sin"), _of_doubles("$acos"), _of_doubles("$sinh"),
        _of_doubles("$log", 2), _of_doubles("$cos"), _of_doubles("$degreesToRadians"),
        _of_doubles("$atan2", 2), _of_doubles("$tanh"), _of_doubles("$atanh"),
        _single("$toInt", "any"), _single("$toLong", "any"), _single("$toDouble", "any"), _single("$toDecimal", "any"),
        _zoned("$year"), _zoned("$month"), _zoned("$dayOfMonth"), _zoned("$hour"), _zoned("$minute"), _zoned("$second"),
        _zoned("$millisecond"), _zoned("$dayOfWeek"), _zoned("$dayOfYear"), _zoned("$week"), _zoned("$isoWeek"),
        _zoned("$isoDayOfWeek"), _zoned("$isoWeekYear"), _single("$bsonSize", "object"),
        _single("$binarySize", "string"),
        _named("$dateDiff", startDate="date", endDate="date", unit=UNITS, timezone=ZONES),
        _named("$dateDiff", startDate="date", endDate="date", unit=["week"], startOfWeek=["mon", "Friday", "sun"]),
        _operator("$ifNull", "any", "number"), _operator("$cond", "bool", "number", "number"),
        _single("$tsSecond", "date"),
        _operator("$arrayElemAt", "array", "small"), _operator("$strcasecmp", "string", "string"),
    ],
    "string": [
        _several("$concat", "string"), _single("$toUpper", "string"), _single("$toLower", "any"),
        _operator("$substrCP", "string", "small", "small"), _operator("$substrBytes", "any", "small", "small"),
        _named("$trim", input="string"), _named("$ltrim", input="string", chars="string"),
        _named("$rtrim", input="string", chars=["a", " ", "äö", "abc"]), _single("$toString", "any"),
        _single("$type", "any"),
        _named("$replaceOne", input="string", find="string", replacement="string"),
        _named("$replaceAll", input="string", find=["a", "b", "", "ö"], replacement="string"),
        _named("$dateToString", date="date", format=FORMATS, timezone=ZONES), _named("$dateToString", date="date"),
        _named("$convert", input="any", to=["string"], onError="string", onNull="string"),
        _operator("$cond", "bool", "string", "string"),
    ],
    "array": [
        _several("$concatArrays", "array"), _operator("$slice", "array", "small"), _single("$reverseArray", "array"),
        _operator("$slice", "array", "small", "small"), _operator("$split", "string", "string"),
        _named("$map", input="array", **{"in": ["$$this", {"$add": ["$$this", 1]}, {"$type": "$$this"}, "$$this.a"]}),
        _named("$filter", input="array", cond=[{"$gt": ["$$this", 1]}, {"$eq": [{"$type": "$$this"}, "string"]}]),
        _named("$filter", input="array", cond=[{"$gt": ["$$this", None]}], limit="small"),
        _operator("$range", "small", "small", "small"), _single("$objectToArray", "object"),
        _operator("$setUnion", "array", "array"), _operator("$setIntersection", "array", "array"),
        _operator("$setDifference", "array", "array"), _named("$sortArray", input="array", sortBy=[1, -1, {"a": 1}]),
        _named("$regexFindAll", input="string", regex=_PATTERNS), _named("$firstN", n="small", input="array"),
        _named("$minN", n="small", input="array"), _named("$maxN", n="small", input="array"),
        lambda make, depth: {"$zip": {"inputs": [make.expression("array", depth), make.expression("array", depth)],
                                      "useLongestLength": make.boolean()}},
        lambda make, depth: [make.expression("any", depth), make.expression("number", depth)],
    ],
    "object": [
        lambda make, depth: {"p": make.expression("any", depth), "q": {"r": make.expression("number", depth)}},
        _several("$mergeObjects", "object"), _single("$arrayToObject", "array"), _named("$dateToParts", date="date"),
        _named("$setField", field=["k", "a.b", "new"], input="object", value="any"),
        _named("$unsetField", field=["k", "a"], input="object"), _named("$regexFind", input="string", regex=_PATTERNS),
        _named("$dateToParts", date="date", timezone=ZONES, iso8601=[True, False]),
    ],
    "date": [
        _named("$dateAdd", startDate="date", unit=UNITS, amount="small", timezone=ZONES),
        _named("$dateSubtract", startDate="date", unit=UNITS, amount=[1, 3, 40, Int64(100), 13], timezone=ZONES),
        _named("$dateTrunc", date="date", unit=UNITS, binSize=[1, 2, 7, 15], timezone=ZONES), _single("$toDate", "any"),
        _named("$dateTrunc", date="date", unit=["week"], startOfWeek=["monday", "SUN", "thu"]),
        _operator("$add", "date", "number"), _operator("$subtract", "date", "number"),
        _named("$dateFromParts", year=[1970, 2000, 2021], month="small", day="small", hour="small", timezone=ZONES),
        _named("$dateFromParts", isoWeekYear=[1999, 2015, 2020], isoWeek="small", isoDayOfWeek="small"),
        _named("$dateFromString", dateString=["2020-02-29", "2021-03-04T05:06:07.089Z", "2019-07-01 12:30"],
               timezone=["UTC", "America/New_York"], onError="date"),
    ],
    "bool": [
        _operator("$eq", "any", "any"), _operator("$ne", "number", "number"), _operator("$gt", "any", "any"),
        _operator("$gte", "number", "number"), _operator("$lt", "string", "string"), _operator("$lte", "any", "any"),
        _several("$and", "bool"), _several("$or", "bool"), _operator("$not", "any"), _operator("$in", "any", "array"),
        _single("$isArray", "any"), _single("$isNumber", "any"), _operator("$setEquals", "array", "array"),
        _operator("$setIsSubset", "array", "array"), _single("$anyElementTrue", "array"), _single("$toBool", "any"),
        _named("$regexMatch", input="string", regex=_PATTERNS, options=["", "i"]), _single("$allElementsTrue", "array"),
    ],
}  # fmt: skip
_BY_RESULT["any"] = [
    _named("$let", vars=[{"v": "$n", "w": {"$add": ["$i", 1]}}], **{"in": ["$$v", {"$add": ["$$w", "$$v"]}]}),
    _named("$reduce", input="array", initialValue="any",
           **{"in": ["$$this", {"$concatArrays": ["$$value", ["$$this"]]}]}),
    _named("$reduce", input="array", initialValue=[0], **{"in": [{"$add": ["$$value", "$$this"]}]}),
    _named("$getField", field=["k", "a.b", "v"], input="object"), _single("$getField", "string"),
    _named("$convert", input="any", to=TYPES, onError="any", onNull="any"), _named("$convert", input="any", to=TYPES),
    _operator("$ifNull", "any", "any", "any"), _operator("$cond", "any", "any", "any"), _single("$first", "array"),
    lambda make,
    depth: {"$switch": {"branches": [{"case": make.expression("bool", depth), "then": make.expression("any", depth)},
                                                  {"case": make.expression("bool", depth), "then": "second"}],
                                     **({"default": make.expression("any", depth)} if make.chance(0.7) else {})}},
    _single("$last", "array"), _single("$literal", "any"),
]  # fmt: skip
_ALL: list[Maker] = [maker for makers in _BY_RESULT.values() for maker in makers]
_BY_RESULT["small"] = [_operator("$add", "small", "small"), _single("$size", "array"), _operator("$cmp", "any", "any")]
_BY_RESULT["whole"] = [_single("$size", "array"), _operator("$cmp", "any", "any"), _single("$toLong", "small")]

# Dates that BSON holds and Python does not are values too.
FAR_DATES = [DatetimeMS(253402300800000), DatetimeMS(-62135596800001), DatetimeMS(-1), DatetimeMS(-1500)]
