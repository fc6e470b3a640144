"""How a pipeline fails: with the server's code, and with its words where clients read them.

`fail` is used alike while a pipeline is read and while it runs. Read: the stream is refused when it
opens. Run: the event that could not be computed ends the stream, as it does on the server.
"""

from __future__ import annotations

from typing import NoReturn


class Failure(Exception):
    """A failure with the server's code; `Pipeline` turns it into the library's own errors."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unsupported(Failure):
    """The engine does not know this; the server may."""


def leave_to_server(code: int, message: str) -> NoReturn:
    """Fail with what a server would answer that does not know it either."""
    raise Unsupported(code, message)


def fail(code: int, message: str) -> NoReturn:
    """Fail with a code and a message of the server."""
    raise Failure(code, message)


def check(condition: object, code: int, message: str) -> None:
    """Fail unless a condition holds; for messages that cost nothing to make."""
    if not condition:
        raise Failure(code, message)
