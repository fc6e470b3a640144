"""Where the rows of a mirror belong when collections are dropped or renamed, or databases dropped (`tailrace.fold`).

The ends of collections are kept in a table of their own: an event may come batches after the end of its collection,
because the two are in different partitions. A row knows the name under which its newest event told of it, so its place
follows from that and from the ends, whatever came first, and every step may be done twice. Not every catalog can rename
tables (a folder cannot), so rows are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from pyspark.sql import functions as F

from tailrace.fold import BEHIND_EVENTS, HIGH_WATER_MARK, KIND_BEGINS, End, Ends, Moment
from tailrace.logs import get_logger
from tailrace.raw.cluster_time import ClusterTime
from tailrace.warehouse.columns.contract import Ends as Policy
from tailrace.warehouse.mirror.mirrors import Mirrors
from tailrace.warehouse.tables.format import Lake, sql_text
from tailrace.warehouse.tables.names import ENDS_TABLE, TableKind

_COLUMNS: Final = "time bigint, token string, operation string, namespace string, renamed_to string"
_REMEMBERED_SECONDS: Final = 30 * 86_400
"""How long before the newest end others are remembered: no event is that much later than the end of its collection."""
_log = get_logger("tailrace.warehouse")


class KnownEnds:
    """The ends that a warehouse knows, in its own table."""

    def __init__(self, lake: Lake, is_followed: Callable[[str], bool]) -> None:
        self._lake = lake
        self.all = Ends(self._stored(), is_followed=is_followed)

    def add(self, ends: Sequence[End]) -> None:
        """Keep ends, durably, before rows follow them."""
        new = [end for end in ends if self.all.add(end)]
        if not new:
            return
        self._lake.create(ENDS_TABLE, TableKind.ENDS, "", _COLUMNS)
        rows = [(int(end.moment[0]), end.moment[1], end.operation, end.namespace, end.to) for end in new]
        frame = self._lake.spark.createDataFrame(rows, _COLUMNS)
        self._lake.append(ENDS_TABLE, frame.coalesce(1))

    def _stored(self) -> Iterator[End]:
        if not self._lake.exists(ENDS_TABLE):
            return
        table = self._lake.table(ENDS_TABLE)
        newest: int = table.agg(F.max("time")).first()[0] or 0  # type: ignore[index]
        for row in table.where(F.col("time") >= newest - ClusterTime.of(_REMEMBERED_SECONDS)).distinct().collect():
            yield End((row.time, row.token), row.operation, row.namespace, row.renamed_to)


def locations(ends: Ends, namespace: str, since: int, version: str, token: str) -> list[tuple[str | None, str]]:
    """Give where the documents of a name are now, each place with the condition on version and token of its rows.

    Nothing is older than the cluster time `since`; None is the place of what is gone.
    """
    found: list[tuple[str | None, str]] = []
    after: Moment | None = None
    for moment, location in [*ends.locations_of(namespace), (None, namespace)]:
        if moment is not None and moment[0] < since:
            continue
        limits = [] if after is None else [f"NOT {_before(after, version, token)}"]
        limits += [] if moment is None else [_before(moment, version, token)]
        found.append((location, " AND ".join(limits) or "TRUE"))
        after = moment
    return found


def follow(lake: Lake, mirrors: Mirrors, known: Ends, new: Sequence[End], policy: Policy) -> None:
    """Let the rows that ends touch leave, or move to where they belong; `known` has all ends, the new ones too."""
    before = known.without(new)
    for end in new:
        _log.warning("collection_ended", operation=end.operation, namespace=end.namespace, policy=str(policy))
        for name in sorted(_touched(before, end, mirrors)):
            if mirrors.exists(name):
                _relocate(lake, mirrors, known, name, end.moment, policy)


def _touched(before: Ends, end: End, mirrors: Mirrors) -> set[str]:
    """Give the mirrors that have the rows of an end, as long as it is not known."""
    names: Iterable[str] = [end.namespace, *([end.to] if end.to else [])]
    if end.operation == "dropDatabase":
        names = mirrors.of_database(end.namespace)
    return {location for name in names if (location := before.location_of(name, end.moment)) is not None}


def _relocate(lake: Lake, mirrors: Mirrors, ends: Ends, name: str, until: Moment, policy: Policy) -> None:
    """Bring the rows of a mirror that are older than a moment to where they belong."""
    mirror = mirrors.get(name)
    old = lake.table(mirror.table).where(_before(until, "_version", "_token"))
    gone: list[str] = []
    for row in old.select(F.coalesce("_told_as", F.lit(name)).alias("told_as")).distinct().collect():
        told_as = f"coalesce(_told_as, {sql_text(name)}) = {sql_text(row.told_as)}"
        for location, condition in locations(ends, row.told_as, 0, "_version", "_token"):
            rows = f"({told_as} AND {condition})"
            if location == name:
                continue
            if location is not None:
                mirrors.get(location).take_over(mirror, rows)
            gone.append(rows)
    if gone:
        lake.spark.sql(f"DELETE FROM {lake.sql_name(mirror.table)} WHERE {' OR '.join(gone)}")
    if policy is Policy.DROP and lake.table(mirror.table).isEmpty():
        mirrors.drop(name)


def _before(moment: Moment, version: str, token: str) -> str:
    """Say in SQL that a row is older than a moment (`fold.ends`)."""
    kind = f"substring({token}, {KIND_BEGINS + 1}, {len(HIGH_WATER_MARK)})"
    order = f"CASE WHEN {kind} = {sql_text(HIGH_WATER_MARK)} THEN {sql_text(BEHIND_EVENTS)} ELSE {token} END"
    return f"({version} < {moment[0]} OR ({version} = {moment[0]} AND {order} < {sql_text(moment[1])}))"
