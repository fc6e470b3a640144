"""What becomes of the documents of a collection when it is dropped or renamed, or its database dropped.

    drop A           the documents that A had are gone
    rename A to B    those that B had are gone, whether `dropTarget` was given or B had none; those of A are B's now
    dropDatabase d   the documents of every collection of d are gone

A collection that is renamed to a name nobody follows is gone like a dropped one: what happens to it there is not told,
so what comes back from there is another collection, whose documents have to be read.

A name is used again by other collections, so a record says where its document was at the record's own moment. From
there it is followed through the ends that came later. All records that lead to one name are about one collection: each
end of a name separates what came before from what comes after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

from bson.timestamp import Timestamp

from tailrace.errors import InvalidResumeToken
from tailrace.event import ChangeEvent
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData

Moment: TypeAlias = tuple[int, str]
"""Cluster time as one number (seconds in the upper 32 bits), and what orders the records of one time."""

BEHIND_EVENTS: Final = "~"
"""Sorts behind every token, which is made of hexadecimal digits."""
KIND_BEGINS: Final = 22
"""Where the kind of a token stands in its digits: behind the cluster time and the version."""
HIGH_WATER_MARK: Final = "29"
"""The kind of a high-water mark there: the KeyString of 0."""


def moment_of(cluster_time: int, token: str) -> Moment:
    """Give the moment of a record.

    A row of a snapshot and a delete that recovery found are as of a cluster time, so they include all events of it;
    their token is a high-water mark, which would sort before those.
    """
    is_mark = token[KIND_BEGINS : KIND_BEGINS + 2] == HIGH_WATER_MARK
    return cluster_time, BEHIND_EVENTS if is_mark else token


END_OPERATIONS: Final = ("drop", "rename", "dropDatabase")
_SECONDS_UNTIL_ALL_SHARDS_REPORT: Final = 600
"""A rename is done on all shards of its collection under one lock; a shard that fails over in the middle is later."""


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


def end_of(event: ChangeEvent) -> End:
    """Give the end that an event tells of."""
    moment = moment_of(event.cluster_time, event.token_text.decode())
    return End(moment, event.operation_type, event.namespace, event.new_namespace)


class Ends:
    """A set of ends, and where they leave documents. Adding one again changes nothing."""

    def __init__(self, ends: Iterable[End] = (), *, is_followed: Callable[[str], bool] = lambda _: True) -> None:
        """`is_followed` tells whether the records of a collection are read."""
        self._ends: set[End] = set()
        self._is_followed = is_followed
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
        """Whether another shard has the same end already, at an earlier time."""
        return end not in set(_once(self))

    def forget_before(self, moment: Moment) -> None:
        """Leave out the ends before a moment, when no record of an earlier one can come any more."""
        self._ends = {end for end in self._ends if end.moment >= moment}
        self._by_name = None

    def location_of(self, namespace: str, moment: Moment) -> str | None:
        """Give where a document is now that was in a collection at a moment; None when it went with its collection."""
        if not self._ends:
            return namespace
        location: str = namespace
        while (turn := self._next_turn(location, moment)) is not None:
            if turn.to is None:
                return None
            location, moment = turn.to, turn.end.moment
        return location

    def without(self, ends: Iterable[End]) -> Ends:
        """Give the set that lacks some ends."""
        return Ends(self._ends.difference(ends), is_followed=self._is_followed)

    def newest_of(self, namespace: str) -> End | None:
        """Give the last end of a name: only what comes behind it is about the collection that has the name now."""
        turns = self._turns_of(namespace)
        return turns[-1].end if turns else None

    def locations_of(self, namespace: str) -> list[tuple[Moment, str | None]]:
        """Give where the documents of a name are now, by their moments: up to each moment here, at that place.

        Changes from the last of these moments on are under the name itself.
        """
        return [(turn.end.moment, self._behind(turn)) for turn in self._turns_of(namespace)]

    def brings_unknown(self, end: End) -> bool:
        """Whether a rename gives a followed name to documents that no record told of.

        They come from a name that is not followed, perhaps by way of one that is.
        """
        if end.to is None or not self._is_followed(end.to):
            return False
        if not self._is_followed(end.namespace):
            return True
        before = [turn.end for turn in self._turns_of(end.namespace) if turn.end.moment < end.moment]
        return bool(before) and before[-1].to == end.namespace and self.brings_unknown(before[-1])

    def unseen_renames(self, names: Mapping[bytes, str], resumed_at: Timestamp) -> list[End]:
        """Give the renames that nobody told, when collections have these names, by UUID, where a stream begins again.

        A stream that begins now begins one tick behind the newest operation, and documents that are read now are as of
        that operation: so the renames are as of it too.

        Only a collection that was renamed before has a name that the ends know. Told or not makes a difference when it
        is renamed again: the same rename once more, with its undoing unseen, would be taken for that of another shard.
        """
        time = ClusterTime(ClusterTime.from_timestamp(resumed_at) - 1)
        last: dict[bytes, End] = {}
        for end in self:
            if end.operation == "rename" and end.moment[0] < time and (uuid := end.collection_uuid) is not None:
                last[uuid] = end
        found = []
        for uuid, end in last.items():
            name = names.get(uuid)
            if name is not None and end.to is not None and name != end.to:
                token = ResumeToken.encode(TokenData(time.timestamp, uuid=uuid, event_identifier=None)).hex
                found.append(End(moment_of(time, token), "rename", end.to, name))
        return found

    def _behind(self, turn: _Turn) -> str | None:
        return None if turn.to is None else self.location_of(turn.to, turn.end.moment)

    def _next_turn(self, namespace: str, moment: Moment) -> _Turn | None:
        """Give the first end of a name behind a moment."""
        turns = self._turns()
        found = [
            known[index]
            for name in (namespace, namespace.partition(".")[0])
            if (known := turns.get(name)) and (index := bisect_right(known, moment, key=_moment_of)) < len(known)
        ]
        return min(found, key=_moment_of, default=None)

    def _turns_of(self, namespace: str) -> list[_Turn]:
        turns = self._turns()
        names = namespace, namespace.partition(".")[0]
        return sorted((turn for name in names for turn in turns.get(name, ())), key=_moment_of)

    def _turns(self) -> dict[str, list[_Turn]]:
        if self._by_name is None:
            turns: dict[str, list[_Turn]] = {}
            for end in _once(self):
                to = end.to if end.to is not None and self._is_followed(end.to) else None
                turns.setdefault(end.namespace, []).append(_Turn(end, to))
                if end.to is not None:
                    turns.setdefault(end.to, []).append(_Turn(end, None))
            self._by_name = turns
        return self._by_name


@dataclass(frozen=True, slots=True)
class _Turn:
    """What an end does to the documents under one name."""

    end: End
    to: str | None
    """Where they are behind it; None when they are gone."""


def _moment_of(turn: _Turn) -> Moment:
    return turn.end.moment


def _once(ends: Iterable[End]) -> Iterator[End]:
    """Leave out the renames of a sharded collection that other shards tell again, each at a time of its own.

    A collection that is renamed from A to B has to be renamed to something else before that can happen to it once more.
    When history was lost in between, the recovery tells that (`unseen_renames`), or more time has passed than shards
    take.
    """
    last: dict[bytes, End] = {}
    for end in ends:
        uuid = end.collection_uuid if end.operation == "rename" else None
        if uuid is not None:
            before = last.get(uuid)
            if before is not None and _is_repeated(before, end):
                continue
            last[uuid] = end
        yield end


def _is_repeated(one: End, other: End) -> bool:
    names = (one.namespace, one.to) == (other.namespace, other.to)
    return names and other.moment[0] - one.moment[0] < ClusterTime.of(_SECONDS_UNTIL_ALL_SHARDS_REPORT)
