"""A program of Spark's own: reads records of the registry's wire format with `from_avro`, each by its writer's schema.

Its arguments are the jar of spark-avro, a file with lines of the id, the schema and the values in base64, and the
file that it writes, which has a line of JSON for every record.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import expr, to_json


def main(jar: str, given: str, out: str) -> None:
    """Write what Spark reads; a record that it cannot read ends it."""
    spark = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    with Path(out).open("w") as written:
        for line in Path(given).read_text().splitlines():
            found = json.loads(line)
            rows = [(bytearray(base64.b64decode(value)),) for value in found["values"]]
            frame = session.createDataFrame(rows, "value binary")
            payload = expr("substring(value, 6)")  # behind the magic byte and the id of the schema
            read = frame.select(from_avro(payload, found["schema"], {"mode": "FAILFAST"}).alias("record"))
            shown = read.select(to_json("record", {"ignoreNullFields": "false"}).alias("text"))
            written.writelines(f"{row.text}\n" for row in shown.collect())
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
