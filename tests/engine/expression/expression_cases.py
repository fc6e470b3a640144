"""Cases at the edges of single operators, queries and stages; the server says what is right."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

_DAY = datetime(2017, 3, 12, 6, 59, 59, 123000, tzinfo=UTC)
NUMBERS: list[Any] = [
    0, 1, -1, 7, 2**31 - 1, -(2**31), Int64(0), Int64(5), Int64(2**31), Int64(2**63 - 1), Int64(-(2**63)), 0.0, -0.0,
    0.5,
    1.5, 2.5, -2.5, 1e15, 1e300, 5e-324, math.inf, -math.inf, math.nan, 2.0**63, 2147483647.5, Decimal128("0"),
    Decimal128("-0.0"), Decimal128("1.50"), Decimal128("2.5"), Decimal128("-7"), Decimal128("1E+40"),
    Decimal128("1E-6176"),
    Decimal128("9.999999999999999999999999999999999E+6144"), Decimal128("NaN"), Decimal128("Infinity"), None, "x",
]  # fmt: skip
TEXTS: list[Any] = [
    "", "a", "abc", "ABC", "äöü", "日本語", "😀", " \t trim \u2003", "a,b,,c", "aaa", None, 5, ["a"], "x\ny", "ß",
    "\u017f",
]  # fmt: skip
ARRAYS: list[Any] = [
    [], [1], [1, 2, 2, 3.0, Int64(3)], ["b", "a", None], [[1], [1, 2]], [{"k": "x", "v": 1}, {"k": "y", "v": 2}],
    [["p", 1], ["q", [2]]], [None, None], [1, "a", {"a": 1}, [1], True, MinKey(), MaxKey()], None, 3, "str",
]  # fmt: skip
DATES: list[Any] = [
    _DAY, datetime(1970, 1, 1, tzinfo=UTC), datetime(2020, 2, 29, 23, 59, 59, 999000, tzinfo=UTC),
    datetime(2016, 1, 3, 12, tzinfo=UTC), datetime(2015, 12, 31, tzinfo=UTC), datetime(2017, 11, 5, 5, 30, tzinfo=UTC),
    datetime(2017, 10, 29, 0, 30, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC),
    Timestamp(1500000000, 7), ObjectId("507f1f77bcf86cd799439011"), None, "2017", DatetimeMS(253402300800000),
]  # fmt: skip
VALUES: list[Any] = [
    *NUMBERS[::3], *TEXTS[:3], *ARRAYS[:5], {"a": 1, "b": {"c": [1]}}, {}, True, False, _DAY, MinKey(), MaxKey(),
    ObjectId("507f1f77bcf86cd799439011"), Binary(b"ab", 0), Binary(b"\x01" * 16, 4), Regex("a", "i"), Code("f"),
    Code("f", {"a": 1}), Timestamp(1, 2), "507f1f77bcf86cd799439011", "12", "-3", "1.5e3", "0x10", " 1", "true",
    "1e400",
    "2020-01-02T03:04:05Z", "2020-01-02", "Infinity", "nan", "9223372036854775808", "1E+7000",
]  # fmt: skip
ZONES = ["UTC", "GMT", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "+05:45", "-03", "+1130", "Nowhere/City"]

Case = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Stages, and documents to run them on."""


def _with(field: str, values: list[Any]) -> list[dict[str, Any]]:
    return [{"_id": index, field: value} for index, value in enumerate(values)]


def _pairs(left: list[Any], right: list[Any]) -> list[dict[str, Any]]:
    return [{"_id": i, "a": a, "b": b} for i, (a, b) in enumerate((a, b) for a in left for b in right)]


def _compute(expression: Any, documents: list[dict[str, Any]]) -> Case:
    return [{"$project": {"r": expression}}], documents


