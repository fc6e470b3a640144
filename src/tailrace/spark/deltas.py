"""Updates without their documents, for Spark: a delta applied to the document that a table or a stream holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tailrace.fold import apply_update as apply_to_document

if TYPE_CHECKING:
    from pyspark.sql import Column


def apply_update(document: Column | str, update_description: Column | str) -> Column:
    """Give the document after an update, as JSON: from columns with the JSON of the document before it and of the
    event's `updateDescription`, as `full_document` and `update_description` of the source have them.

    Without an update the document stays as it is; without a document the result is null.
    """
    from pyspark.sql.functions import udf

    return udf(updated, "string")(document, update_description)


def updated(document: str | None, update_description: str | None) -> str | None:
    """Apply a delta to a document; for SQL: `spark.udf.register("apply_update", updated)`."""
    if document is None or update_description is None:
        return document
    changed = orjson.loads(document)
    apply_to_document(changed, orjson.loads(update_description))
    return orjson.dumps(changed).decode()
