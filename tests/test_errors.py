"""Every error has a code, an outcome and a hint, pickles, and stands in the tree of the docstring."""

from __future__ import annotations

import pickle

import pytest

from tailrace import errors
from tailrace.errors import Outcome, TailraceError


def all_errors() -> list[type[TailraceError]]:
    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    return sorted(
        {kind for kind in below(TailraceError) if kind.__module__ == errors.__name__}, key=lambda k: k.__name__
    )


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_each_error_is_complete_and_drawn_in_the_tree(kind):
    assert kind.code != TailraceError.code
    assert kind.default_hint
    line = next(line for line in errors.__doc__.splitlines() if f"─ {kind.__name__} " in line)
    words = line.split()
    assert kind.code in words
    assert kind.outcome in words


def test_codes_are_unique():
    codes = [kind.code for kind in all_errors()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_each_error_pickles_with_its_details(kind):
    error = TailraceError.__new__(kind, "broken")
    TailraceError.__init__(error, "broken", hint="mend it", where="here")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.hint, copy.details) == ("broken", "mend it", {"where": "here"})
    assert isinstance(copy.outcome, Outcome)
