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

from tailrace.engine.expression import Pipeline, compile_pipeline
from tailrace.errors import ChangeStreamError

Stages = Sequence[Mapping[str, Any]]
Answer = list[bytes] | int
"""The documents that came out, or the code of the error."""

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument,
    unicode_decode_error_handler="replace",  # a server cuts characters in its messages in two
)
_INHIBIT = {"$_internalInhibitOptimization": {}}
"""Keeps the server from moving a `$match` forward, past a stage that would have failed.

It stands before the first stage, and behind those that servers let a `$match` overtake in ways that the engine does
not: where a field is only renamed, and `$redact`."""


def _kept_in_place(stage: Any) -> list[Any]:
    if not isinstance(stage, Mapping):
        return [stage]
    renames = any(name in ("$project", "$addFields", "$set") and _has_path(value) for name, value in stage.items())
    return [stage, _INHIBIT] if renames or "$redact" in stage else [stage]


def _has_path(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_path(item) for name, item in value.items() if not name.startswith("$"))
    return isinstance(value, str) and value.startswith("$")


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
            "pipeline": [*source, _INHIBIT, *(part for stage in stages for part in _kept_in_place(stage))],
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


def differences(server: Server, stages: Stages, documents: Sequence[bytes]) -> list[Difference]:
    """Compare the answers: the documents that pass all at once, those that fail one by one."""
    try:
        pipeline = compile_pipeline(stages, server_version=server.version)
    except ChangeStreamError as error:
        theirs = server.answer(stages, documents[:1])
        return [] if theirs == error.server_code else [Difference(stages, None, theirs, error.server_code)]
    answers = {document: _our_answer(pipeline, document) for document in documents}
    passing = [document for document in documents if not isinstance(answers[document], int)]
    expected = [result for document in passing for result in answers[document]]  # type: ignore[union-attr]
    suspects = [document for document in documents if isinstance(answers[document], int)]
    if passing and server.answer(stages, passing) != expected:
        suspects += passing
    found = []
    for document in suspects:
        theirs = server.answer(stages, [document])
        if theirs != answers[document]:
            found.append(Difference(stages, document, theirs, answers[document]))
    return found


def _our_answer(pipeline: Pipeline, document: bytes) -> Answer:
    try:
        result = pipeline(document)
    except ChangeStreamError as error:
        return error.server_code
    return [] if result is None else [result]
