"""A seeded random workload: every kind of write that a replica set logs, in any order.

The same seed makes the same operations; only what a server itself invents (times, UUIDs) differs. What a
server refuses is not counted and leaves no trace in the log, so generators need not be perfect.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import (
    DeleteOne,
    InsertOne,
    MongoClient,
    ReplaceOne,
    ReturnDocument,
    UpdateMany,
    UpdateOne,
    WriteConcern,
)
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from tailrace import raw

DATABASES = ("shop", "shop2")
COLLECTIONS = ("orders", "orders.old", "items", "items+")
MAJORITY = WriteConcern("majority")
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
Document = dict[str, Any]

_RENAMING = threading.Lock()


class Values:
    """Random values of every BSON type."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def number(self) -> Any:
        rng = self.rng
        return rng.choice(
            [
                rng.randint(-5, 50),
                rng.randint(-(2**31), 2**31 - 1),
                Int64(rng.randint(-(2**63), 2**63 - 1) >> rng.randint(0, 60)),
                rng.choice([0.0, -0.0, 1.5, 3.0, 1e300, 5e-324, float("inf"), float("nan")]),
                rng.uniform(-1000, 1000),
                Decimal128(rng.choice(["0", "-0E+3", "1.10", "7.0", "0.3", "1E+400", "NaN", "-Infinity"])),
                Decimal128(f"{rng.randint(-(10**33), 10**33)}E{rng.randint(-40, 3)}"),
            ]
        )

    def text(self) -> str:
        return self.rng.choice(["", "a", "hello", "é€😀", "with\0nul", "x" * self.rng.randint(1, 300)])

    def scalar(self) -> Any:
        rng = self.rng
        return rng.choice(
            [
                self.number,
                self.text,
                lambda: rng.choice([True, False, None, MinKey(), MaxKey()]),
                lambda: ObjectId(rng.randbytes(12)),
                lambda: EPOCH + timedelta(milliseconds=rng.randint(-(10**12), 10**12)),
                lambda: Timestamp(rng.randint(0, 2**32 - 1), rng.randint(0, 9)),
                lambda: Binary(rng.randbytes(rng.choice([0, 3, 16])), rng.choice([0, 2, 5, 128])),
                lambda: Binary.from_uuid(UUID(bytes=rng.randbytes(16))),
                lambda: Regex(rng.choice(["^a", "b+"]), rng.choice(["", "i", "im"])),
                lambda: Code("f()", rng.choice([None, {}, {"x": 1}])),
            ]
        )()

    def any(self, depth: int = 2) -> Any:
        pick = self.rng.random()
        if depth and pick < 0.15:
            return [self.any(depth - 1) for _ in range(self.rng.randint(0, 4))]
        if depth and pick < 0.3:
            return {self.name(): self.any(depth - 1) for _ in range(self.rng.randint(0, 4))}
        return self.scalar()

    def name(self) -> str:
        return self.rng.choice(["a", "b", "c", "0", "1", "long name", "é", "x", "y"])

    def identifier(self) -> Any:
        """A value that may be an `_id`; most are small, so that later operations meet them again."""
        rng = self.rng
        if rng.random() < 0.75:
            return rng.randint(0, 60)
        if rng.random() < 0.3:
            return {"region": rng.choice(["eu", "us"]), "n": self.number(), "list": [1, "two", 3.0]}
        value = self.scalar()
        return rng.randint(0, 60) if isinstance(value, Regex) else value

    def document(self) -> Document:
        """A document whose fields suit the update operators, and one of any type."""
        rng = self.rng
        document: Document = {"_id": self.identifier(), "n": rng.randint(0, 100), "s": self.text()}
        for field, make in {
            "d": lambda: {"a": rng.randint(0, 9), "b": {"c": self.scalar(), "e": [1, 2, 3]}},
            "list": lambda: [rng.randint(0, 9) for _ in range(rng.randint(0, 8))],
            "docs": lambda: [{"k": n, "v": self.scalar()} for n in range(rng.randint(0, 5))],
            "v": self.any,
            "w": self.any,
        }.items():
            if rng.random() < 0.8:
                document[field] = make()
        return document

    def old_types(self) -> RawBSONDocument:
        """A document with the types that drivers no longer write."""
        return RawBSONDocument(
            raw.document(
                raw.element(raw.INT32, b"_id", raw.int32(self.rng.randint(1000, 2**31 - 1))),
                raw.element(raw.UNDEFINED, b"u", b""),
                raw.element(raw.SYMBOL, b"s", raw.string("sym")),
                raw.element(raw.DB_POINTER, b"p", raw.string("db.c") + self.rng.randbytes(12)),
                raw.element(raw.DOCUMENT, b"d", raw.document(raw.element(raw.UNDEFINED, b"u", b""))),
            )
        )


