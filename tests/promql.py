"""The part of PromQL that the alert rules are written in, so that they are tried where there is no promtool.

Vectors are dictionaries from label sets to numbers. `rate` and `increase` do not extrapolate to the edges of their
range as Prometheus does, so results differ by a few per cent: made-up series keep clear of the thresholds.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float
Series = Mapping[tuple[str, Labels], Sequence[float]]
"""One value a minute for each metric name and label set."""

LOOKBACK_MINUTES = 5
_UNITS = {"s": 1 / 60, "m": 1, "h": 60}
_TOKEN = re.compile(r'\s*([a-zA-Z_][\w]*|\d+(?:\.\d+)?|"[^"]*"|\[\d+[smh]\]|<=|>=|==|!=|[<>=(){},*])')
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def minutes(text: str) -> float:
    """Read a duration such as `5m`."""
    return float(text[:-1]) * _UNITS[text[-1]]


def series_of(inputs: Sequence[Mapping[str, str]]) -> dict[tuple[str, Labels], list[float]]:
    """Read the `input_series` of a promtool test file."""
    result = {}
    for each in inputs:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", each["series"]).groups()  # type: ignore[union-attr]
        result[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = list(_values(each["values"]))
    return result


def _values(text: str) -> Iterator[float]:
    """Expand `1x3` (four ones), `0+5x3` (0 5 10 15) and plain numbers."""
    for word in text.split():
        start, step, times = re.fullmatch(r"([\d.]+|Inf)(?:\+([\d.]+))?(?:x(\d+))?", word).groups()  # type: ignore[union-attr]
        for number in range(int(times or 0) + 1):
            yield float(start) + number * float(step or 0)


def evaluate(expression: str, series: Series, minute: int) -> Vector:
    """The instant vector of an expression at a minute."""
    found = _Parser(expression, series, minute).whole()
    assert isinstance(found, dict)
    return found


def firing(rule: Mapping[str, object], series: Series, minute: int) -> list[Labels]:
    """The label sets for which an alert fires: its expression held at every minute of its `for`."""
    held = int(minutes(str(rule.get("for", "0m"))))
    if minute < held:
        return []
    moments = [evaluate(str(rule["expr"]), series, each) for each in range(minute - held, minute + 1)]
    return [labels for labels in moments[-1] if all(labels in moment for moment in moments)]


class _Parser:
    """Evaluates while it parses; the grammar is small enough."""

    def __init__(self, expression: str, series: Series, minute: int) -> None:
        self._tokens = _TOKEN.findall(expression)
        assert "".join(self._tokens) == re.sub(r"\s", "", expression), f"cannot read {expression}"
        self._series = series
        self._minute = minute

    def whole(self) -> Value:
        value = self._all_of()
        assert not self._tokens, f"cannot read {self._tokens}"
        return value

    def _next(self, expected: str | None = None) -> str:
        token = self._tokens.pop(0)
        assert expected in (None, token), f"{token} where {expected} should be"
        return str(token)

    def _at(self, *tokens: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in tokens

    def _all_of(self) -> Value:
        left = self._comparison()
        while self._at("and", "unless"):
            wanted = self._next() == "and"
            right = self._comparison()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = {labels: value for labels, value in left.items() if (labels in right) == wanted}
        return left

    def _comparison(self) -> Value:
        left = self._product()
        if not self._at(*_COMPARE):
            return left
        holds = _COMPARE[self._next()]
        right = self._product()
        assert isinstance(left, dict)
        other = right if isinstance(right, dict) else dict.fromkeys(left, right)
        return {labels: value for labels, value in left.items() if labels in other and holds(value, other[labels])}

    def _product(self) -> Value:
        left = self._term()
        if not self._at("*"):
            return left
        self._next()
        right = self._term()
        assert isinstance(left, float)
        assert isinstance(right, dict)
        return {labels: left * value for labels, value in right.items()}

    def _term(self) -> Value:
        token = self._next()
        if token[0].isdigit():
            return float(token)
        if token == "sum":
            return self._sum()
        if token in ("rate", "increase"):
            self._next("(")
            value = self._increase(self._next(), per_second=token == "rate")
            self._next(")")
            return value
        return self._instant(token)

    def _sum(self) -> Vector:
        self._next("by")
        kept = set(self._list("(", ")"))
        self._next("(")
        summed: Vector = defaultdict(float)
        inner = self._all_of()
        assert isinstance(inner, dict)
        for labels, value in inner.items():
            summed[frozenset(label for label in labels if label[0] in kept)] += value
        self._next(")")
        return dict(summed)

    def _increase(self, name: str, *, per_second: bool) -> Vector:
        matching = self._matching(name)
        span = minutes(self._next().strip("[]"))
        grown: Vector = {}
        for labels, values in matching.items():
            seen = values[max(0, self._minute - int(span)) : self._minute + 1]
            if len(seen) > 1:
                grown[labels] = (seen[-1] - seen[0]) / (span * 60 if per_second else 1)
        return grown

    def _instant(self, name: str) -> Vector:
        found: Vector = {}
        for labels, values in self._matching(name).items():
            seen = values[max(0, self._minute - LOOKBACK_MINUTES) : self._minute + 1]
            if seen:
                found[labels] = seen[-1]
        return found

    def _matching(self, name: str) -> dict[Labels, Sequence[float]]:
        wanted: set[tuple[str, str]] = set()
        if self._at("{"):
            parts = self._list("{", "}")
            wanted = {(label, value.strip('"')) for label, _, value in zip(*[iter(parts)] * 3, strict=True)}
        return {labels: values for (each, labels), values in self._series.items() if each == name and wanted <= labels}

    def _list(self, opening: str, closing: str) -> list[str]:
        self._next(opening)
        parts = []
        while not self._at(closing):
            parts.append(self._next())
            if self._at(","):
                self._next()
        self._next(closing)
        return parts
