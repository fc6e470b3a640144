"""Random specifications that are mostly wrong: what is refused, and with which of several possible errors."""

from __future__ import annotations

from typing import Any

from engine.expression.expression_generator import Generator
from tailrace.engine.expression import pipeline  # noqa: F401  (registers the operators)
from tailrace.engine.expression.parsing import operator_names

# Random numbers differ, and decimals are refused in these.
_LEFT_OUT = {"$rand", "$exp", "$ln", "$log", "$log10", "$pow", "$sin", "$cos", "$tan", "$asin", "$acos", "$atan"} | {
    "$atan2", "$sinh", "$cosh", "$tanh", "$asinh", "$acosh", "$atanh",
}  # fmt: skip
_OPERATORS = [name for name in operator_names((6, 0, 5)) if name not in _LEFT_OUT]
_ARGUMENTS: dict[str, list[str]] = {
    "$filter": ["input", "as", "cond", "limit"], "$map": ["input", "as", "in"], "$cond": ["if", "then", "else"],
    "$reduce": ["input", "initialValue", "in"], "$switch": ["branches", "default"], "$let": ["vars", "in"],
    "$dateToString": ["date", "format", "timezone", "onNull"], "$trim": ["input", "chars"], "$firstN": ["n", "input"],
    "$dateFromString": ["dateString", "format", "timezone", "onError", "onNull"], "$getField": ["field", "input"],
    "$regexFind": ["input", "regex", "options"], "$convert": ["input", "to", "onError", "onNull"],
    "$zip": ["inputs", "defaults", "useLongestLength"], "$dateAdd": ["startDate", "unit", "amount", "timezone"],
    "$dateDiff": ["startDate", "endDate", "unit", "startOfWeek", "timezone"], "$sortArray": ["input", "sortBy"],
    "$dateTrunc": ["date", "unit", "binSize", "startOfWeek"], "$dateToParts": ["date", "iso8601", "timezone"],
    "$dateFromParts": ["year", "month", "day", "isoWeekYear", "hour"], "$setField": ["field", "input", "value"],
    "$replaceOne": ["input", "find", "replacement"],
}  # fmt: skip
_PATHS = ["$", "$$", "$$this", "$$value", "$a.", "$$x.y", "$$ROOT.a", "$.a", "$$REMOVE", "$$NOW.x", "$a..b"]
_QUERY_OPERATORS = [
    "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$type", "$regex", "$options", "$mod", "$all",
    "$size", "$elemMatch", "$not", "$bitsAllSet", "$bitsAnyClear", "$expr", "$and", "$or", "$nor", "$comment", "$foo",
    "$where",
]  # fmt: skip
_FIELDS = [
    "i",
    "a",
    "o.k",
    "docs.a",
    "x",
    "deep.a.c",
    "a.0",
    "nums",
    "s",
    "",
    "$x",
    "a.",
    "_id",
    "docs.0.a",
    "deep.a.c.0",
]
_SPEC_FIELDS = ["a", "b", "a.b", "a.b.c", "_id", "_id.x", "o", "o.k", "docs.a", "$x", "x.", "", "deep.a", "deep"]


class OddGenerator(Generator):
    """Makes specifications without regard for what fits."""

    def odd_value(self, depth: int = 2) -> Any:
        """Make something to stand where an operand stands."""
        dice = self.random.random()
        if dice < 0.3:
            return self.leaf(self.kind())
        if dice < 0.5:
            return self.value()
        if dice < 0.6:
            return self.choice(_PATHS)
        if dice < 0.75 and depth:
            return [self.odd_value(depth - 1) for _ in range(self.random.randrange(4))]
        return self.odd_operator(depth - 1) if depth else {"bogus": self.choice(_PATHS)}

    def odd_operator(self, depth: int = 2) -> dict[str, Any]:
        """Make an operator with operands of any number and kind."""
        name = self.choice(_OPERATORS)
        if name in _ARGUMENTS and self.chance(0.8):
            given = [argument for argument in _ARGUMENTS[name] if self.chance(0.85)]
            given += ["bogus"] if self.chance(0.1) else []
            return {name: {argument: self.odd_value(depth) for argument in given}}
        if self.chance(0.5):
            return {name: self.odd_value(depth)}
        return {name: [self.odd_value(depth) for _ in range(self.random.randrange(4))]}

    def odd_predicate(self, depth: int) -> Any:
        """Make something to stand behind a path in a query."""
        if depth <= 0 or self.chance(0.35):
            return self.value()
        operands = [
            lambda: self.odd_predicate(depth - 1),
            lambda: [self.odd_predicate(depth - 1) for _ in range(self.random.randrange(3))],
            self.value,
        ]
        return {self.choice(_QUERY_OPERATORS): self.choice(operands)() for _ in range(self.choice([1, 1, 2]))}

    def odd_query(self, depth: int = 2) -> dict[str, Any]:
        """Make a query."""
        if depth and self.chance(0.25):
            name = self.choice(["$and", "$or", "$nor", "$comment", "$expr", "$not"])
            return {name: [self.odd_query(depth - 1) for _ in range(self.random.randrange(3))]}
        return {self.choice(_FIELDS): self.odd_predicate(2) for _ in range(self.choice([1, 1, 2]))}

    def odd_projection(self, depth: int = 2) -> dict[str, Any]:
        """Make a specification for `$project` or `$addFields`."""
        makers = [
            lambda: self.choice([1, 0, True, False, 2.5, "$s", "text", None]),
            lambda: [1, "$i"],
            lambda: self.odd_projection(depth - 1) if depth else 1,
            lambda: self.choice([{"$add": ["$i", 1]}, {"$foo": 1}, {"$literal": 1, "x": 2}]),
        ]
        count = self.random.randint(0 if depth < 2 else 1, 3)
        return {self.choice(_SPEC_FIELDS): self.choice(makers)() for _ in range(count)}

    def odd_stage(self) -> dict[str, Any]:
        """Make one stage."""
        makers = [
            lambda: {"$project": {"r": self.odd_operator()}},
            lambda: {"$set": {"r": self.odd_operator()}},
            lambda: {"$match": {"$expr": self.odd_operator()}},
            lambda: {"$match": self.odd_query()},
            lambda: {"$match": self.odd_query()},
            lambda: {"$project": self.odd_projection()},
            lambda: {"$addFields": self.odd_projection()},
            lambda: {"$unset": self.random.sample(["a", "a.b", "docs.a", "", "x.", "$q"], 2)},
        ]
        return self.choice(makers)()