def _unary() -> list[Case]:
    of_numbers = ["$abs", "$ceil", "$floor", "$round", "$trunc", "$sqrt", "$not", "$isNumber", "$type"]
    of_texts = ["$toUpper", "$toLower", "$strLenCP", "$strLenBytes", "$binarySize"]
    of_arrays = [
        "$size", "$reverseArray", "$first", "$last", "$isArray", "$allElementsTrue", "$anyElementTrue",
        "$arrayToObject",
        "$sum", "$avg", "$min", "$max", "$stdDevPop", "$stdDevSamp", "$mergeObjects", "$objectToArray", "$bsonSize",
    ]  # fmt: skip
    of_dates = [
        "$year", "$month", "$dayOfMonth", "$hour", "$minute", "$second", "$millisecond", "$dayOfWeek", "$dayOfYear",
        "$week", "$isoWeek", "$isoWeekYear", "$isoDayOfWeek", "$tsSecond", "$tsIncrement",
    ]  # fmt: skip
    of_values = [
        "$toString",
        "$toInt",
        "$toLong",
        "$toDouble",
        "$toDecimal",
        "$toBool",
        "$toDate",
        "$toObjectId",
        "$type",
    ]
    cases = []
    for names, values in (
        (of_numbers, NUMBERS), (of_texts, TEXTS), (of_arrays, ARRAYS), (of_dates, DATES), (of_values, VALUES),
    ):  # fmt: skip
        cases += [_compute({name: "$v"}, _with("v", values)) for name in names]
    return cases


def _doubles() -> list[Case]:
    doubles = [value for value in NUMBERS if isinstance(value, float | int)]
    cases = [
        _compute({name: "$v"}, _with("v", doubles))
        for name in (
            "$exp", "$ln", "$log10", "$sin", "$cos", "$tan", "$asin", "$acos", "$atan", "$sinh", "$cosh", "$tanh",
            "$asinh",
            "$acosh", "$atanh", "$degreesToRadians", "$radiansToDegrees",
        )
    ]  # fmt: skip
    pairs = _pairs(doubles[::2], doubles[1::2])
    return cases + [_compute({name: ["$a", "$b"]}, pairs) for name in ("$pow", "$log", "$atan2")]


def _binary() -> list[Case]:
    arithmetic = ["$add", "$subtract", "$multiply", "$divide", "$mod", "$min", "$max", "$cmp", "$sum", "$avg"]
    numbers = _pairs(NUMBERS[::2], NUMBERS[1::2])
    arrays = _pairs(ARRAYS, ARRAYS[::2])
    sets = ["$setUnion", "$setIntersection", "$setDifference", "$setEquals", "$setIsSubset", "$concatArrays", "$in"]
    texts = _pairs(TEXTS, ["", "a", "b", "ö", ",", None, 3])
    values = _pairs(VALUES[::2], VALUES[1::3])
    positions = _pairs(ARRAYS, [0, 1, -1, 5, 1.0, 1.5, None, "x"])
    places = _pairs(NUMBERS, [0, 1, -1, 2.0, -3, 101, 1.5, None])
    moments = _pairs(DATES[:9], [1, Int64(2**40), 1.5, Decimal128("2.5"), _DAY, "x", None])
    groups: list[tuple[list[str], list[dict[str, Any]]]] = [
        (arithmetic, numbers),
        (sets, arrays),
        (["$concat", "$split", "$strcasecmp", "$indexOfCP", "$indexOfBytes"], texts),
        (["$eq", "$gt", "$lte", "$cmp", "$ifNull"], values),
        (["$arrayElemAt", "$slice"], positions),
        (["$round", "$trunc"], places),
        (["$add", "$subtract"], moments),
    ]
    return [_compute({name: ["$a", "$b"]}, documents) for names, documents in groups for name in names]


