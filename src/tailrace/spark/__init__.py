"""The PySpark side: change events as a data source, features in Redis and tables in Iceberg.

Belongs here: the session, the data source `tailrace`, `from_kafka`, and the jobs made of them. Does not: how events come
out of MongoDB (`capture`, `driver`, `engine`), and fetching Java or jars (`stand`): a session is given their paths.
"""

from tailrace.spark.session import CONNECTOR_CHECKSUMS, CONNECTORS, open_session

__all__ = ["CONNECTORS", "CONNECTOR_CHECKSUMS", "open_session"]
