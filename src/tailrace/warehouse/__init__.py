"""Tables of collections, as far as they can be thought about without Spark.

Belongs here: what tables are called, the kinds of columns and how they widen, documents into columns, what becomes
of a document's events, drift, and reading what a folder of tables says about itself. Does not: running anything
(`spark.warehouse` is the job).
"""

from tailrace.warehouse.drift import Drift
from tailrace.warehouse.names import TableKind
from tailrace.warehouse.tables import Column, Snapshot, TableState, read_tables

__all__ = ["Column", "Drift", "Snapshot", "TableKind", "TableState", "read_tables"]