def _folded() -> list[Case]:
    documents = _with("v", [1, -1, 2**31 - 1, Int64(1), 0.5, Decimal128("1"), None, "s", [1]])
    expressions = [
        {"$add": [2**31 - 1, 1, "$v"]}, {"$add": ["$v", 2**31 - 1, 1]}, {"$add": [{"$add": ["$v", 1]}, 2]},
        {"$multiply": ["$v", 65536, 65536]}, {"$multiply": [2, "$v", 3.0]}, {"$concat": ["a", "b", "$v", "c"]},
        {"$and": ["$v", False]}, {"$or": [True, "$v"]}, {"$and": [{"$divide": [1, "$v"]}, 0]}, {"$or": ["$v", None, 0]},
        {"$cond": [True, "$v", {"$divide": [1, 0]}]}, {"$cond": [False, {"$add": ["$v", "x"]}, 1]}, {"$add": [1, "x"]},
        {"$ifNull": [None, "$v", "z"]}, {"$ifNull": ["$missing", None, "$$REMOVE"]}, {"$add": [None, "x"]},
        {"$add": []},
        {"$switch": {"branches": [{"case": False, "then": 1}]}}, {"$multiply": []}, {"$concat": []}, {"$and": []},
        {"$or": []},
        {"$switch": {"branches": [{"case": "$missing", "then": 1}]}}, {"$setUnion": []}, {"$sum": []},
        {"$mergeObjects": []},
        {"$switch": {"branches": [{"case": True, "then": "$v"}, {"case": {"$divide": [1, 0]}, "then": 1}]}},
        {"$setEquals": ["$v", 1]}, {"$setIsSubset": [[1], 5]}, {"$indexOfArray": [5, "$v"]},
        {"$indexOfArray": [[1, 2], "$v"]},
        {"$max": [3, "$v", 5.0]}, {"$sum": [1, "$v", Int64(2)]}, {"$min": []}, {"$avg": [1, "$v"]},
        {"$setIntersection": []},
        {"$regexMatch": {"input": "$v", "regex": "("}}, {"$dateToString": {"date": "$v", "format": "%"}},
        {"$not": [[]]},
        {"$getField": "v"}, {"$getField": {"field": "$v"}},
        {"$getField": {"field": {"$concat": ["v", ""]}, "input": "$$ROOT"}},
        {"$setField": {"field": "v", "input": "$$ROOT", "value": "$$REMOVE"}}, {"$literal": "$v"},
        {"$literal": {"a": "$v"}},
        {"$let": {"vars": {"CURRENT": {"v": 5}}, "in": "$v"}},
        {"$let": {"vars": {"a": "$v"}, "in": {"$let": {"vars": {"a": 2, "b": "$$a"}, "in": "$$b"}}}},
        {"$map": {"input": {"$ifNull": [None, [1, None, "$v"]]}, "as": "x", "in": {"$ifNull": ["$$x", "$v"]}}},
        {"$reduce": {"input": [1, 2, "$v"], "initialValue": [], "in": {"$concatArrays": ["$$value", ["$$this"]]}}},
        {"$zip": {"inputs": [[1, 2, 3], ["a"]], "useLongestLength": True, "defaults": [0, "$v"]}},
        {"$range": [0, 10, 3]},
        {"$range": [5, 0, -2]}, {"$range": [0, 5, 0]}, {"$range": [0, "$v"]}, {"$slice": [[1, 2, 3], -2, "$v"]},
        "$$ROOT.v",
        {"$arrayToObject": [[["a", "$v"], ["a", 2]]]}, {"a": "$v", "b": {"c": "$missing"}, "d": ["$missing"]}, "$v.w",
        {"$sortArray": {"input": [3, 1, 2, "$v"], "sortBy": -1}}, {"$firstN": {"n": "$v", "input": [1, 2, 3]}},
        {"$type": ["$v"]},
        {"$convert": {"input": "$v", "to": "$missing"}}, {"$convert": {"input": "$v", "to": 99}},
        {"$convert": {"input": "$v", "to": 2}},
        {"$convert": {"input": "$v", "to": "decimal", "onError": "E", "onNull": "N"}},
        {"$toString": Decimal128("1E-10")},
        {"$dateFromParts": {"year": 2020, "month": 14, "day": -3, "hour": 30, "second": 100000, "millisecond": -5}},
        {"$dateFromParts": {"isoWeekYear": 2020, "isoWeek": 53, "isoDayOfWeek": 7, "timezone": "America/New_York"}},
        {"$dateFromParts": {"year": "$v"}}, {"$replaceAll": {"input": "aaa", "find": "aa", "replacement": "b"}},
        {"$rand": {}, "$x": 1},
    ]  # fmt: skip
    return [_compute(expression, documents) for expression in expressions]


