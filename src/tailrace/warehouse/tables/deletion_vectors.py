"""Deletion vectors of Iceberg tables of version 3: the rows of a data file that are gone, as a bitmap in a Puffin file.

Iceberg's specification has both layouts (`deletion-vector-v1` and Puffin). One file has the vectors of one commit.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

_PUFFIN: Final = b"PFA1"
_MAGIC: Final = b"\xd1\xd3\x39\x64"
_POSITION_FIELD: Final = 2**31 - 3
"""The id of `_pos`, of which a vector has values."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Where the vector of one data file is inside a Puffin file."""

    data_file: str
    offset: int
    size: int
    rows: int


def puffin(vectors: Mapping[str, BitMap]) -> tuple[bytes, list[Blob]]:
    """Give a Puffin file with the vectors of these data files."""
    content, blobs = bytearray(_PUFFIN), []
    for data_file, positions in vectors.items():
        blob = encoded(positions)
        blobs.append(Blob(data_file, len(content), len(blob), len(positions)))
        content += blob
    footer = json.dumps({"blobs": [_described(blob) for blob in blobs], "properties": {"created-by": "tailrace"}})
    payload = footer.encode()
    content += _PUFFIN + payload + struct.pack("<II", len(payload), 0) + _PUFFIN
    return bytes(content), blobs


def _described(blob: Blob) -> dict[str, object]:
    return {
        "type": "deletion-vector-v1",
        "fields": [_POSITION_FIELD],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": blob.offset,
        "length": blob.size,
        "properties": {"referenced-data-file": blob.data_file, "cardinality": str(blob.rows)},
    }


def encoded(positions: BitMap) -> bytes:
    """Give a vector as a blob; positions of data files of this job are below 2^32, so there is one bitmap in it."""
    vector = _MAGIC + struct.pack("<QI", 1, 0) + positions.serialize()
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def decoded(blob: bytes) -> BitMap:
    """Read a blob; raises ValueError for one that is damaged, or of a file of more than 2^32 rows."""
    vector = blob[4:-4]
    size, checksum = struct.unpack(">I", blob[:4])[0], struct.unpack(">I", blob[-4:])[0]
    if size != len(vector) or vector[:4] != _MAGIC or zlib.crc32(vector) != checksum:
        raise ValueError("a deletion vector is damaged")
    bitmaps, key = struct.unpack_from("<QI", vector, 4) if len(vector) > 12 else (0, 0)
    if not bitmaps:
        return BitMap()
    if bitmaps != 1 or key:
        raise ValueError("a deletion vector has rows beyond 2^32")
    return BitMap.deserialize(vector[16:])
