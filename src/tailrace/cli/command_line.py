"""Secrets that were given as flags leave the command line that other users of the machine can see (`ps`)."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from tailrace.masking import masked

_ARG_START, _ARG_END = 47, 48
"""Where the memory of the arguments begins and ends: fields of /proc/self/stat, counted from 0."""


def hide_secrets_of_arguments() -> None:
    """Overwrite secrets in this process's own arguments with stars; does nothing where there is no /proc.

    They are seen there from the start of the process until this is called: secrets belong in files.
    """
    shown = [masked(argument) for argument in sys.argv]
    if shown == sys.argv:
        return
    try:
        arguments = Path("/proc/self/cmdline").read_bytes()
        # The second field is the program's name, in brackets, and may have spaces in it.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[index - 2]) for index in (_ARG_START, _ARG_END))
    except (OSError, ValueError, IndexError):
        return
    hidden = without_secrets(arguments)
    if 0 < len(hidden) <= end - start:
        ctypes.memmove(start, hidden, len(hidden))


def without_secrets(arguments: bytes) -> bytes:
    """Give the arguments, each ended by a zero, with secrets hidden and of the same length altogether."""
    kept = b"\0".join(masked(each.decode(errors="surrogateescape")).encode(errors="surrogateescape")
                      for each in arguments.split(b"\0"))  # fmt: skip
    return kept[: len(arguments)].ljust(len(arguments), b"\0")