def _dates() -> list[Case]:
    documents = _with("d", DATES[:9])
    strings = [
        "2020-02-29", "2020-02-30", "2021-03-04T05:06:07Z", "2021-03-04T05:06:07.1234567+02:00", "2021-03-04 05:06",
        "20210304",
        "March 4, 2021", "4 Mar 2021 10:11:12", "3/4/2021", "04.03.2021", "2021/3/4", "2021-3-4",
        "Thu, 04 Mar 2021 05:06:07 GMT",
        "2021-03-04T05:06:07-0530", "10:11:12", "", "nonsense", "2021", "2021-03-04T24:00:00Z", "2021-13-04",
        "2021-03-04 5:06 pm",
        "2021-03-04T05:06:07 EST", "Friday 5 March 2021", "12", "tomorrow", "2021-03-04T05:06:61Z", "2021-03-04Z",
    ]  # fmt: skip
    formats = [
        ("%Y-%m-%d", "2021-03-04"), ("%Y-%m-%d", "2021-3-4"), ("%d/%m/%Y %H:%M:%S", "04/03/2021 05:06:07"),
        ("%Y%m%d", "20210304"),
        ("%Y-%m-%dT%H:%M:%S.%L%z", "2021-03-04T05:06:07.5+0200"), ("%G-W%V-%u", "2021-W09-4"),
        ("%Y-%m-%d", "2021-02-30"),
        ("%Y-%m-%d %Z", "2021-03-04 +120"), ("%Y", "2021"), ("%m/%d", "03/04"), ("%Y-%m-%d%%", "2021-03-04%"),
        ("%Y-%m-%d", "x"),
        ("%Y-%m-%d", "2021-03-04 extra"), ("%Y-%m-%d %H", "2021-03-04"), ("%q", "1"), ("%Y-%m-%d %z", "2021-03-04 UTC"),
        ("%H:%M %d.%m.%Y", "5:06 04.03.2021"), ("%Y-%m-%d %M", "2021-03-04 7"), ("%V %G", "5 2020"),
        ("%Y %V", "2020 5"),
    ]  # fmt: skip
    zoned = [
        _compute(
            {name: {"date": "$d", "timezone": "$z"}},
            [{"_id": i, "d": d, "z": z} for i, (d, z) in enumerate((d, z) for d in DATES for z in ZONES)],
        )
        for name in ("$hour", "$dayOfYear", "$isoWeek")
    ]
    shown = [
        _compute({"$dateToString": {"date": "$d", "format": form, "timezone": zone}}, documents)
        for form in ("%Y-%m-%dT%H:%M:%S.%L%z", "%G-%V-%u %j %w %U", "%Z%%x", "%", "%q") for zone in ZONES[:6]
    ]  # fmt: skip
    units = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "eon")
    arithmetic: list[Case] = []
    for unit in units:
        for zone in (None, *ZONES[2:5]):
            at = {} if zone is None else {"timezone": zone}
            arithmetic += [
                _compute({"$dateAdd": {"startDate": "$d", "unit": unit, "amount": 1, **at}}, documents),
                _compute({"$dateSubtract": {"startDate": "$d", "unit": unit, "amount": 7, **at}}, documents),
                _compute({"$dateTrunc": {"date": "$d", "unit": unit, "binSize": 2, **at}}, documents),
                _compute({"$dateDiff": {"startDate": "$d", "endDate": _DAY, "unit": unit, **at}}, documents),
            ]
    early = _with("d", [DatetimeMS(-(2**power) - rest) for power in (51, 53, 58, 61, 62) for rest in (0, 137, 863)])
    arithmetic += [
        _compute({"$dateAdd": {"startDate": "$d", "unit": unit, "amount": 3, **zone}}, early)
        for unit in units[:-1] for zone in ({}, {"timezone": "Europe/Berlin"})
    ]  # fmt: skip
    parsed = [_compute({"$dateFromString": {"dateString": "$v"}}, _with("v", strings))]
    parsed += [
        _compute({"$dateFromString": {"dateString": "$v", "timezone": zone}}, _with("v", strings))
        for zone in ("Europe/Berlin", "UTC", "GMT", "+00:00")
    ]
    parsed += [_compute({"$subtract": [_DAY, "$v"]}, _with("v", [2.0**63, -(2.0**63), 2.0**62]))]
    parsed += [
        _compute({"$dateFromString": {"dateString": text, "format": form, "onError": "bad"}}, [{"_id": 0}]) for form,
        text in formats
    ]  # fmt: skip
    parsed += [
        _compute({"$dateFromString": {"dateString": text, "format": form}}, [{"_id": 0}]) for form, text in formats
    ]
    parts = [
        _compute(
            {"$dateFromParts": {"year": 2017, "month": month, "day": day, "hour": "$h", "timezone": zone}},
            _with("h", [0, 1, 2, 3, 4, 25, -1]))
        for month, day in ((3, 12), (11, 5), (3, 26), (10, 29)) for zone in ("America/New_York", "Europe/Berlin")
    ]  # fmt: skip
    return [*zoned, *shown, *arithmetic, *parsed, *parts]


