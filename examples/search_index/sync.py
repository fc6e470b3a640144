"""Keep a search index and a cache in step with a collection: `python sync.py MONGODB_URI INDEX [REDIS_URL]`.

The index is SQLite's full-text search, the cache Redis, whose keys `product:ID` somebody else fills. Start it as often
as you like and kill it when you like: it goes on where it was, and both kinds of write may be repeated.
"""

import sqlite3
import sys
from typing import Any

from pymongo import MongoClient

import tailrace


class Index:
    """The texts of products, and the cached pages to forget."""

    def __init__(self, file: str, cache: Any = None) -> None:
        self.database = sqlite3.connect(file)
        self.database.execute("create virtual table if not exists products using fts5(id unindexed, text)")
        self.cache = cache

    def apply(self, event: dict[str, Any]) -> None:
        """Take over one change; the same one again changes nothing."""
        if event["operationType"] not in ("read", "insert", "update", "replace", "delete"):
            return
        key, document = str(event["documentKey"]["_id"]), event.get("fullDocument")
        with self.database:
            self.database.execute("delete from products where id = ?", (key,))
            if document is not None:
                text = f"{document.get('name', '')} {document.get('description', '')}"
                self.database.execute("insert into products values (?, ?)", (key, text))
        if self.cache is not None:
            self.cache.delete(f"product:{key}")

    def search(self, words: str) -> list[str]:
        """Give the ids of the products with these words."""
        found = self.database.execute("select id from products where products match ? order by rank", (words,))
        return [row[0] for row in found]


def main(uri: str, file: str, redis_url: str | None = None, **options: Any) -> None:
    cache = None
    if redis_url is not None:
        import redis

        cache = redis.Redis.from_url(redis_url)
    index = Index(file, cache)
    tailrace.consume(
        MongoClient(uri).shop.products,
        index.apply,
        store=f"file:{file}.position",
        name="search-index",
        start="snapshot",
        full_document="updateLookup",
        dead_letters=f"file:{file}.dead-letters",
        **options,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
