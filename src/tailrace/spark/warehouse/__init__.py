"""The warehouse job: change events into Iceberg tables, a history and a mirror per collection.

Belongs here: what needs Spark or Iceberg's own classes. Does not: the thinking about columns, drift and the events of
a document, which needs neither (`tailrace.warehouse`).
"""

from tailrace.spark.warehouse.job import COLUMNS, WarehouseJob
from tailrace.spark.warehouse.lake import Lake, configure_catalog

__all__ = ["COLUMNS", "Lake", "WarehouseJob", "configure_catalog"]
