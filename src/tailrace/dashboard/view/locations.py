"""How a folder is shown: without secrets, and as seen from where the dashboard was started."""

from __future__ import annotations

from pathlib import Path

from tailrace.settings import masked


def shown_folder(folder: str) -> str:
    """Give a folder's path from here when it lies below, and as it is set otherwise; a URL without its password."""
    path, here = Path(folder.removeprefix("file://")), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else masked(folder)
