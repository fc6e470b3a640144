"""A shortcut through the first stages for the entries that make up nearly every oplog.

Inserts, updates and deletes outside of transactions look alike: servers since 4.4 write the same fields in the
same order (those of 4.2 are put into it), and all entries of one kind in one collection begin with the same bytes
(`op`, `ns`, `ui`). So the first such entry takes the general way (`Match`, `Unwind`, `Transform`) and leaves a recipe
(`recipe.py`) under those bytes, for all that come after it. An entry that is not exactly of that form takes the
general way, always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from struct import error as StructError
from typing import Final

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.match import Relevance, Relevant
from tailrace.engine.plain_4_2 import in_later_order
from tailrace.engine.recipe import OPERATION_TYPES, Recipe, RecipeBook
from tailrace.engine.sieve import Sieve
from tailrace.oplog.entry import OplogEntry

_RECIPES: Final = 10_000
"""How many recipes are kept: one for each kind of operation in each collection."""
_SESSION_SIZE: Final = 19
"""Of `txnNumber`, which stands behind `lsid` in entries of retryable writes, and before `op`."""
_PREFIX_SIZE: Final = 46
"""Of `op`, `ns`, `ui` and the head of `o`, without the text of the namespace."""
_FIELDS: Final = frozenset(b"lsid txnNumber op ns ui o o2 stmtId ts t v wall prevOpTime".split())


class OneByOne:
    """Sends single entries through stages that are made for many."""

    def __init__(self, stages: Callable[[Iterable[bytes | None]], Iterable[Event | None]]) -> None:
        self._waiting: deque[bytes | None] = deque()
        self._events = iter(stages(iter(self._waiting.popleft, ...)))

    def __call__(self, entry: bytes) -> Iterator[Event]:
        """Give the events of one entry: those before the None that follows it through the stages."""
        self._waiting += (entry, None)
        return iter(self._events.__next__, None)


class PlainEvents:
    """The first stages: plain entries become events by recipe, all others by the general way.

    `wanted` is what the user's filter says of an operation type and namespace; `sieve` what it says of an entry's
    bytes, from an offset on.
    """

    def __init__(
        self,
        entries: Iterable[bytes | None],
        general: Callable[[bytes], Iterable[Event]],
        relevant: Relevant,
        book: RecipeBook,
        wanted: Callable[[bytes, bytes], bool],
        sieve: Sieve | None,
    ) -> None:
        self._entries = entries
        self._general = general
        self._relevant = relevant
        self._book = book
        self._wanted = wanted
        self._sieve = sieve
        self._recipes: dict[bytes, Recipe | None] = {}

    def __iter__(self) -> Iterator[Event | None]:
        # One loop without calls up to the recipe: most of the time of a filtered stream is spent here.
        recipes, sieve, general = self._recipes, self._sieve, self._general
        for logged in self._entries:
            if logged is None:
                yield None
                continue
            event: Event | None = None
            entry = logged
            try:
                if entry[4] == raw.TIMESTAMP:
                    entry = in_later_order(logged) or logged
                start = 4 if entry[4] != raw.DOCUMENT else 10 + entry[10] + _SESSION_SIZE
                body = start + entry[start + 14] + _PREFIX_SIZE
                recipe = recipes[entry[start:body]]
                if recipe is None or (sieve is not None and not sieve(entry, body)):
                    continue  # of no interest to the stream
                event = recipe(entry, body)
            except KeyError:
                self._learn(entry, entry[start:body], body)
            except (IndexError, StructError):
                pass  # shorter than plain entries are
            if event is not None:
                yield event
            else:
                yield from general(logged)

    def _learn(self, entry: bytes, prefix: bytes, body: int) -> None:
        """Keep a recipe for entries that begin like this one, when it is a plain one."""
        view = OplogEntry(entry)
        span = view.spans.get(b"o")
        if span is None or span[1] != body or view.op not in OPERATION_TYPES or not _FIELDS.issuperset(view.spans):
            return
        if len(self._recipes) >= _RECIPES:
            self._recipes.clear()
        if self._relevant(view) is Relevance.NONE or not self._is_wanted(view):
            self._recipes[prefix] = None
        elif (recipe := self._book.recipe(view)) is not None:
            self._recipes[prefix] = recipe

    def _is_wanted(self, view: OplogEntry) -> bool:
        """Ask the user's filter; a logged update may be a replacement too."""
        types = (b"update", b"replace") if view.op == b"u" else (OPERATION_TYPES[view.op],)
        return any(self._wanted(operation_type, view.namespace) for operation_type in types)
