"""What becomes of the documents of a collection when it is dropped or renamed, or its database dropped.

    drop A           the documents that A had are gone
    rename A to B    those that B had are gone, whether `dropTarget` was given or B had none; those of A are B's now
    dropDatabase d   the documents of every collection of d are gone

A name is used again by other collections, so a record says where its document was at the record's own moment. From
there it is followed through the ends that came later. All records that lead to one name are about one collection: each
end of a name separates what came before from what comes after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tailrace.errors import InvalidResumeToken
from tailrace.fold.moments import Moment
from tailrace.token import ResumeToken

END_OPERATIONS: Final = ("drop", "rename", "dropDatabase")


@dataclass(frozen=True, slots=True)
class End:
    """An event that ends the collection of a name, or all of a database."""

    moment: Moment
    operation: str
    namespace: str
    """`db.coll`, or `db` of a database that was dropped."""
    to: str | None = None
    """The new name of a renamed collection; None when it is gone, or the record does not tell."""

    @property
    def collection_uuid(self) -> bytes | None:
        """The collection that ended, which the token names where there is one; a name may have had many."""
        try:
            return ResumeToken.from_hex(self.moment[1]).decode().uuid
        except InvalidResumeToken:
            return None


class Ends:
    """A set of ends, and where they leave documents. Adding one again changes nothing."""

    def __init__(self, ends: Iterable[End] = ()) -> None:
        self._ends: set[End] = set()
        self._by_name: dict[str, list[_Turn]] | None = None
        for end in ends:
            self.add(end)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[End]:
        """Give the ends in the order of their moments."""
        return iter(sorted(self._ends, key=attrgetter("moment")))

    def add(self, end: End) -> bool:
        """Take an end into account; gives whether it is new."""
        if end in self._ends:
            return False
        self._ends.add(end)
        self._by_name = None
        return True

    def repeats(self, end: End) -> bool:
        """Whether an end is told by another shard already, at an earlier time."""
        return end not in set(_once(self))

    def forget_before(self, moment: Moment) -> None:
        """Leave out the ends before a moment, when no record of an earlier one can come any more."""
        self._ends = {end for end in self._ends if end.moment >= moment}
        self._by_name = None

    def place_of(self, namespace: str, moment: Moment) -> str | None:
        """Give where a document is now that was in a collection at a moment; None when it went with its collection."""
        if not self._ends:
            return namespace
        place: str = namespace
        while (turn := self._next_turn(place, moment)) is not None:
            if turn.to is None:
                return None
            place, moment = turn.to, turn.moment
        return place

    def _next_turn(self, namespace: str, moment: Moment) -> _Turn | None:
        """Give the first end of a name behind a moment."""
        turns = self._turns()
        found = [
            known[index]
            for name in (namespace, namespace.partition(".")[0])
            if (known := turns.get(name))
            and (index := bisect_right(known, moment, key=attrgetter("moment"))) < len(known)
        ]
        return min(found, key=attrgetter("moment"), default=None)

    def _turns(self) -> dict[str, list[_Turn]]:
        if self._by_name is None:
            turns: dict[str, list[_Turn]] = {}
            for end in _once(self):
                turns.setdefault(end.namespace, []).append(_Turn(end.moment, end.to))
                if end.to is not None:
                    turns.setdefault(end.to, []).append(_Turn(end.moment, None))
            self._by_name = turns
        return self._by_name


@dataclass(frozen=True, slots=True)
class _Turn:
    """What an end does to the documents under one name."""

    moment: Moment
    to: str | None


def _once(ends: Iterable[End]) -> Iterator[End]:
    """Leave out the renames of a sharded collection that other shards tell again, each at a time of its own.

    A collection that is renamed from A to B has to be renamed to something else before that can happen to it once more.
    """
    last: dict[bytes, tuple[str, str | None]] = {}
    for end in ends:
        uuid = end.collection_uuid if end.operation == "rename" else None
        if uuid is not None:
            if last.get(uuid) == (end.namespace, end.to):
                continue
            last[uuid] = end.namespace, end.to
        yield end
