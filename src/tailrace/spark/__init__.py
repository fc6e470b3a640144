"""The PySpark side: change events as a data source, features in Redis and tables in Iceberg.

Belongs here: the session, the data source `tailrace`, `from_kafka`, and the jobs made of them. Does not: how events
come out of MongoDB (`capture`, `driver`, `engine`), and fetching Java or jars (`stand`): a session is given paths.
"""

from tailrace.spark.failures import error_of
from tailrace.spark.from_kafka import from_kafka
from tailrace.spark.session import CONNECTOR_CHECKSUMS, CONNECTORS, open_session
from tailrace.spark.source import TailraceDataSource, register
from tailrace.spark.supervising import supervise

__all__ = [
    "CONNECTORS",
    "CONNECTOR_CHECKSUMS",
    "TailraceDataSource",
    "error_of",
    "from_kafka",
    "open_session",
    "register",
    "supervise",
]
