"""What becomes of a mirror when its collection is dropped or renamed, or its database dropped.

Every step may be done twice: rows leave by their version, and rows that move win only where they are newer. Not every
catalog can rename tables (a folder cannot), so a rename moves the rows.
"""

from __future__ import annotations

import logging

import bson
from pyspark.sql import Row

from tailrace.warehouse.contract import Ends
from tailrace.warehouse.lake import Lake, sql_text
from tailrace.warehouse.mirrors import Mirrors

_log = logging.getLogger("tailrace.warehouse")


def apply_end(lake: Lake, mirrors: Mirrors, event: Row, policy: Ends) -> None:
    """Let the mirrors follow one event that ended a collection."""
    _log.warning("%s of %s.%s: the policy is %s", event.op, event.db, event.coll or "*", policy)
    if policy is Ends.KEEP:
        return
    if event.op == "rename":
        _move(lake, mirrors, event, renamed_to(event), policy)
        return
    gone = [f"{event.db}.{event.coll}"] if event.op == "drop" else mirrors.of_database(event.db)
    for namespace in gone:
        _leave(lake, mirrors, namespace, event, policy)


def renamed_to(event: Row) -> str:
    """Give the new name of a collection."""
    new = bson.decode(event.raw)["to"]
    return f"{new['db']}.{new['coll']}"


def _leave(lake: Lake, mirrors: Mirrors, namespace: str, event: Row, policy: Ends) -> None:
    """Remove the rows that are older than the end of their collection."""
    if not mirrors.exists(namespace):
        return
    mirror = mirrors.get(namespace)
    lake.spark.sql(f"DELETE FROM {lake.sql_name(mirror.table)} WHERE {_older_than(event)}")
    if policy is Ends.DROP and lake.table(mirror.table).isEmpty():
        mirrors.drop(namespace)


def _move(lake: Lake, mirrors: Mirrors, event: Row, namespace: str, policy: Ends) -> None:
    """Move the rows to the mirror of the new name; a collection that was there before is gone."""
    old = f"{event.db}.{event.coll}"
    _leave(lake, mirrors, namespace, event, Ends.FOLLOW)
    if not mirrors.exists(old):
        return
    source, target = mirrors.get(old), mirrors.get(namespace)
    target.take_over(source, _older_than(event))
    _leave(lake, mirrors, old, event, policy)


def _older_than(event: Row) -> str:
    version, token = event.cluster_time, sql_text(event.token)
    return f"(_version < {version} OR (_version = {version} AND _token < {token}))"
