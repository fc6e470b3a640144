"""The class of stream readers whose rows Spark takes along with the plan of a batch: the only internal name of PySpark
that the source uses, beside the JVM in `jvm.py`.

Spark asks one class of its own for rows, by `getCache`, and no public one. Where a release has it no longer, readers
are ordinary ones: `getCache` is never called, and the tasks read every range themselves, which costs small batches the
start of a Python worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

if TYPE_CHECKING:
    PrefetchingReader = DataSourceStreamReader
else:
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as PrefetchingReader
    except ImportError:
        PrefetchingReader = DataSourceStreamReader