def _regexes() -> list[Case]:
    patterns = [
        "a", "^a", "a$", "A", "[a-c]+", r"\d+", r"\w+", r"\s", r"\bb", r"a\b", "(a)(b)?", "(?<x>a)b", "a|b", "a*?",
        "a++", "(?>a+)b",
        "ä", "[äö]", r"\x{e4}", r"\xe4", "(?i)AB", "a(?i)B", "(?i:A)b", "(?=a)", "(?<=a)b", "(?<!a)b", "^$", ".", "a.c",
        r"\Aa", r"b\z",
        r"b\Z", r"\Qa.c\E", r"\h", r"\R", "[[:alpha:]]+", "[[:digit:]]", r"[\d-]", "[]a]", "[^]a]", "a{2}", "a{,2}",
        "a{2", "x{0,1}y",
        r"(a)\1", r"(?P<n>a)(?P=n)", r"\k<n>", "(", ")", "[", "a**", "#c", " a ", r"\t", r"\e", r"\011",
        r"[\w.]+", r"\N", r"(?#c)a", "(a(?:b)|c)d", r"\B", "ß", "\u017f", "K", "(?s).", "(?m)^b", "\\", "+a", "a{1}{2}",
        r"\.", r"\/",
    ]  # fmt: skip
    texts = [
        "",
        "a",
        "ab",
        "aab",
        "abc",
        "ABC",
        "äöü Äx",
        "x\nb\n",
        "a.c",
        "12 b3",
        "aa",
        "b\n",
        "a{,2}",
        "a{2",
        "[]",
        "k\u212a",
        "ſs",
        "a b",
        "-",
    ]
    documents = _with("s", [*texts, None, 5, ["abc", 1], Regex("a", "")])
    cases: list[Case] = []
    for pattern in patterns:
        for options in ("", "i"):
            cases.append(([{"$match": {"s": {"$regex": pattern, "$options": options}}}], documents))
        cases.append(_compute({"$regexFindAll": {"input": "$s", "regex": pattern}}, _with("s", texts)))
    for pattern, options in (("^b$", "m"), ("a.b", "s"), ("a b # c", "x"), (". b", "sx"), ("a", "z"), ("A", "iu")):
        cases.append(([{"$match": {"s": {"$regex": pattern, "$options": options}}}], documents))
        cases.append(_compute({"$regexFind": {"input": "$s", "regex": pattern, "options": options}}, _with("s", texts)))
    return cases


def _sorts() -> list[Case]:
    """Long arrays with many equal keys: where equal ones end up is part of the answer."""
    shuffled = [{"k": index * 7 % 5, "n": index} for index in range(60)]
    documents = _with(
        "a", [shuffled, shuffled[:17], shuffled[:16], [{"k": 1, "n": i} for i in range(40)], shuffled[::-1]]
    )
    orders: list[Any] = [
        {"k": 1},
        {"k": -1},
        {"k": 1, "n": -1},
        {"missing": 1},
        {"k": 0},
        {"": 1},
        {"k.": 1},
        {},
        2,
        "x",
    ]
    return [_compute({"$sortArray": {"input": "$a", "sortBy": order}}, documents) for order in orders]


