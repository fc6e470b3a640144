"""Where documents are after drops and renames, by the moments of their records."""

from __future__ import annotations

from pathlib import Path

import bson
import pytest
from bson.timestamp import Timestamp

from collection_lives import Deployment
from tailrace.capture.formats import make_format
from tailrace.capture.recovery.local_inventory import LocalKeys
from tailrace.fold import End, Ends, Moment, moment_of
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData

UUID = bytes(16)


def event_moment(second: int) -> Moment:
    """Give the moment of an event of a collection."""
    token = ResumeToken.encode(TokenData(Timestamp(second, 1), uuid=UUID, event_identifier=None))
    return moment_of(ClusterTime.of(second, 1), token.hex)


def read_moment(second: int) -> Moment:
    """Give the moment of a document that was read as of a time."""
    return moment_of(ClusterTime.of(second, 1), ResumeToken.high_water_mark(Timestamp(second, 1)).hex)


def rename(second: int, name: str, to: str) -> End:
    return End(event_moment(second), "rename", name, to)


def test_what_is_read_as_of_the_time_of_a_rename_has_the_new_name() -> None:
    """The newest operation of an idle server is the rename: a snapshot that follows it is of that very time."""
    ends = Ends([rename(5, "d.a", "d.b")])
    assert ends.location_of("d.b", read_moment(5)) == "d.b"
    assert ends.location_of("d.b", event_moment(4)) is None
    assert ends.location_of("d.a", event_moment(4)) == "d.b"


def test_a_rename_that_two_shards_tell_keeps_what_was_written_in_between() -> None:
    ends = Ends([rename(5, "d.a", "d.b"), rename(7, "d.a", "d.b")])
    assert ends.location_of("d.b", event_moment(6)) == "d.b"
    assert ends.repeats(rename(7, "d.a", "d.b"))
    assert not ends.repeats(rename(5, "d.a", "d.b"))


@pytest.mark.parametrize("by_two_shards", [False, True])
def test_keys_in_a_file_outlive_a_rename_that_two_shards_tell(tmp_path: Path, by_two_shards: bool) -> None:
    world = Deployment(lambda _: ())
    world.insert(0, 1)
    world.rename(0, 0, False, by_two_shards)
    keys = LocalKeys(tmp_path / "keys.sqlite")
    for event in world.events:
        keys.apply(make_format("bson").batch([event]))
    assert [(name, bson.decode(key)) for name, key in keys.all()] == [("a.y", {"_id": 1})]


def test_what_leaves_those_that_are_followed_is_gone_and_comes_back_unknown() -> None:
    out, back, on = rename(3, "d.a", "d.x"), rename(5, "d.x", "d.b"), rename(7, "d.b", "d.c")
    ends = Ends([out, back, on], is_followed=lambda name: name != "d.x")
    assert ends.location_of("d.a", event_moment(1)) is None
    assert [ends.brings_unknown(end) for end in (out, back, on)] == [False, True, True]
    assert Ends([out, back, on]).location_of("d.a", event_moment(1)) == "d.c"


def test_ends_are_forgotten_when_nothing_older_can_come() -> None:
    ends = Ends([rename(3, "d.a", "d.b"), End(event_moment(5), "drop", "d.a")])
    ends.forget_before(event_moment(5))
    assert [end.operation for end in ends] == ["drop"]
    assert ends.location_of("d.a", event_moment(4)) is None
    assert ends.location_of("d.b", event_moment(4)) == "d.b"


def test_places_by_moments_are_those_of_single_documents() -> None:
    ends = Ends([
        rename(3, "d.a", "d.b"),
        End(event_moment(4), "drop", "d.a"),
        rename(6, "d.b", "d.a"),
        End(event_moment(8), "dropDatabase", "d"),
        rename(10, "d.a", "e.a"),
    ])  # fmt: skip
    for name in ("d.a", "d.b", "e.a"):
        for second in range(1, 12):
            moment = event_moment(second)
            found = [place for limit, place in ends.locations_of(name) if moment < limit]
            assert (found[0] if found else name) == ends.location_of(name, moment)
    newest = ends.newest_of("d.a")
    assert newest is not None
    assert newest.to == "e.a"
