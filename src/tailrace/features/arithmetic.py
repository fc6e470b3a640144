"""Expressions over other features: `failed_1h / logins_1h`, checked once and evaluated as a list of steps.

The steps are in reverse Polish notation, so that the same list is evaluated here and by the script inside Redis.
What has no value (null), and what is divided by zero, has none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from tailrace.errors import SettingsError

Step = str | float
"""A number, the name of a feature, or an operator, which begins with a colon."""
Steps = tuple[Step, ...]
_OPERATORS: Final[Mapping[type, str]] = {ast.Add: ":+", ast.Sub: ":-", ast.Mult: ":*", ast.Div: ":/"}
_FUNCTIONS: Final = {"min": 2, "max": 2, "coalesce": 2, "abs": 1}
_HINT: Final = f"Write names of features, numbers, + - * / ( ) and {', '.join(_FUNCTIONS)}."


@lru_cache(maxsize=256)
def parse_expression(text: str) -> Steps:
    """Read an expression; refuse everything that is no arithmetic."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SettingsError(f"{text!r} is not an expression", hint=_HINT) from None
    return tuple(_steps(tree.body, text))


def names_in(steps: Steps) -> list[str]:
    """Give the features that an expression is made of."""
    return [step for step in steps if isinstance(step, str) and not step.startswith(":")]


def _steps(node: ast.expr, text: str) -> Iterator[Step]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield float(node.value)  # type: ignore[arg-type]
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield from _steps(node.left, text)
        yield from _steps(node.right, text)
        yield _OPERATORS[type(node.op)]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield 0.0
        yield from _steps(node.operand, text)
        yield ":-"
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and _FUNCTIONS.get(node.func.id) == len(node.args)
        and not node.keywords
    ):
        for argument in node.args:
            yield from _steps(argument, text)
        yield f":{node.func.id}"
    else:
        raise SettingsError(f"{ast.unparse(node)!r} in {text!r} is not arithmetic", hint=_HINT)


def evaluate(steps: Steps, values: Mapping[str, Any]) -> float | None:
    """Give the value of an expression, or None where it has none."""
    stack: list[float | None] = []
    for step in steps:
        if isinstance(step, float):
            stack.append(step)
        elif not step.startswith(":"):
            stack.append(_number(values.get(step)))
        elif step == ":abs":
            last = stack.pop()
            stack.append(None if last is None else abs(last))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(_applied(step, left, right))
    return stack.pop()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _applied(step: str, left: float | None, right: float | None) -> float | None:
    if step == ":coalesce":
        return right if left is None else left
    if left is None or right is None or (step == ":/" and right == 0):
        return None
    return _APPLY[step](left, right)


_APPLY: Final[Mapping[str, Callable[[float, float], float]]] = {
    ":+": lambda left, right: left + right,
    ":-": lambda left, right: left - right,
    ":*": lambda left, right: left * right,
    ":/": lambda left, right: left / right,
    ":min": min,
    ":max": max,
}
