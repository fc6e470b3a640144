"""One batch on its way into the tables by Spark: histories, ends of collections, dead letters, mirrors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.fold import Ends as FoldedEnds
from tailrace.logs import get_logger
from tailrace.warehouse.columns.contract import Ends as Policy
from tailrace.warehouse.dead_letters import DeadLetters
from tailrace.warehouse.history import append_history
from tailrace.warehouse.mirror.lifecycle import follow, locations
from tailrace.warehouse.mirror.mirror import Mirror, Staged
from tailrace.warehouse.mirror.mirrors import Mirrors
from tailrace.warehouse.summary import Part, Summary
from tailrace.warehouse.tables.format import Commit, Lake

_AT_ONCE: Final = 4
"""Collections that are written at the same time."""
Item = TypeVar("Item")
Result = TypeVar("Result")
_log = get_logger("tailrace.warehouse")


class SparkBatch:
    """One micro-batch on its way into the tables.

    Its events go to the mirror of the name that their collection has now, by all the ends that are known; so do the
    rows that were there before, when an end is new.
    """

    def __init__(
        self,
        lake: Lake,
        mirrors: Mirrors,
        events: DataFrame,
        summary: Summary,
        commit: Commit,
        policy: Policy,
        ends: FoldedEnds,
    ) -> None:
        self._lake = lake
        self._mirrors = mirrors
        self._events = events
        self._summary = summary
        self._commit = commit
        self._policy = policy
        self._ends = ends

    def write(self) -> None:
        """Write histories, letters and mirrors."""
        self._lake.commit_as(self._commit)
        _each(self._summary.parts, self._append)
        if self._summary.ends and self._policy is not Policy.KEEP:
            self._lake.commit_as(self._commit, is_whole=False)
            follow(self._lake, self._mirrors, self._ends, self._summary.ends, self._policy)
        self._mirror(self._by_namespace(), self._summary.bad)

    def _by_namespace(self) -> list[TablePart]:
        """Divide the events of documents by the mirror they belong to."""
        found: dict[str, TablePart] = {}
        for part in self._summary.parts:
            if not part.changes:
                continue
            for location, condition in locations(self._ends, part.namespace, part.least_time, "cluster_time", "token"):
                if location is not None:
                    one = TablePart(location, part, part.condition() & F.expr(condition))
                    found[location] = found[location].joined(one) if location in found else one
        return list(found.values())

    def _append(self, part: Part) -> None:
        append_history(self._lake, self._events, part, self._commit)

    def _mirror(self, parts: Sequence[TablePart], bad: int) -> None:
        """Bring mirrors to where the batch leaves them; the letters are written first.

        What is written before the last merge (letters, rows made anew for wider columns) is a part of the batch.
        """
        self._lake.commit_as(self._commit, is_whole=False)
        dead_letters = DeadLetters(self._lake, self._commit)
        if bad:
            dead_letters.add_bad_records(self._events, bad)
        with ExitStack() as kept:

            def stage(one: TablePart) -> tuple[Mirror, Staged]:
                mirror = self._mirrors.get(one.namespace)
                return mirror, kept.enter_context(mirror.staged(self._events.where(one.condition), one.part))

            staged = _each(parts, stage)
            for mirror, rows in staged:
                dead_letters.add_staged(rows.dead_letters, rows.report.dead_letters, mirror.namespace)
            dead_letters.append()
            if dead_letters.count:
                _log.warning("dead_letters_written", batch=self._commit.batch, count=dead_letters.count)
            self._lake.commit_as(self._commit)
            _each(staged, self._merge)

    def _merge(self, one: tuple[Mirror, Staged]) -> None:
        mirror, rows = one
        mirror.note_drift(rows.report, f"{self._commit.query}/{self._commit.batch}")
        if not self._lake.has_batch(mirror.table, self._commit):
            mirror.merge(rows)


@dataclass(frozen=True, slots=True)
class TablePart:
    """The events of a batch that belong to one mirror."""

    namespace: str
    part: Part
    """What is known of them all."""
    condition: Column

    def joined(self, other: TablePart) -> TablePart:
        """Take those along that had events under another name of the collection."""
        return TablePart(self.namespace, self.part.joined(other.part), self.condition | other.condition)


def _each(items: Sequence[Item], do: Callable[[Item], Result]) -> list[Result]:
    """Do something for every collection, some at once; the first error is raised when all have ended."""
    if len(items) < 2:
        return [do(item) for item in items]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, items))
