"""`apply_update` makes of the document before an update the one that the server has after it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

import tailrace

SEED = 11
UPDATES = 600
DOCUMENTS = 60


def random_update(chance: random.Random) -> Any:
    """An update by operators or by a pipeline, which servers from 5.0 on describe by differences."""
    field = chance.choice(["a", "a.b", "a.b.c", "list", "list.0", "list.2.x", "deep.list.1", "n", "deep.0"])
    value: Any = chance.choice([1, "text", {"b": {"c": 2}, "x": 3}, [1, {"x": 2}, [3]], None])
    kind = chance.randrange(7)
    if kind == 0:
        return {"$set": {field: value}}
    if kind == 1:
        return {"$unset": {field: 1}}
    if kind == 2:
        return {"$push": {"list": {"$each": [value], "$slice": chance.choice([-3, 2, 5])}}}
    if kind == 3:
        return {"$pop": {"list": chance.choice([-1, 1])}}
    if kind == 4:
        return {"$inc": {"n": 1}, "$set": {field.replace("n", "m"): value}}
    if kind == 5:
        return [{"$set": {"list": {"$slice": [{"$ifNull": ["$list", [1, 2, 3]]}, 2]}, "whole": "$a"}}]
    return [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"deep": {"list": [1, value], "0": {"y": 1}}}]}}]


@pytest.mark.mongodb("4.4.2", "6.0.5")
def test_deltas_end_in_the_servers_documents(database: Database[Any]) -> None:
    chance = random.Random(SEED)
    orders = database.orders
    documents: dict[int, Any] = {}
    deltas = 0
    with orders.watch() as stream:
        orders.insert_many([{"_id": n, "list": [1, 2, 3], "deep": {"list": [1, 2]}, "n": 0} for n in range(DOCUMENTS)])
        for _ in range(UPDATES):
            try:
                orders.update_one({"_id": chance.randrange(DOCUMENTS)}, random_update(chance))
            except OperationFailure:
                continue  # the server refuses, for example, a field inside of a number
        orders.delete_one({"_id": 0})
        while (event := next(stream))["operationType"] != "delete":
            key = event["documentKey"]["_id"]
            if event["operationType"] == "update":
                tailrace.apply_update(documents[key], event["updateDescription"])
                deltas += 1
            else:
                documents[key] = event["fullDocument"]
    del documents[0]
    assert list(documents.values()) == list(orders.find(sort=[("_id", 1)]))
    assert deltas > UPDATES / 4