def _queries() -> list[Case]:
    documents: list[dict[str, Any]] = [
        {"_id": i, **fields}
        for i, fields in enumerate(
            [
                {}, {"a": None}, {"a": 1}, {"a": Int64(1)}, {"a": 1.0}, {"a": Decimal128("1")}, {"a": "1"}, {"a": []},
                {"a": [1]},
                {"a": [None]}, {"a": [[1]]}, {"a": [1, "x", {"b": 1}]}, {"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}},
                {"a": [{"b": 1}, {"b": 2}]},
                {"a": [{"b": [1, 2]}, {"c": 1}]}, {"a": {"0": 5}}, {"a": [5, 6]}, {"a": [{"0": 7}]}, {"a": [[5], [6]]},
                {"a": [[{"b": 3}]]},
                {"a": math.nan}, {"a": Decimal128("NaN")}, {"a": MinKey()}, {"a": MaxKey()}, {"a": True},
                {"a": Regex("x", "i")},
                {"a": Binary(b"\x05\x01")}, {"a": datetime(2020, 1, 1, tzinfo=UTC)}, {"a": Timestamp(1, 1)},
                {"a": ObjectId("0" * 24)},
                {"a": {"b": {"c": [1, {"d": 2}]}}}, {"a": -7}, {"a": 6.5}, {"a": 2.0**63}, {"a": [{"b": {"c": 1}}, 3]},
                {"a": [1, 2, 3, 4]},
            ]
        )
    ]  # fmt: skip
    predicates: list[Any] = [
        None, 1, "1", [], [1], {}, {"b": 1}, True, math.nan, MinKey(), MaxKey(), Regex("X", "i"), Regex("x", ""),
        [None], Decimal128("1.0"),
        {"$eq": None}, {"$ne": None}, {"$gt": None}, {"$gte": None}, {"$lte": None}, {"$gt": 0}, {"$lt": 5},
        {"$gte": math.nan}, {"$lt": math.nan},
        {"$gt": MinKey()}, {"$lt": MaxKey()}, {"$gte": []}, {"$gt": {}}, {"$gt": [1]}, {"$lt": [6]}, {"$in": [None, 1]},
        {"$in": []}, {"$nin": [1, None]},
        {"$in": [Regex("^x", "i"), [1]]}, {"$exists": True}, {"$exists": False}, {"$exists": None}, {"$type": "array"},
        {"$type": "number"},
        {"$type": ["string", 10]}, {"$type": "missing"}, {"$type": 0}, {"$type": -1}, {"$type": 127}, {"$type": 99},
        {"$type": []}, {"$type": {}},
        {"$size": 0}, {"$size": 1}, {"$size": 2.0}, {"$size": -1}, {"$size": "x"}, {"$size": 1.5}, {"$all": []},
        {"$all": [1]}, {"$all": [[1]]},
        {"$all": [None]}, {"$all": [1, 2]}, {"$all": [{"$elemMatch": {"b": 1}}, {"$elemMatch": {"b": 2}}]},
        {"$all": [{"$gt": 1}]}, {"$all": 1},
        {"$elemMatch": {"b": 1}}, {"$elemMatch": {"$gt": 4, "$lt": 6}}, {"$elemMatch": {}}, {"$elemMatch": {"0": 5}},
        {"$elemMatch": 1},
        {"$elemMatch": {"$elemMatch": {"$eq": 5}}}, {"$elemMatch": {"$not": {"$gt": 1}}},
        {"$elemMatch": {"$or": [{"b": 1}, {"b": 3}]}},
        {"$elemMatch": {"$in": [5, None]}}, {"$elemMatch": {"$exists": False}}, {"$elemMatch": {"$size": 1}},
        {"$elemMatch": {"$ne": 1}},
        {"$not": {"$gt": 1}}, {"$not": Regex("x", "")}, {"$not": {}}, {"$not": 5}, {"$not": {"$in": [1]}},
        {"$mod": [2, 1]}, {"$mod": [4.9, 1]},
        {"$mod": [0, 1]}, {"$mod": [2]}, {"$mod": 5}, {"$mod": [3, "x"]}, {"$mod": [-4, -3]}, {"$mod": [math.nan, 1]},
        {"$bitsAllSet": 5},
        {"$bitsAnySet": [0, 8]}, {"$bitsAllClear": [1]}, {"$bitsAnyClear": Binary(b"\x05")}, {"$bitsAllSet": -1},
        {"$bitsAllSet": "x"},
        {"$bitsAllSet": [-1]}, {"$bitsAnySet": 1.5}, {"$bitsAllSet": []}, {"$options": "i"}, {"$regex": 5},
        {"$unknown": 1}, {"$where": "x"},
        {"$regex": Regex("x", "i"), "$options": "m"}, {"$gt": Regex("x", "")}, {"$ne": Regex("x", "")},
        {"$eq": Regex("x", "i")}, {"$near": [1, 1]},
        {"$gt": 1, "b": 1}, {"b": 1, "$gt": 1}, {"$in": 1}, {"$in": [{"$gt": 1}]}, {"$comment": "x"}, {"$expr": True},
    ]  # fmt: skip
    cases: list[Case] = []
    for predicate in predicates:
        cases.append(([{"$match": {"a": predicate}}], documents))
    for predicate in predicates[:60:2]:
        for path in ("a.b", "a.0", "a.0.b", "a.b.c", "a.1", "a.0.0", "a.b.c.d", "a.b.0", "a.00"):
            cases.append(([{"$match": {path: predicate}}], documents))
    whole: list[Any] = [
        {}, {"$and": []}, {"$and": [1]}, {"$and": {"a": 1}}, {"$or": [{"a": 1}, {"a": None}]},
        {"$nor": [{"a": 1}, {"a.b": 1}]}, {"$not": {"a": 1}},
        {"$foo": 1}, {"$comment": "why"}, {"$expr": {"$gt": ["$a", 1]}}, {"$expr": {"$eq": ["$a", "$missing"]}},
        {"$expr": "$a"}, {"$where": "1"},
        {"$expr": {"$divide": [1, 0]}}, {"$text": {"$search": "x"}}, {"a": {"$gt": 0}, "a.b": {"$exists": False}},
        {"$alwaysTrue": 1},
        {"$alwaysFalse": 1}, {"$alwaysTrue": 2}, {"$or": [{"a": {"$elemMatch": {"$expr": True}}}]}, {"": 1}, {"a.": 1},
        {"$sampleRate": 1}, {"$sampleRate": 2},
        {"$and": [{"$or": [{"a": 1}]}, {"$nor": [{"a": 2}]}]}, {"$expr": {"$in": ["$a", [1, "1"]]}}, {"$id": 1},
        {"$expr": {"$foo": 1}},
    ]  # fmt: skip
    return cases + [([{"$match": query}], documents) for query in whole]


def _stages() -> list[Case]:
    documents: list[dict[str, Any]] = [
        {"_id": 0, "a": 1, "b": {"c": 2, "d": [1, {"e": 3}]}, "l": [{"x": 1, "y": 2}, 5, [{"x": 3}], {}]}, {"_id": 1},
        {"_id": 2, "b": 7, "a": None, "l": []}, {"a": {"b": {"c": 1}}, "_id": {"z": 1, "y": 2}, "l": {"x": 1}},
    ]  # fmt: skip
    projections: list[Any] = [
        {"a": 1}, {"a": 0}, {"_id": 0}, {"_id": 1}, {"_id": 0, "a": 1}, {"_id": 1, "a": 0}, {"a": 1, "b": 0},
        {"b.c": 1}, {"b.c": 0}, {"b": {"c": 1}}, {"l.x": 1},
        {"l.x": 0}, {"l": {"x": 1, "y": 1}}, {"b.d.e": 1}, {"b.d.e": 0}, {"n": "$a"}, {"n": "text"}, {"n": ["$a", 1]},
        {"n": {"m": "$a"}}, {"n": {}}, {},
        {"b.c": "$a", "a": 1}, {"l.z": {"$literal": 1}}, {"l.z": "$a", "l.x": 1}, {"b.n.m": {"$add": [1, 1]}},
        {"a": 1, "a.b": 1}, {"a.b": 1, "a": 1}, {"a.b": 1, "a.b.c": 1},
        {"a": {"$literal": 1}, "b": 0}, {"a": 0, "b": {"$add": [1, 1]}}, {"a": True}, {"a": False}, {"a": 1.5},
        {"a": Decimal128("0")}, {"a": Int64(0)}, {"a": None}, {"a": "$$ROOT"},
        {"a": {"$foo": 1}}, {"a": {"$add": [1], "x": 1}}, {"": 1}, {"a.": 1}, {".a": 1}, {"$a": 1}, {"a.$": 1},
        {"a.$.b": 1}, {"_id.z": 1}, {"_id.z": 0}, {"_id": "$a"}, {"_id": {"$add": [1, 1]}},
        {"a": {"b": {"c": 0}}}, {"a": {"b.c": 1}}, {"a": {"$elemMatch": {"x": 1}}}, {"l": {"$slice": ["$l", 1]}},
        {"l": {"$slice": 1}}, {"a": "$$REMOVE"}, {"a": "$missing", "b": 1},
        {"b": {"c": 1, "n": {"$literal": 5}}}, {"x.y.z": 1}, {"x.y.z": "$a"}, {"a": {"$meta": 5}},
        {"b": {"c": {"$literal": 1}}, "b.d": 1}, {"a": "$"}, {"a": "$$"}, {"a": "$$x"}, {"a": "$b."},
    ]  # fmt: skip
    additions: list[Any] = [
        {"a": 2}, {"n": "$a"}, {"b.c": "$a"}, {"b.n": {"$literal": 1}}, {"l.z": 1}, {"l.x": "$a"}, {"b": {"c": 1}},
        {"b": {"x": {"y": "$a"}}}, {"a": "$$REMOVE"}, {"_id": 5}, {},
        {"a": {}}, {"a": {"$add": [1], "x": 1}}, {"a": {"b.c": 1}}, {"a": 1, "a.b": 2}, {"a.b": 1, "a": {"c": 1}},
        {"$x": 1}, {"a": {"$foo": 1}}, {"a": []}, {"a": [{"b": "$a"}]}, {"x.y.z": "$a"},
        {"l": {"q": "$a"}}, {"b.d.e": 9}, {"a": 0}, {"a": False}, {"z": 1, "a": 1, "y": "$missing"}, {"": 1},
        {"a..b": 1},
    ]  # fmt: skip
    others: list[Any] = [
        {"$unset": "a"}, {"$unset": ["a", "b.c", "l.x"]}, {"$unset": []}, {"$unset": [1]}, {"$unset": 5},
        {"$unset": ["a", "a"]}, {"$unset": ["a", "a.b"]}, {"$unset": ""}, {"$unset": "$a"},
        {"$replaceRoot": {"newRoot": "$b"}}, {"$replaceRoot": {"newRoot": {"n": "$a"}}}, {"$replaceRoot": {}},
        {"$replaceRoot": {"newRoot": 1, "x": 1}}, {"$replaceRoot": 5}, {"$replaceWith": "$a"},
        {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"a": 9}]}}, {"$replaceWith": "$$ROOT"},
        {"$replaceRoot": {"newRoot": {}}}, {"$redact": "$$KEEP"}, {"$redact": "$$PRUNE"}, {"$redact": "$$DESCEND"},
        {"$redact": 5}, {"$redact": {"$cond": [{"$isArray": "$l"}, "$$DESCEND", "$$KEEP"]}},
        {"$redact": {"$cond": ["$x", "$$PRUNE", "$$DESCEND"]}},
        {"$redact": {"$cond": [{"$eq": ["$$ROOT.a", 1]}, "$$DESCEND", "$$PRUNE"]}},
        {"$match": 5}, {"$project": 5}, {"$addFields": 5}, {"$set": []}, {"$project": []}, {"$redact": "$$FOO"},
        {"$redact": "descend"}, {"$redact": {"$literal": "prune"}},
    ]  # fmt: skip
    cases: list[Case] = [([{"$project": spec}], documents) for spec in projections]
    cases += [([{"$addFields": spec}], documents) for spec in additions]
    cases += [([stage], documents) for stage in others]
    cases += [
        ([{"$addFields": {"a": "$$REMOVE"}}, {"$addFields": {"z": 1, "a": 2}}], documents),
        ([{"$project": {"b.c": 1, "a": 1}}, {"$addFields": {"b.n": "$a"}}, {"$match": {"a": 1}}], documents),
        ([{"$set": {"n": "$missing"}}, {"$set": {"m": 1, "n": 2}}], documents),
    ]
    return cases


