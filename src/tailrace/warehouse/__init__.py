"""Change events into Iceberg or Delta tables, a history and a mirror per collection: the model and the Spark job.

The model needs no Spark: what tables are called, the kinds of columns and how they widen, documents into columns, what
becomes of a document's events, drift, and reading what a folder of tables says about itself. `job` runs it on Spark,
with `lake` (`iceberg` or `delta`), `history`, `mirror`, `staging`, `maintenance` and `rebuild`; only these import
pyspark.
"""

from tailrace.warehouse.drift import Drift
from tailrace.warehouse.folders import read_tables
from tailrace.warehouse.names import TableKind
from tailrace.warehouse.tables import Column, Snapshot, TableState

__all__ = ["Column", "Drift", "Snapshot", "TableKind", "TableState", "read_tables"]
