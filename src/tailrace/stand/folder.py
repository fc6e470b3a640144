"""The folder a server of the stand lives in."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """A folder that is removed with its server when we made it, and only emptied of data when given to us."""

    path: Path
    ours: bool

    @classmethod
    def make(cls, name: str, chosen: Path | None = None) -> ServerFolder:
        """`name` inside the chosen folder, or a new temporary folder."""
        if chosen is None:
            path = Path(tempfile.mkdtemp(prefix=f"tailrace-{name}-"))
            path.chmod(0o711)
            return cls(path, ours=True)
        path = chosen / name
        path.mkdir(parents=True)
        return cls(path, ours=False)

    def remove(self) -> None:
        """Remove everything, or, in a folder given to us, everything but the logs."""
        if self.ours:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for path in sorted(self.path.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.suffix != ".log" and not path.is_dir():
                path.unlink(missing_ok=True)
