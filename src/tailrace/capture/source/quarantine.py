"""Tokens that must never be sent again: those that a server answered with ChangeStreamHistoryLost.

Sending such a token once more cannot succeed; tools that do so restart for ever. The tokens of the open gaps in the
ledger are in quarantine too, so that a new process keeps to it from its first command on.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.errors import TokenQuarantined
from tailrace.token import ResumeToken


class Quarantine:
    """The dead tokens of one stream, known by their sort key."""

    def __init__(self, tokens: Iterable[bytes] = ()) -> None:
        self._keys = {ResumeToken.parse(token).key for token in tokens}

    def add(self, token: bytes) -> None:
        """Keep a token from being sent from now on."""
        self._keys.add(ResumeToken.parse(token).key)

    def add_all(self, tokens: Iterable[bytes]) -> None:
        """Keep all of these tokens from being sent."""
        for token in tokens:
            self.add(token)

    def contains(self, token: bytes) -> bool:
        """Whether the token was answered with HistoryLost before."""
        return bool(self._keys) and ResumeToken.parse(token).key in self._keys

    def check(self, token: bytes) -> None:
        """Raise before a dead token is sent."""
        if self.contains(token):
            raise TokenQuarantined(
                f"the server has already said that the history after {ResumeToken.parse(token)} is lost",
                token=ResumeToken.parse(token).hex,
            )
