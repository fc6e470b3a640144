"""What identifies a document in change events: its `_id`, and in a sharded collection the shard key before it.

Seen alike on 4.2 and 6.0: a documentKey holds the fields of the shard key in their order, each under its whole dotted
name, without those that the document has not; then `_id`, unless the shard key holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tailrace import raw, server_codes
from tailrace.errors import SettingsError


@dataclass(frozen=True, slots=True)
class KeyFields:
    """The fields of a collection's documentKey, by their dotted names."""

    names: tuple[bytes, ...] = (b"_id",)

    @classmethod
    def of_shard_key(cls, names: list[str]) -> KeyFields:
        """Give the fields of a collection with this shard key."""
        fields = tuple(name.encode() for name in names)
        return cls(fields if b"_id" in fields else (*fields, b"_id"))

    @property
    def projection(self) -> dict[str, int]:
        """What to ask of a query that wants the keys alone."""
        return {"_id": 1} | {name.decode(): 1 for name in self.names}

    def of(self, document: bytes) -> bytes:
        """Give the documentKey of a document."""
        parts = []
        for name in self.names:
            span = raw.find_path(document, *name.split(b"."))
            if span is not None:
                parts.append(raw.element(span[0], name, document[span[1] : span[2]]))
        return raw.document(*parts)


BY_ID = KeyFields()
"""Those of every collection that is not sharded."""


def key_fields(client: MongoClient[Any], namespace: str) -> KeyFields:
    """Find out how a collection is keyed now: a router asks the catalogue, a shard knows what it was told of it."""
    router = client.admin.command("isMaster").get("msg") == "isdbgrid"
    catalogue = client["config"]["collections" if router else "cache.collections"]
    try:
        found = catalogue.find_one({"_id": namespace, "dropped": {"$ne": True}}, {"key": 1})
    except OperationFailure as error:
        if error.code != server_codes.UNAUTHORIZED:
            raise
        if router:
            hint = "Give the user the role `read` on the database `config`."
            raise SettingsError(f"the shard key of {namespace} may not be read", hint=hint) from None
        return BY_ID  # a replica set of its own, whose users need not see what only shards have
    return BY_ID if found is None else KeyFields.of_shard_key(list(found["key"]))
