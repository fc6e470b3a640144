"""The positions of shards inside a resume token.

Where each shard goes at its own pace one token is no position of the stream. The token then has a field
`shards` with the token of each, which servers ignore, as every field that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace import raw
from tailrace.token.resume_token import ResumeToken

FIELD: Final = "shards"


def read_positions(token: Mapping[str, Any] | None) -> dict[str, ResumeToken]:
    """Read the positions of shards from a resume token; none when it has none."""
    if not isinstance(token, Mapping) or not isinstance(token.get(FIELD), Mapping):
        return {}
    return {name: ResumeToken.parse(position) for name, position in token[FIELD].items()}


def positions_element(positions: Mapping[str, ResumeToken]) -> bytes:
    """Give the positions of shards as an element for a resume token."""
    parts = [raw.element(raw.DOCUMENT, name.encode(), position.to_bson()) for name, position in positions.items()]
    return raw.element(raw.DOCUMENT, FIELD.encode(), raw.document(*parts))


def with_positions(token: bytes, positions: Mapping[str, ResumeToken]) -> bytes:
    """Put the positions of shards into a token; without any it stays what it is."""
    return raw.append(token, positions_element(positions)) if positions else token