class Updates:
    """Random updates with every operator, and pipelines."""

    def __init__(self, rng: random.Random, values: Values, version: tuple[int, ...]) -> None:
        self.rng = rng
        self.values = values
        self._pipeline_stages = ["$set", "$unset", "$replaceWith", "$addFields", "$project"]
        self._names_with_dots = version >= (5, 0)

    def modifiers(self) -> Document:
        """One to three operators on different fields."""
        update: Document = {}
        used: set[str] = set()
        for _ in range(self.rng.randint(1, 3)):
            operator, field, value = self._modifier()
            if field.split(".")[0] not in used:
                used.add(field.split(".")[0])
                update.setdefault(operator, {})[field] = value
        return update

    def _modifier(self) -> tuple[str, str, Any]:
        rng, values = self.rng, self.values
        top = rng.choice(["n", "s", "v", "w", "new1", "new2", "d.a", "d.b.c", "d.new", "list.0", "list.7"])
        return rng.choice(
            [
                lambda: ("$set", top, values.any()),
                lambda: ("$set", rng.choice(["docs.1.v", "docs.0", "d", "d.b.e.1", "v.a"]), values.any()),
                lambda: ("$unset", rng.choice(["v", "w", "d.a", "d.b", "list", "new1", "docs.0"]), ""),
                lambda: ("$inc", rng.choice(["n", "d.a", "list.0"]), rng.randint(-3, 3)),
                lambda: ("$mul", "n", rng.choice([2, 1.5, Int64(3)])),
                lambda: ("$min", "n", rng.randint(0, 50)),
                lambda: ("$max", "d.a", rng.randint(0, 50)),
                lambda: ("$rename", rng.choice(["v", "w", "d.a"]), rng.choice(["moved", "moved.to"])),
                lambda: ("$currentDate", "at", rng.choice([True, {"$type": "timestamp"}])),
                lambda: ("$setOnInsert", "created", values.scalar()),
                lambda: ("$bit", "n", {rng.choice(["and", "or", "xor"]): rng.randint(0, 15)}),
                lambda: ("$push", "list", rng.randint(0, 9)),
                lambda: ("$push", "list", self._push_many()),
                lambda: ("$push", "docs", {"$each": [{"k": rng.randint(0, 9)}], "$sort": {"k": -1}}),
                lambda: ("$addToSet", "list", {"$each": [rng.randint(0, 9), rng.randint(0, 9)]}),
                lambda: ("$pop", rng.choice(["list", "docs"]), rng.choice([1, -1])),
                lambda: ("$pull", "list", {"$gte": rng.randint(0, 9)}),
                lambda: ("$pull", "docs", {"k": rng.randint(0, 4)}),
                lambda: ("$pullAll", "list", [rng.randint(0, 9), rng.randint(0, 9)]),
            ]
        )()

    def _push_many(self) -> Document:
        rng = self.rng
        push: Document = {"$each": [rng.randint(0, 9) for _ in range(rng.randint(0, 3))]}
        if rng.random() < 0.5:
            push["$slice"] = rng.randint(-6, 6)
        if rng.random() < 0.4:
            push["$position"] = rng.randint(-2, 3)
        if rng.random() < 0.3:
            push["$sort"] = rng.choice([1, -1])
        return push

    def positional(self) -> tuple[Document, Document, list[Document] | None]:
        """A query, an update through `$`, `$[]` or `$[name]`, and its array filters."""
        rng = self.rng
        number = rng.randint(0, 9)
        return rng.choice(
            [
                ({"list": number}, {"$set": {"list.$": self.values.scalar()}}, None),
                ({"docs.k": number % 4}, {"$set": {"docs.$.v": number}}, None),
                ({}, {"$inc": {"list.$[]": 1}}, None),
                ({}, {"$set": {"docs.$[].v": number}}, None),
                ({}, {"$set": {"docs.$[x].new": number}}, [{"x.k": {"$gte": number % 4}}]),
                ({}, {"$unset": {"docs.$[x].v": 1}}, [{"x.k": number % 4}]),
            ]
        )

    def pipeline(self) -> list[Document]:
        rng, values = self.rng, self.values
        stages: list[Document] = [
            {"$set": {"n": {"$add": [{"$ifNull": ["$k", 1]}, rng.randint(0, 9)]}, "d.b.c": rng.randint(0, 9)}},
            {"$set": {"v": {"$literal": values.any()}, "list": {"$concatArrays": [[1], [rng.randint(0, 9)]]}}},
            {"$set": {"list": {"$slice": [{"$ifNull": ["$list", [1, 2, 3]]}, rng.randint(1, 4)]}}},
            {"$set": {"docs": {"$map": {"input": [1, 2, 3], "in": {"k": "$$this", "v": "$n"}}}}},
            {"$unset": rng.sample(["v", "w", "d.a", "d.b.e", "s", "docs.v"], 2)},
            {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"merged": rng.randint(0, 9)}]}},
            {"$addFields": {"d.b": {"c": values.number(), "e": [1, 2, 3, 4]}}},
            {"$project": {"w": 0, "docs.v": 0}},
        ]
        if self._names_with_dots:
            dotted = {"$setField": {"field": {"$literal": "dot.ted"}, "input": "$$ROOT", "value": rng.randint(0, 9)}}
            dollar = {"$setField": {"field": {"$literal": "$dollar"}, "input": {}, "value": 1}}
            stages += [{"$replaceWith": dotted}, {"$set": {"v": dollar}}]
        return [rng.choice(stages) for _ in range(rng.randint(1, 2))]


