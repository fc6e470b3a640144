"""What both Spark jobs stand on: change events as a data source, batches from Kafka, and the session.

Belongs here: the session, the data source `tailrace` and `from_kafka`; the jobs are `features.job` and
`warehouse.job`. Does not: how events come out of MongoDB (`capture`, `driver`, `engine`), and fetching Java or jars
(`stand`): a session is given paths.
"""

from tailrace.spark.connectors import CONNECTOR_CHECKSUMS, CONNECTORS
from tailrace.spark.deltas import apply_update
from tailrace.spark.failures import error_of
from tailrace.spark.from_kafka import from_kafka
from tailrace.spark.planner import position_now
from tailrace.spark.session import open_session
from tailrace.spark.source import TailraceDataSource, register
from tailrace.spark.supervising import drain, supervise

__all__ = [
    "CONNECTORS",
    "CONNECTOR_CHECKSUMS",
    "TailraceDataSource",
    "apply_update",
    "drain",
    "error_of",
    "from_kafka",
    "open_session",
    "position_now",
    "register",
    "supervise",
]
