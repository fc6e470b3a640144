"""Events as Debezium's MongoDB connector writes them, so that its consumers can read ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from bson.datetime_ms import DatetimeMS

from tailrace import __version__
from tailrace.capture.formats.decoded import DecodedFormat
from tailrace.capture.formats.event_fields import OP_CODES, Place
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.raw import extended_json


class DebeziumFormat(DecodedFormat):
    """The envelope of Debezium 3 with the JSON converter and `schemas.enable=false`.

    As there, `before` and `after` are strings of strict Extended JSON, `updateDescription.updatedFields` and the key's
    `id` strings of relaxed Extended JSON; a delete is followed by a tombstone; and events that are about no document
    (drop, rename, invalidate ...) give no record.
    """

    def __init__(
        self,
        server_name: str,
        key: KeyRule = DOCUMENT_KEY,
        *,
        tombstones: bool = True,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(key, tombstones=tombstones)
        self._server_name = server_name
        self._clock = clock

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes | None:
        op = OP_CODES.get(document.get("operationType", ""))
        if op is None or "documentKey" not in document:
            return None
        now = self._clock()
        return orjson.dumps(
            {
                "before": _image(document.get("fullDocumentBeforeChange"), event),
                "after": _image(document.get("fullDocument"), event),
                "updateDescription": _update_description(document.get("updateDescription"), event),
                "source": self._source(document, op, event, place.cluster_time),
                "op": op,
                "ts_ms": now // 1_000_000,
                "ts_us": now // 1_000,
                "ts_ns": now,
                "transaction": None,
            }
        )

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        """Write `{"id": "..."}` with the `_id` as relaxed Extended JSON; a chosen field keeps its name."""
        chosen = {"id": key["_id"]} if "_id" in key else key
        return orjson.dumps({name: extended_json.relaxed(value, event).decode() for name, value in chosen.items()})

    def _source(self, document: Mapping[str, Any], op: str, event: bytes, cluster_time: int) -> dict[str, Any]:
        seconds = cluster_time >> 32
        wall = document.get("wallTime")
        lsid = document.get("lsid")
        return {
            "version": f"tailrace-{__version__}",
            "connector": "mongodb",
            "name": self._server_name,
            "ts_ms": seconds * 1_000,
            "ts_us": seconds * 1_000_000,
            "ts_ns": seconds * 1_000_000_000,
            "snapshot": "true" if op == "r" else "false",
            "db": document["ns"]["db"],
            "sequence": None,
            "collection": document["ns"]["coll"],
            "ord": cluster_time & 0xFFFFFFFF,
            "lsid": None if lsid is None else extended_json.relaxed(lsid, event).decode(),
            "txnNumber": document.get("txnNumber"),
            "wallTime": int(wall) if isinstance(wall, DatetimeMS) else None,
        }


def _image(document: Any, event: bytes) -> str | None:
    return None if document is None else extended_json.strict(document, event)


def _update_description(update: Mapping[str, Any] | None, event: bytes) -> dict[str, Any] | None:
    if update is None:
        return None
    truncated = [{"field": item["field"], "size": item["newSize"]} for item in update.get("truncatedArrays") or ()]
    return {
        "removedFields": update.get("removedFields") or None,
        "updatedFields": extended_json.relaxed(update.get("updatedFields") or {}, event).decode(),
        "truncatedArrays": truncated or None,
    }
