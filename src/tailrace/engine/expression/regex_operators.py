"""`$regexMatch`, `$regexFind` and `$regexFindAll`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tailrace.engine.expression.failures import check, fail
from tailrace.engine.expression.meter import ELEMENT, spend
from tailrace.engine.expression.nodes import Constant, Evaluate, Node, Operator, Slots
from tailrace.engine.expression.parsing import Arguments, Scope, Version, parser
from tailrace.engine.expression.pcre import Found, MatchFailed, PatternError, compile_pattern, is_utf8
from tailrace.engine.expression.values import Document, Regex, Value, is_nullish, kind_of

if TYPE_CHECKING:
    from tailrace.engine.expression.pattern import Pattern


def check_options(options: str, operator: str, version: Version) -> None:
    """Refuse letters that are no options; `u`, which changes nothing, is one since 5.1."""
    known = "imxsu" if version >= (5, 1) else "imxs"
    for letter in options:
        check(letter in known, 51108, f"{operator} invalid flag in regex options: {letter}")


def read_pattern(operator: str, regex: Value, options: Value, version: Version) -> Pattern | None:
    """Compile the pattern that two arguments give; None when there is none."""
    is_pattern = is_nullish(regex) or type(regex) in (str, Regex)
    check(is_pattern, 51105, f"{operator} needs 'regex' to be of type string or regex")
    has_options = type(options) is str
    check(has_options or is_nullish(options), 51106, f"{operator} needs 'options' to be of type string")
    letters = options if has_options else ""
    pattern = regex
    if type(regex) is Regex:
        pattern = regex.pattern
        check(
            not (regex.options and not is_nullish(options)),
            51107,
            f"{operator}: found regex option(s) specified in both 'regex' and 'option' fields",
        )
        letters = letters or regex.options
    if type(pattern) is str:
        check("\0" not in pattern, 51109, f"{operator}: regular expression cannot contain an embedded null byte")
    check("\0" not in letters, 51110, f"{operator}: regular expression options cannot contain an embedded null byte")
    check_options(letters, operator, version)
    if type(pattern) is not str:
        return None
    try:
        return compile_pattern(pattern, letters)
    except PatternError as error:
        fail(51111, f"Invalid Regex in {operator}: {error}")


def _matches(pattern: Pattern | None, text: str | None) -> Value:
    return pattern is not None and text is not None and pattern.matches(text)


def _find(pattern: Pattern | None, text: str | None) -> Value:
    if pattern is None or text is None:
        return None
    match = pattern.find(text)
    return _document(match) if match is not None else None


def _find_all(pattern: Pattern | None, text: str | None) -> Value:
    if pattern is None or text is None:
        return []
    return [_document(match) for match in pattern.find_all(text)]


def _document(match: Found) -> Document:
    spend(10 * ELEMENT + len(match.text))
    return Document.of({b"match": match.text, b"idx": match.index_of_match, b"captures": match.captures})


_OPERATORS: dict[str, Callable[[Pattern | None, str | None], Value]] = {
    "$regexMatch": _matches,
    "$regexFind": _find,
    "$regexFindAll": _find_all,
}


class _RegexOperator(Operator):
    """A search; a constant pattern is compiled when the tree is optimized."""

    __slots__ = ("_version",)

    def __init__(self, name: str, children: list[Node | None], version: Version) -> None:
        super().__init__(name, children, self._search, folds=False)
        self._version = version

    def optimize(self) -> Node:
        """Compile the pattern, if it is known."""
        super().optimize()
        _, regex, options = self.children
        if type(regex) is Constant and (options is None or type(options) is Constant):
            letters = options.value if options is not None else None
            pattern = read_pattern(self.name, regex.value, letters, self._version)
            self._build = lambda source, *_: self._search_constant(source, pattern)
        return self

    def _search(self, source: Evaluate, regex: Evaluate, options: Evaluate | None) -> Evaluate:
        compute, name, version = _OPERATORS[self.name], self.name, self._version

        def evaluate(slots: Slots) -> Value:
            text, pattern = source(slots), regex(slots)
            letters = options(slots) if options is not None else None
            checked = _text(name, text)
            return _searched(name, compute, read_pattern(name, pattern, letters, version), checked)

        return evaluate

    def _search_constant(self, source: Evaluate, pattern: Pattern | None) -> Evaluate:
        compute, name = _OPERATORS[self.name], self.name
        return lambda slots: _searched(name, compute, pattern, _text(name, source(slots)))


def _searched(
    name: str, compute: Callable[[Pattern | None, str | None], Value], pattern: Pattern | None, text: str | None
) -> Value:
    try:
        return compute(pattern, text)
    except MatchFailed as failed:
        fail(51156, _FAILED.format(name, failed.code))


_FAILED: Final = "Error occurred while executing the regular expression in {}. Result code: {}"


def _text(name: str, value: Value) -> str | None:
    valid = is_nullish(value) or type(value) is str
    check(valid, 51104, f"{name} needs 'input' to be of type string")
    if type(value) is not str:
        return None
    check(is_utf8(value), 51156, _FAILED.format(name, -10))
    return value


@parser(*_OPERATORS)
def parse_regex_operator(name: str, value: Value, scope: Scope) -> Node:
    """Read the text, the pattern and its options."""
    arguments = Arguments(
        names=("input", "regex", "options"),
        in_order=True,
        not_object=(51103, f"{name} expects an object of named arguments but found: {kind_of(value)}"),
        unknown=(31024, name + " found an unknown argument: {}"),
        required={
            "input": (31022, f"{name} requires 'input' parameter"),
            "regex": (31023, f"{name} requires 'regex' parameter"),
        },
    )
    return _RegexOperator(name, arguments.parse(value, scope), scope.context.version)