class Workload:
    """Runs random operations on a replica set."""

    def __init__(self, client: MongoClient[Any], version: str, seed: int, *, largest_bulk: int = 5) -> None:
        self.client = client
        self.largest_bulk = largest_bulk
        self.rng = random.Random(seed)
        self.version = tuple(int(part) for part in version.split("."))
        self.values = Values(self.rng)
        self.updates = Updates(self.rng, self.values, self.version)
        self.done = 0
        self.refused = 0
        weighted: list[tuple[int, Callable[[], Any]]] = [
            (18, self.insert), (4, self.insert_many), (2, self.insert_old_types), (16, self.update),
            (6, self.update_many), (6, self.update_positional), (8, self.update_pipeline),
            (4, self.upsert), (7, self.replace), (6, self.delete), (2, self.delete_many),
            (6, self.find_and_modify), (4, self.bulk), (5, self.transaction), (1, self.aborted_transaction),
            (1, self.prepared_transaction), (2, self.create), (1, self.drop), (2, self.rename),
            (2, self.index), (1, self.collection_options), (1, self.view), (1, self.drop_database),
            (2, self.outside), (1, self.time_series), (1, self.images),
        ]  # fmt: skip
        self._operations = [operation for _, operation in weighted]
        self._weights = [weight for weight, _ in weighted]

    def run(self, count: int) -> None:
        """Run so many operations that the server accepts."""
        while self.done < count:
            (operation,) = self.rng.choices(self._operations, self._weights)
            try:
                self.done += operation() or 1
            except (PyMongoError, bson.InvalidBSON):
                self.refused += 1
            if self.refused > 50 + 3 * count:
                raise AssertionError("the server refuses nearly everything")

    # --- targets

    def database(self) -> Any:
        return self.client[self.rng.choice(DATABASES)]

    def collection(self) -> Any:
        return self.database()[self.rng.choice(COLLECTIONS)]

    def query(self) -> Document:
        return {"_id": self.values.identifier()}

    def a_document(self, collection: Any) -> Document:
        """A query for a document that exists, most of the time."""
        found = collection.find_one({"_id": {"$gte": self.values.identifier()}}, {"_id": 1}, sort=[("_id", 1)])
        return self.query() if found is None else {"_id": found["_id"]}

    # --- documents

    def insert(self) -> None:
        try:
            self.collection().insert_one(self.values.document())
        except DuplicateKeyError:
            self.update()

    def insert_many(self) -> None:
        documents = [self.values.document() for _ in range(self.rng.randint(2, 6))]
        for document in documents:
            document["_id"] = ObjectId(self.rng.randbytes(12))
        self.collection().insert_many(documents)

    def insert_old_types(self) -> None:
        self.collection().insert_one(self.values.old_types())

    def update(self) -> None:
        collection = self.collection()
        collection.update_one(self.a_document(collection), self.updates.modifiers())

    def update_many(self) -> None:
        self.collection().update_many({"n": {"$lt": self.rng.randint(0, 20)}}, self.updates.modifiers())

    def update_positional(self) -> None:
        query, update, filters = self.updates.positional()
        self.collection().update_one(query, update, array_filters=filters)

    def update_pipeline(self) -> None:
        collection = self.collection()
        collection.update_one(self.a_document(collection), self.updates.pipeline())

    def upsert(self) -> None:
        self.collection().update_one(self.query(), self.updates.modifiers(), upsert=True)

    def replace(self) -> None:
        collection = self.collection()
        document = self.values.document()
        del document["_id"]
        collection.replace_one(self.a_document(collection), document, upsert=self.rng.random() < 0.2)

    def delete(self) -> None:
        collection = self.collection()
        collection.delete_one(self.a_document(collection))

    def delete_many(self) -> None:
        self.collection().delete_many({"n": self.rng.randint(0, 100)})

    def find_and_modify(self) -> None:
        collection = self.collection()
        query = self.a_document(collection)
        kind = self.rng.randrange(3)
        if kind == 0:
            after = self.rng.choice([ReturnDocument.BEFORE, ReturnDocument.AFTER])
            collection.find_one_and_update(query, self.updates.modifiers(), return_document=after)
        elif kind == 1:
            collection.find_one_and_replace(query, {"replaced": self.values.any()})
        else:
            collection.find_one_and_delete(query)

    def bulk(self) -> int:
        """Send several writes at once; gives how many of them changed something."""
        values, updates = self.values, self.updates
        requests = [
            self.rng.choice(
                [
                    lambda: InsertOne({**values.document(), "_id": ObjectId(self.rng.randbytes(12))}),
                    lambda: UpdateOne(self.query(), updates.modifiers()),
                    lambda: UpdateMany({"n": self.rng.randint(0, 50)}, {"$inc": {"n": 1}}),
                    lambda: ReplaceOne(self.query(), {"bulk": values.scalar()}),
                    lambda: DeleteOne(self.query()),
                ]
            )()
            for _ in range(self.rng.randint(1, self.largest_bulk))
        ]
        try:
            changed = self.collection().bulk_write(requests, ordered=self.rng.random() < 0.5).bulk_api_result
        except BulkWriteError as error:
            changed = error.details or {}
        return sum(changed.get(name, 0) for name in ("nInserted", "nUpserted", "nModified", "nRemoved"))

    # --- transactions

    def transaction(self) -> None:
        with self.client.start_session() as session, session.start_transaction(write_concern=MAJORITY):
            self._in_transaction(session, self.rng.randint(1, 8))

    def aborted_transaction(self) -> None:
        with self.client.start_session() as session:
            session.start_transaction()
            self._in_transaction(session, 2)
            session.abort_transaction()

    def prepared_transaction(self) -> None:
        """A transaction as a sharded cluster commits it: prepared first, committed at a given time."""
        with self.client.start_session() as session:
            session.start_transaction(write_concern=MAJORITY)
            # Servers before 5.0 end when they read an empty prepared transaction back.
            self.collection().insert_one({"_id": ObjectId(self.rng.randbytes(12))}, session=session)
            self._in_transaction(session, self.rng.randint(1, 5))
            admin = self.client.admin
            prepare = {"prepareTransaction": 1, "writeConcern": {"w": "majority"}}
            time = admin.command(prepare, session=session)["prepareTimestamp"]
            if self.rng.random() < 0.2:
                admin.command({"abortTransaction": 1}, session=session)
            else:
                admin.command({"commitTransaction": 1, "commitTimestamp": time}, session=session)

    def _in_transaction(self, session: Any, count: int) -> None:
        for _ in range(count):
            collection = self.collection()
            kind = self.rng.randrange(4)
            if kind == 0:
                document = {**self.values.document(), "_id": ObjectId(self.rng.randbytes(12))}
                collection.insert_one(document, session=session)
            elif kind == 1:
                collection.update_one({}, {"$set": {"t": self.values.any()}}, session=session)
            elif kind == 2:
                collection.update_many({"n": {"$lt": 9}}, {"$inc": {"n": 1}}, session=session)
            else:
                collection.delete_one({"n": {"$gt": self.rng.randint(0, 99)}}, session=session)

    # --- collections and databases

    def create(self) -> None:
        options: Document = self.rng.choice(
            [
                {},
                {"capped": True, "size": 100_000},
                {"validator": {"n": {"$lt": 10**9}}},
                {"collation": {"locale": "fr"}},
            ]
        )
        self.database().create_collection(self.rng.choice(COLLECTIONS), **options)

    def drop(self) -> None:
        self.collection().drop()

    def rename(self) -> None:
        """One at a time: two renames between databases, one each way, wait for each other for ever (4.2.6, 5.0.4)."""
        source, target = self.collection(), self.collection()
        command = {"renameCollection": source.full_name, "to": target.full_name, "dropTarget": self.rng.random() < 0.6}
        with _RENAMING:
            self.client.admin.command(command)

    def index(self) -> None:
        collection, field = self.collection(), self.rng.choice(["n", "s", "d.a"])
        if self.rng.random() < 0.6:
            collection.create_index([(field, 1)], sparse=self.rng.random() < 0.5)
        elif self.rng.random() < 0.5:
            collection.drop_index([(field, 1)])
        else:
            collection.drop_indexes()

    def collection_options(self) -> None:
        collection = self.collection()
        collection.database.command(
            {"collMod": collection.name, "validator": {"n": {"$lt": self.rng.randint(10**8, 10**9)}}}
        )

    def view(self) -> None:
        database, name = self.database(), self.rng.choice(["view1", "view2"])
        kind = self.rng.randrange(3)
        pipeline = [{"$match": {"n": self.rng.randint(0, 9)}}]
        if kind == 0:
            database.create_collection(name, viewOn="orders", pipeline=pipeline)
        elif kind == 1:
            database.command({"collMod": name, "viewOn": "items", "pipeline": pipeline})
        else:
            database[name].drop()

    def drop_database(self) -> None:
        if self.rng.random() < 0.3:
            self.client.drop_database(DATABASES[1])

    def time_series(self) -> None:
        if self.version < (5, 0):
            return
        database = self.database()
        if "series" not in database.list_collection_names():
            database.create_collection("series", timeseries={"timeField": "at", "metaField": "m"})
        database.series.insert_one({"at": EPOCH, "m": self.rng.randint(0, 3), "v": self.values.number()})

    def images(self) -> None:
        """Switch pre-images of a collection on or off."""
        if self.version < (4, 4):
            return
        collection, on = self.collection(), self.rng.random() < 0.8
        option = {"changeStreamPreAndPostImages": {"enabled": on}}
        if self.version < (6, 0):
            option = {"recordPreImages": on}
        collection.database.command({"collMod": collection.name, **option})

    def outside(self) -> None:
        """Writes that no stream, or only a stream of the cluster, may show; and notes in the log."""
        kind = self.rng.randrange(4)
        if kind == 0:
            self.client.admin.command({"appendOplogNote": 1, "data": {"n": self.rng.randint(0, 9)}})
        elif kind == 1:
            self.client.shop["system.js"].replace_one({"_id": "f"}, {"value": Code("1")}, upsert=True)
        elif kind == 2:
            self.client.admin.other.insert_one({"a": self.values.scalar()})
        else:
            self.client.elsewhere.c.insert_one({"_id": ObjectId(self.rng.randbytes(12)), "v": self.values.any()})
