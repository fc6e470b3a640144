"""What a real server makes of stages and documents, to hold the compiled pipeline against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tailrace.engine.expression import compile_pipeline
from tailrace.errors import ChangeStreamError

Stages = Sequence[Mapping[str, Any]]
Answer = list[bytes] | int
"""The documents that came out, or the code of the error."""

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument,
    unicode_decode_error_handler="replace",  # a server cuts characters in its messages in two
)
_INHIBIT = {"$_internalInhibitOptimization": {}}
"""Keeps the server from moving a `$match` forward, past a stage that would have failed."""


@dataclass(frozen=True)
class Difference:
    """One document, or one specification, that came out otherwise."""

    stages: Stages
    document: bytes | None
    server: Answer
    ours: Answer

    def __str__(self) -> str:
        lines = [f"stages   {self.stages!r}"]
        if self.document is not None:
            lines.append(f"document {bson.decode(self.document)!r}")
        return "\n".join([*lines, f"server   {_shown(self.server)}", f"ours     {_shown(self.ours)}"])


def _shown(answer: Answer) -> str:
    if isinstance(answer, int):
        return f"error {answer}"
    return ", ".join(map(_pretty, answer)) or "nothing"


def _pretty(document: bytes) -> str:
    try:
        return f"{bson.decode(document)!r} {document.hex() if len(document) < 60 else ''}"
    except bson.InvalidBSON as error:
        return f"{error}: {document.hex()}"


class Server:
    """Runs stages on a server; documents come from `$documents` or, before 6.0, from a collection."""

    def __init__(self, database: Database[Any], version: str) -> None:
        self._database = database
        self.version = version
        self._literal = version >= "6"
        self._numbers: dict[bytes, int] = {}

    def answer(self, stages: Stages, documents: Sequence[bytes]) -> Answer:
        """Run the stages over the documents."""
        source: list[Mapping[str, Any]]
        if self._literal:
            target: Any = 1
            source = [{"$documents": {"$literal": [RawBSONDocument(document) for document in documents]}}]
        else:
            target = "documents"
            source = [
                {"$match": {"_id": {"$in": self._stored(documents)}}},
                {"$sort": {"_id": 1}},
                {"$replaceRoot": {"newRoot": "$d"}},
            ]
        command = {
            "aggregate": target,
            "pipeline": [*source, *(part for stage in stages for part in (_INHIBIT, stage))],
            "cursor": {"batchSize": len(documents) + 1},
        }
        try:
            reply: Any = self._database.command(command, codec_options=_RAW)
        except OperationFailure as failure:
            return failure.code or 0
        return [document.raw for document in reply["cursor"]["firstBatch"]]

    def _stored(self, documents: Sequence[bytes]) -> list[int]:
        """Insert the documents that are not there yet, and give their numbers."""
        new = [document for document in dict.fromkeys(documents) if document not in self._numbers]
        for document in new:
            self._numbers[document] = len(self._numbers)
        if new:
            self._database["documents"].insert_many(
                [{"_id": self._numbers[document], "d": RawBSONDocument(document)} for document in new]
            )
        return [self._numbers[document] for document in documents]


def our_answer(stages: Stages, documents: Sequence[bytes], version: str) -> Answer:
    """Run the stages as the engine does."""
    try:
        pipeline = compile_pipeline(stages, server_version=version)
        results = [pipeline(document) for document in documents]
    except ChangeStreamError as error:
        return error.server_code
    return [result for result in results if result is not None]


def differences(server: Server, stages: Stages, documents: Sequence[bytes]) -> list[Difference]:
    """Compare the answers; after an error, document by document."""
    theirs, ours = server.answer(stages, documents), our_answer(stages, documents, server.version)
    if theirs == ours and not isinstance(theirs, int):
        return []
    found = []
    for document in documents:
        one, other = server.answer(stages, [document]), our_answer(stages, [document], server.version)
        if one != other:
            found.append(Difference(stages, document, one, other))
    return found
