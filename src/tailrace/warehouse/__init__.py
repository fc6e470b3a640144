"""Change events into Iceberg or Delta tables, a history and a mirror per collection: the model and the Spark job.

Read the rooms in this order: `columns` (a document becomes typed columns), `tables` (what a format of tables can do),
`mirror` (events become rows), `batch` (a micro-batch into all its tables). `job` runs it on Spark, on the tables that
`lake` opens; `rebuild` makes mirrors anew. What a folder of tables says about itself (`tables.states`) and `query`
need no Spark.
"""

from tailrace.warehouse.columns.evolution import Drift
from tailrace.warehouse.tables.data import keep_null_lists
from tailrace.warehouse.tables.folders import read_tables
from tailrace.warehouse.tables.names import TableKind
from tailrace.warehouse.tables.states import Column, Snapshot, TableState

__all__ = ["Column", "Drift", "Snapshot", "TableKind", "TableState", "keep_null_lists", "read_tables"]
