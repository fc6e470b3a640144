"""Where a range is cut, so that tasks which read its parts have about equal work."""

from __future__ import annotations

from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.logs import get_logger
from tailrace.spark.offset import Offset

_SAMPLES: Final = 1_000
"""So many random entries tell the middle of a range to about three percent of its entries."""
_SAMPLES_PER_PART: Final = 25
_SECONDS_TO_SAMPLE: Final = 5
_log = get_logger("tailrace.spark")


def cuts(client: MongoClient[Any] | None, start: Offset, end: Offset, parts: int) -> list[Offset]:
    """Give positions that cut a range into parts with equally many oplog entries, or else of equal duration.

    Writes come in bursts: of a range that ends now, hours after the last write, half the duration may have nothing.
    Where the one oplog cannot be looked into (it is several, behind a router, or the user may not read `local`), and
    where the range is so small a piece of it that few random entries fall inside, the duration is all that is known.
    """
    if parts < 2:
        return []
    assert start.token is not None
    assert end.token is not None
    first, last = start.token.cluster_time, end.token.cluster_time
    times = _sampled_times(client, first, last) if client else []
    if len(times) >= parts * _SAMPLES_PER_PART:
        found = [times[len(times) * number // parts] for number in range(1, parts)]
    else:
        seconds = last.time - first.time
        found = [Timestamp(first.time + seconds * number // parts, 0) for number in range(1, parts)]
    at = (Offset.at(time) for time in sorted(set(found)))
    return [cut for cut in at if start.key < cut.key < end.key]


def _sampled_times(client: MongoClient[Any], first: Timestamp, last: Timestamp) -> list[Timestamp]:
    """Give the times of random oplog entries in a range, in order; the server finds them without reading the oplog."""
    stages = [{"$sample": {"size": _SAMPLES}}, {"$project": {"_id": 0, "ts": 1}}]
    try:
        found = client.local["oplog.rs"].aggregate(stages, maxTimeMS=_SECONDS_TO_SAMPLE * 1_000)
        return sorted(time for entry in found if first < (time := entry["ts"]) <= last)
    except PyMongoError as error:
        _log.debug("oplog_not_sampled", error=str(error), consequence="ranges are cut by duration")
        return []
