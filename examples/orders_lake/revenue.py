"""Ask the tables of the orders with Spark: `python revenue.py`, in the folder of the tables' settings.

The mirror answers how things are, the history how they came about.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tailrace.cli.spark_session import spark_session  # finds or downloads Java and the connector jars
from tailrace.settings import Settings
from tailrace.warehouse.lake import configure_catalog


def revenue(spark: SparkSession) -> DataFrame:
    """Revenue per city, from the documents as they are now."""
    return spark.sql("""
        SELECT customer.city AS city, count(*) AS orders, round(sum(total), 2) AS revenue
        FROM shop.orders WHERE status <> 'placed' GROUP BY customer.city ORDER BY city
    """)


def articles(spark: SparkSession) -> DataFrame:
    """Pieces sold per article: arrays of subdocuments are arrays of structs."""
    return spark.sql("""
        SELECT line.article AS article, sum(line.pieces) AS pieces
        FROM shop.orders LATERAL VIEW explode(lines) AS line GROUP BY line.article ORDER BY article
    """)


def cancelled(spark: SparkSession) -> DataFrame:
    """Cancelled orders per city: the mirror no longer has them, the history still does."""
    return spark.sql("""
        SELECT get_json_object(placed.full_document, '$.customer.city') AS city, count(*) AS cancelled
        FROM shop.orders_history AS gone
        JOIN shop.orders_history AS placed ON placed._key = gone._key AND placed.op = 'insert'
        WHERE gone.op = 'delete' GROUP BY city ORDER BY city
    """)


def main() -> None:
    """Print the three reports."""
    settings = Settings.load()
    with spark_session(settings.spark, is_quiet=True) as spark:
        configure_catalog(spark, settings.warehouse)
        spark.catalog.setCurrentCatalog(settings.warehouse.catalog)
        for report in (revenue, articles, cancelled):
            report(spark).show()


if __name__ == "__main__":
    main()
