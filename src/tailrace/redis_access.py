"""What Redis refuses for want of a permission, as an error of ours that names the command."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import NotAuthorized

if TYPE_CHECKING:
    import redis

_DIRECTLY: Final = re.compile(r"run the '(\w+)' command")
_IN_A_SCRIPT: Final = re.compile(r"call to f_([0-9a-f]{40})\): @user_script:(\d+):.*can't run this command", re.DOTALL)
_COMMAND: Final = re.compile(r"\('([A-Z]{3,})'")
_scripts: dict[str, list[str]] = {}


def registered(client: redis.Redis, script: str) -> Any:
    """Give a script that can be called, and know its lines: of a command inside, Redis names the line alone."""
    _scripts[sha1(script.encode(), usedforsecurity=False).hexdigest()] = script.splitlines()
    return client.register_script(script)


def not_authorized(error: Exception) -> NotAuthorized | None:
    """Give the error of ours where the user of Redis lacks a permission; None for every other error."""
    text = str(error)
    if direct := _DIRECTLY.search(text):
        lacking = f"the command {direct[1]}"
    elif inside := _IN_A_SCRIPT.search(text):
        lacking = f"the command {_commands(_scripts.get(inside[1], []), int(inside[2]))} in a script"
    elif "EXEC without MULTI" in text:
        lacking = "the command multi"
    elif "access one of the keys" in text:
        lacking = "the pattern of a key"
    else:
        return None
    # What Redis says is left out: it quotes keys, and so values of documents.
    return NotAuthorized(
        f"the user of Redis lacks {lacking}", hint="Allow it with ACL SETUSER; the security page has the rules."
    )


def _commands(script: list[str], line: int) -> str:
    """Give the commands of a line; where it has them from a variable, those of the script."""
    found = _COMMAND.findall(" ".join(script[line - 1 : line])) or _COMMAND.findall(" ".join(script))
    return " or ".join(dict.fromkeys(each.lower() for each in found))
