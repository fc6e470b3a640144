"""The merge by simulation: shards with random events, marks, delays, arrivals and departures."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from bson import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cluster import Merge, Order
from tailrace.token.resume_token import ResumeToken, TokenData


@dataclass(frozen=True)
class FakeEvent:
    """An event that is nothing but its token."""

    shard: str
    time: int
    number: int
    position: ResumeToken = field(init=False, compare=False, repr=False)
    sort_key: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        uuid = self.shard.encode().ljust(16)
        token = ResumeToken.encode(TokenData(Timestamp(self.time, 1), txn_op_index=self.number, uuid=uuid))
        object.__setattr__(self, "position", token)
        object.__setattr__(self, "sort_key", token.key)

    @property
    def token(self) -> bytes:
        return self.position.to_bson()

    @property
    def raw(self) -> bytes:
        return b"x" * 100


def mark(time: int) -> ResumeToken:
    return ResumeToken.high_water_mark(Timestamp(time, 1))


def events(shard: str, *times: int) -> list[FakeEvent]:
    return [FakeEvent(shard, time, 0) for time in times]


def test_an_event_waits_until_every_shard_has_promised():
    merge: Merge[FakeEvent] = Merge()
    merge.add("a", mark(0))
    merge.add("b", mark(0))
    first, second = events("a", 5, 7)
    merge.feed("a", [first, second], second.position)
    assert merge.take() == []
    merge.feed("b", [], mark(6))
    assert merge.take() == [first]
    assert merge.position == mark(6)
    merge.feed("b", [], mark(9))
    assert merge.take() == [second]
    assert merge.position == second.position


def test_the_shard_that_holds_the_others_back_is_named_with_its_time():
    merge: Merge[FakeEvent] = Merge()
    merge.add("a", mark(0))
    merge.add("idle", mark(3))
    (event,) = events("a", 5)
    merge.feed("a", [event], event.position)
    assert [backlog.blocks_merge for backlog in merge.backlogs(now=10.0)] == [False, True]
    a, idle = merge.backlogs(now=12.5)
    assert (idle.shard, idle.blocking_seconds, idle.high_water_mark) == ("idle", 2.5, mark(3))
    assert (a.queued_events, a.queued_bytes) == (1, 100)
    merge.feed("idle", [], mark(8))
    assert not any(backlog.blocks_merge for backlog in merge.backlogs(now=13.0))


def test_per_key_order_waits_for_nobody():
    merge: Merge[FakeEvent] = Merge(Order.PER_KEY)
    merge.add("a", mark(0))
    merge.add("idle", mark(0))
    given_events = events("a", 5, 7)
    merge.feed("a", given_events, given_events[-1].position)
    assert merge.take() == given_events
    assert merge.position == mark(0)


def test_a_shard_that_runs_ahead_is_not_read_further():
    merge: Merge[FakeEvent] = Merge(max_queued_bytes=250)
    merge.add("a", mark(0))
    merge.add("b", mark(0))
    ahead = events("a", 1, 2, 3)
    merge.feed("a", ahead, ahead[-1].position)
    assert (merge.may_read("a"), merge.may_read("b")) == (False, True)
    merge.feed("b", [], mark(9))
    assert merge.may_read("a")


def test_a_leaving_shard_is_drained_and_holds_nobody_back():
    merge: Merge[FakeEvent] = Merge()
    merge.add("a", mark(0))
    merge.add("b", mark(0))
    late, early = events("b", 9)[0], events("a", 4)[0]
    merge.feed("b", [late], late.position)
    merge.remove("b")
    merge.feed("a", [early], mark(5))
    assert merge.take() == [early]
    merge.feed("a", [], mark(10))
    assert merge.take() == [late]
    assert merge.shards == ("a",)


def test_a_shard_takes_part_once():
    merge: Merge[FakeEvent] = Merge()
    merge.add("a", mark(0))
    with pytest.raises(ValueError, match="already"):
        merge.add("a", mark(1))


@dataclass
class Feed:
    """One shard of the simulation: what it will give, in pieces."""

    name: str
    pieces: list[tuple[list[FakeEvent], ResumeToken]]


def random_feeds(random: Random) -> list[Feed]:
    """Some shards with events at random times, given in random pieces, with marks between them."""
    return [Feed(name, random_pieces(name, random)) for name in "abcd"[: random.randint(1, 4)]]


def random_pieces(name: str, random: Random) -> list[tuple[list[FakeEvent], ResumeToken]]:
    time, number = 1, 0
    pieces: list[tuple[list[FakeEvent], ResumeToken]] = []
    for _ in range(random.randint(0, 10)):
        advance = random.randint(0, 3)
        time, number = (time + advance, 0) if advance else (time, number)
        piece = [FakeEvent(name, time, number + index) for index in range(random.randint(0, 3))]
        number += len(piece)
        if piece and random.random() < 0.5:
            pieces.append((piece, piece[-1].position))
        else:
            time, number = time + 1, 0
            pieces.append((piece, mark(time)))
    pieces.append(([], mark(1000)))
    return pieces


@settings(max_examples=7_000, deadline=None, database=None)
@given(seed=st.integers(0, 2**64))
def test_in_any_interleaving_every_event_comes_once_and_in_order(seed: int):
    random = Random(seed)
    feeds = random_feeds(random)
    merge: Merge[FakeEvent] = Merge()
    for feed in feeds:
        merge.add(feed.name, mark(0))
    expected = sorted((event for feed in feeds for piece, _ in feed.pieces for event in piece), key=by_sort_key)
    came: list[FakeEvent] = []
    while unfinished := [feed for feed in feeds if feed.pieces]:
        feed = random.choice(unfinished)
        merge.feed(feed.name, *feed.pieces.pop(0))
        came += merge.take(random.choice([None, 0, 1, 3]))
        check_position(merge, came, expected)
    came += merge.take()
    assert came == expected


def by_sort_key(event: FakeEvent) -> bytes:
    return event.sort_key


def check_position(merge: Merge[FakeEvent], came: list[FakeEvent], expected: list[FakeEvent]) -> None:
    """A resume at the position, an event's or a mark, gives exactly the events that have not come."""
    position = merge.position
    rest = [event for event in expected if event.sort_key > position.key]
    assert rest == expected[len(came) :]


@settings(max_examples=3_000, deadline=None, database=None)
@given(seed=st.integers(0, 2**64))
def test_shards_come_and_go_without_loss(seed: int):
    """A shard joins with what lies above the merge's position, as a new shard does, and leaves when it ends."""
    random = Random(seed)
    feeds = random_feeds(random)
    merge: Merge[FakeEvent] = Merge()
    outside, inside = list(feeds), []
    came: list[FakeEvent] = []
    expected: set[FakeEvent] = set()
    while outside or inside:
        if outside and (not inside or random.random() < 0.3):
            feed = outside.pop()
            merge.add(feed.name, merge.position)
            feed.pieces = [([e for e in piece if e.position > merge.position], mark) for piece, mark in feed.pieces]
            expected |= {event for piece, _ in feed.pieces for event in piece}
            inside.append(feed)
        feed = random.choice(inside)
        merge.feed(feed.name, *feed.pieces.pop(0))
        if not feed.pieces:
            merge.remove(feed.name)
            inside.remove(feed)
        came += merge.take()
    came += merge.take()
    assert len(came) == len(set(came))
    assert set(came) == expected
    assert came == sorted(came, key=by_sort_key)
