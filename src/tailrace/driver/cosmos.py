"""Change streams of Azure Cosmos DB for MongoDB (request units), as its documentation describes them.

A stream is of one collection and begins with a `$match` and a `$project` of its own, with `updateLookup`. It has
no deletes: by convention a document is marked with a field and left to a TTL index; that change is a delete here. An
insert cannot be distinguished from an update; both come as `replace`, with the whole document. Tokens are
continuation tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pymongo.collection import Collection

from tailrace import raw
from tailrace.errors import DeploymentUnsuitable

_MATCH: Final[dict[str, Any]] = {"$match": {"operationType": {"$in": ["insert", "update", "replace"]}}}
_PROJECT: Final[dict[str, Any]] = {"$project": {"_id": 1, "fullDocument": 1, "ns": 1, "documentKey": 1}}
_ALLOWED: Final = frozenset({"resume_after", "full_document", "resume_for"})


def cosmos_watch(
    target: Any, pipeline: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Give the pipeline and the options that Cosmos DB takes for what was asked; refuse what it cannot do."""
    if not isinstance(target, Collection):
        raise DeploymentUnsuitable(
            "Azure Cosmos DB for MongoDB has change streams of collections alone",
            hint="Name one: `tailrace watch DB.COLLECTION`; start one for each collection.",
        )
    if pipeline:
        raise DeploymentUnsuitable(
            "Azure Cosmos DB for MongoDB takes no stages behind those that it asks for itself",
            hint="Remove --pipeline, and filter what comes.",
        )
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("full_document") not in (None, "updateLookup"):
        given["full_document is only updateLookup"] = True
    if unknown := sorted(set(given) - _ALLOWED):
        raise DeploymentUnsuitable(
            f"Azure Cosmos DB for MongoDB does not know the option {', '.join(unknown)}",
            hint="It resumes after a token (resume_after), and knows no other start.",
        )
    return [_MATCH, _PROJECT], {**given, "full_document": "updateLookup"}


def cosmos_event(event: bytes, soft_delete_field: str) -> bytes:
    """Give the event that a change stands for: a `delete` where the document is marked, else a `replace`."""
    document = raw.field(event, b"fullDocument")
    is_deleted = document is not None and document.kind == raw.DOCUMENT and _is_marked(document.data, soft_delete_field)
    operation = raw.element(raw.STRING, b"operationType", raw.string("delete" if is_deleted else "replace"))
    kept = raw.without(event, b"operationType", *((b"fullDocument",) if is_deleted else ()))
    found = [raw.element(kind, name, kept[begin:end]) for kind, name, begin, end in raw.elements(kept)]
    return raw.document(found[0], operation, *found[1:])


def _is_marked(document: bytes, name: str) -> bool:
    found = raw.field(document, name.encode())
    return found is not None and found.kind == raw.BOOL and found.data == b"\x01"
