"""`apply_update` of Spark makes of the document before an update the one after it, as the server has both."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from fold.test_update_description import random_update
from spark.test_source import now, reading
from tailrace.spark import apply_update
from tailrace.stand import ReplicaSet

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.mark.mongodb("6.0.5")
def test_a_column_of_deltas_makes_the_servers_documents(
    spark: Any, mongodb: ReplicaSet, database: Database[Any]
) -> None:
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    start, chance = now(database), random.Random(5)
    database.orders.insert_many([{"_id": n, "list": [1, 2, 3], "deep": {"list": [1, 2]}, "n": 0} for n in range(10)])
    for _ in range(100):
        try:
            database.orders.update_one({"_id": chance.randrange(10)}, random_update(chance))
        except OperationFailure:
            continue  # the server refuses, for example, a field inside of a number
    images = {"fullDocument": "required", "fullDocumentBeforeChange": "whenAvailable"}
    frame = reading(spark, mongodb, database, startAtOperationTime=start, **images).load()
    after = apply_update("full_document_before", "update_description").alias("after")
    rows = frame.select("op", "full_document", "full_document_before", after).collect()
    updates = [row for row in rows if row.op == "update"]
    for row in updates:
        assert json.loads(row.after) == json.loads(row.full_document)
    assert sum(row.after != row.full_document_before for row in updates) > 30
    assert all(row.after is None for row in rows if row.op == "insert")
