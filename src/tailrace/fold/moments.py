"""When a record takes effect: cluster time first, then the token, which orders the events of one time."""

from __future__ import annotations

from typing import Final, TypeAlias

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
