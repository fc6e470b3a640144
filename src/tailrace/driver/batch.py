"""A batch of events as users get it: bytes, and where to resume behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bson
from bson.timestamp import Timestamp

from tailrace.event import token_of


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one reply, as BSON documents.

    A batch may be empty: then `resume_token` is what it brings, a position further on.
    """

    events: Sequence[bytes]
    token: bytes | None
    """The BSON of `resume_token`, as it came: for whoever keeps tokens as bytes."""
    operation_time: Timestamp | None
    """The server's operation time when it answered: what the position can be compared with."""

    @property
    def resume_token(self) -> dict[str, Any] | None:
        """Where to resume after the whole batch, a document like `ChangeStream.resume_token`.

        None when a server without post-batch tokens had no event yet.
        """
        return None if self.token is None else bson.decode(self.token)

    @property
    def tokens(self) -> list[bytes]:
        """The resume token of each event as BSON, found when asked for."""
        return [token_of(event) for event in self.events]