def _arguments() -> list[Case]:
    """Operators with wrong numbers, names or types of operands."""
    wrong: list[Any] = [5, "$x", [], [1], [1, 2, 3, 4, 5], {}, {"bogus": 1}, None]
    names = [
        "$abs", "$subtract", "$divide", "$mod", "$round", "$pow", "$log", "$cmp", "$not", "$cond", "$ifNull", "$switch",
        "$let", "$map", "$filter", "$reduce", "$zip",
        "$slice", "$range", "$arrayElemAt", "$in", "$indexOfArray", "$indexOfCP", "$split", "$substr", "$substrCP",
        "$trim", "$replaceOne", "$regexFind", "$convert",
        "$toInt", "$dateToString", "$dateFromString", "$dateFromParts", "$dateToParts", "$dateAdd", "$dateDiff",
        "$dateTrunc", "$year", "$setEquals", "$setIsSubset",
        "$getField", "$setField", "$unsetField", "$sortArray", "$firstN", "$maxN", "$size", "$literal", "$mergeObjects",
        "$concat", "$rand", "$meta", "$bogus", "$atan2",
    ]  # fmt: skip
    documents: list[dict[str, Any]] = [{"_id": 0, "x": 1}]
    return [
        _compute({"z": {name: operands}}, documents)
        for name in names
        for operands in wrong
        if name != "$rand" or operands not in ({}, [])
    ]


def curated_cases() -> list[Case]:
    """Give all cases."""
    return [
        *_unary(), *_doubles(), *_binary(), *_folded(), *_dates(), *_regexes(), *_sorts(), *_queries(), *_stages(),
        *_arguments(),
    ]  # fmt: skip
