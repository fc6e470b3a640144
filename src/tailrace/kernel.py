"""The one door to the compiled core: the module `tailrace_kernel`, where it is installed and wanted.

Everything works without it, slower: Python is the reference, and the kernel does the same to whole batches.
`TAILRACE_KERNEL=off` leaves it out, `on` refuses to run without it; by default it is used where it is there.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any, Final

from tailrace import __version__
from tailrace.errors import SettingsError

VARIABLE: Final = "TAILRACE_KERNEL"
REVISION: Final = 14
"""The revision of the compiled module that this code calls."""


def module() -> Any | None:
    """Give the compiled module, or None when Python does the work."""
    return _choose(os.environ.get(VARIABLE, "auto"))[0]


def description() -> str:
    """Say which of the two runs, and why."""
    return _choose(os.environ.get(VARIABLE, "auto"))[1]


@cache
def _choose(wanted: str) -> tuple[Any | None, str]:
    if wanted not in ("auto", "on", "off"):
        raise SettingsError(f"{VARIABLE} cannot be {wanted!r}", hint="Use auto, on or off.")
    if wanted == "off":
        return None, f"python ({VARIABLE}=off)"
    found, text = _load()
    if found is None and wanted == "on":
        raise SettingsError(f"{VARIABLE}=on, and it runs as {text}", hint="Install tailrace-kernel, or run `make env`.")
    return found, text


def _load() -> tuple[Any | None, str]:
    try:
        found = importlib.import_module("tailrace_kernel")
    except ImportError:
        return None, "python (tailrace-kernel is not installed)"
    if found.REVISION != REVISION:
        return None, f"python (tailrace-kernel is of another revision than tailrace {__version__})"
    return found, f"kernel {found.__version__}"
