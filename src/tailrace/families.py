"""Servers that speak MongoDB's protocol and are not MongoDB: which one answers, and what cannot work there.

Every fact here is from the vendors' public documentation; nobody has compared it with their servers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.errors import DeploymentUnsuitable

_DOCUMENTDB_HOST: Final = re.compile(r"\.docdb(-elastic)?\.amazonaws\.com(\.cn)?$", re.IGNORECASE)
_COSMOSDB_HOST: Final = re.compile(r"\.mongo\.cosmos\.azure\.(com|cn|us)$", re.IGNORECASE)
"""The request-unit service alone: `*.mongocluster.cosmos.azure.com` is another server, with other change streams."""


class Family(StrEnum):
    """Whose server it is."""

    MONGODB = "mongodb"
    DOCUMENTDB = "documentdb"
    COSMOSDB = "cosmosdb"

    @property
    def product(self) -> str:
        """Its name, for messages."""
        titles = {Family.DOCUMENTDB: "Amazon DocumentDB", Family.COSMOSDB: "Azure Cosmos DB for MongoDB"}
        return titles.get(self, "MongoDB")


def family_of(client: MongoClient[Any], chosen: str = "auto") -> Family:
    """Find out whose server it is: by the setting, else by the host's name, else by what the server says of itself."""
    if chosen != "auto":
        return Family(chosen)
    hosts = [host for host, _ in client.topology_description.server_descriptions()]
    if any(_DOCUMENTDB_HOST.search(host) for host in hosts):
        return Family.DOCUMENTDB
    if any(_COSMOSDB_HOST.search(host) for host in hosts):
        return Family.COSMOSDB
    try:
        server_info = client.server_info()
    except PyMongoError:
        return Family.MONGODB  # who cannot be asked will say so again, and better, where it matters
    return Family.COSMOSDB if "_t" in server_info else Family.MONGODB


def refuse_engine(family: Family) -> None:
    """Refuse what reads the oplog: neither of the others has one."""
    if family is not Family.MONGODB:
        raise DeploymentUnsuitable(
            f"{family.product} has no oplog that could be read",
            hint='Use its change streams: capture.source = "change-stream", and no gateway.',
        )


def refuse_ends(family: Family, what: str) -> None:
    """Refuse what ends or begins at a time, where a stream does not say how far it is."""
    if family is not Family.MONGODB:
        raise DeploymentUnsuitable(
            f"{family.product} gives no post-batch tokens, so that {what} cannot be found in its stream",
            hint="Use a streaming query that begins now, or capture it with `tailrace produce` into Kafka.",
        )


def check_documentdb(client: MongoClient[Any], namespaces: Sequence[str], *, before_change: str | None) -> None:
    """Refuse streams that would give nothing or too little: without images, and of collections not switched on.

    `namespaces` are `db.collection` or `db`; none is everything.
    """
    if before_change is not None:
        raise DeploymentUnsuitable(
            "Amazon DocumentDB keeps no documents from before a change",
            hint="Remove capture.full_document_before_change.",
        )
    listed = client.admin.aggregate([{"$listChangeStreams": 1}])
    enabled = {(each.get("database") or "", each.get("collection") or "") for each in listed}
    for name in namespaces or [""]:
        database, _, collection = name.partition(".")
        if not enabled & {("", ""), (database, ""), (database, collection)}:
            on = f'modifyChangeStreams: 1, database: "{database}", collection: "{collection}", enable: true'
            raise DeploymentUnsuitable(
                f"change streams are not switched on for {name or 'the whole cluster'} on Amazon DocumentDB",
                hint=f"Run db.adminCommand({{{on}}}), or capture the collections that have them.",
            )
