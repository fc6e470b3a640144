"""The documentKey of inserts on servers that do not log it (before 6.0): the shard key, then `_id`.

Such a server takes the shard key from its catalog when the stream is read, not when the document was written: after
the collection is dropped the key is `_id` alone (seen on 4.2.6). So a key is asked for with each insert.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import raw


def document_key(document: bytes, shard_key: Sequence[bytes] = ()) -> bytes:
    """Make the key of an inserted document: the values of the shard key by their paths, and `_id`."""
    elements = []
    for path in shard_key if b"_id" in shard_key else (*shard_key, b"_id"):
        found = raw.find_path(document, *path.split(b"."))
        if found is not None:
            elements.append(raw.element(found[0], path, document[found[1] : found[2]]))
    return raw.document(*elements)
