"""Names in code and in the documentation are the field's: words that nobody would search for are not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import ROOT, all_pages

SOURCE = ROOT / "src" / "tailrace"
NOT_IN_NAMES = {
    "aside": "dead-letter",
    "buried": "dead-letter",
    "bury": "dead-letter",
    "carried": "inlined",
    "carry": "inlined",
    "carrying": "in_transaction, inlined",
    "complain": "report_error",
    "held": "buffered, blocking",
    "hold": "backlog, buffer",
    "holding": "blocking",
    "hurry": "flush",
    "keeper": "store, tracker",
    "letter": "dead_letter",
    "letters": "dead_letters",
    "look": "poll, sample, check",
    "looks": "polls, samples, checks",
    "met": "found, matched",
    "nap": "sleep, back off",
    "news": "data_available",
    "parcel": "in-flight batch",
    "patience": "retry_seconds, timeout",
    "patiently": "with_retries",
    "place": "location, address, index",
    "placed": "location",
    "places": "locations, indexes",
    "portion": "batch",
    "promise": "high_water_mark",
    "promises": "high_water_mark",
    "recipe": "template",
    "room": "capacity",
    "safe": "acknowledged",
    "said": "answer, reported",
    "says": "reported",
    "seen": "observed, values",
    "settle": "commit",
    "settled": "committed, caught_up",
    "settling": "committing",
    "sieve": "prefilter",
    "tell": "notify, report",
    "telling": "reporting",
    "told": "reported, logged",
}
"""Parts of names, with what to use instead."""

EXCEPTIONS = {
    "LeaseHeld": "a lease is held, in the words of every lock service",
    "_IN_PLACE": "in place, as sorting is",
    "in_place": "in place, as sorting is",
    "_looks_up": "updateLookup is MongoDB's word",
    "looks_up": "updateLookup is MongoDB's word",
    "looks_up_by_name": "updateLookup is MongoDB's word",
    "_LOOKS_UP": "updateLookup is MongoDB's word",
    "may_look_like_a_value": "of a text, not of a reader",
    "_LOOKS_LIKE_A_URI": "of a text, not of a reader",
    "_merge_held": "the deprecated name of a metric",
    "_keep_places": "decimal places",
    "places": "decimal places, in $round",
    "placed": "where a shard's chunks are: MongoDB's word is placement",
    "letter": "a format's letter, in $dateToString",
    "letters": "a regular expression's options",
    "first_seen": "a column of the drift table that users query",
    "last_seen": "a column of the drift table that users query",
    "told_as": "the stored column _told_as of mirror tables",
    "carried": "the carry of an addition",
}
NOT_IN_DOCS = re.compile(
    r"""\b(parcels?|sets?\ aside|bury|buries|buried|hurry|hurries|naps?|goes\ round|gone\ round|keepers?|
    (?<!how\ )far\ behind|carryBytes(?!`\ before)|patiently|general\ way|plain\ way|recipes?|sieves?|made\ safe|
    rare\ collections|one\ heap|runs?\ ahead|waited\ out|given\ up|complains?)\b""",
    re.VERBOSE | re.IGNORECASE,
)

NOT_IN_SOURCE = re.compile(
    rf"""{NOT_IN_DOCS.pattern}|\b(puts?\ aside|going\ round|between\ two\ looks|(is|no|old|pass|for)\ news|
    (is|are|was|were|be)\ told(?!\ apart))\b""",
    re.VERBOSE | re.IGNORECASE,
)
"""What docstrings, comments and messages do not say either."""


def names_in(path: Path) -> Iterator[tuple[str, int]]:
    """Whatever a module gives a name to."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def unusual_in(name: str) -> list[str]:
    if name in EXCEPTIONS:
        return []
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if word in NOT_IN_NAMES and (before, word[:6]) != ("dead", "letter")]


def test_identifiers() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line} {name}: not {word!r}, but {NOT_IN_NAMES[word]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name, line in [(path.stem, 1), *names_in(path)]
        for word in unusual_in(name)
    ]
    assert not found, "\n".join(found)


def test_exceptions_are_used() -> None:
    used = {name for path in SOURCE.rglob("*.py") for name, _ in names_in(path)}
    assert not EXCEPTIONS.keys() - used


@pytest.mark.parametrize("name", ["_take_safe", "LetterBox", "settle", "is_told", "patienceSeconds"])
def test_an_unusual_word_is_found_in_any_spelling(name: str) -> None:
    assert unusual_in(name)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in all_pages()])
def test_documentation(page: Path) -> None:
    found = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if NOT_IN_DOCS.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["# a parcel", "it is told of each", "no news", "runs ahead", "put aside"])
def test_an_unusual_word_is_found_in_a_text(text: str) -> None:
    assert NOT_IN_SOURCE.search(text)


def test_docstrings_comments_and_messages() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NOT_IN_SOURCE.search(line) and not line.startswith("_RENAMED")
    ]
    assert not found, "\n".join(found)
