"""The run folder: one run at a time, logs and settings of the last one, and nothing that a run did not put there."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from pydantic import BaseModel, SecretStr

from tailrace.errors import AlreadyUp, SettingsError
from tailrace.settings import Settings
from tailrace.settings_source import absolute_paths
from tailrace.up.plan import TEMPORARY

_LOCK = "up.lock"


class RunFolder:
    """A folder that is emptied at the start of a run and stays, with its logs, after the end."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> RunFolder:
        if self.path.exists() and any(self.path.iterdir()) and not (self.path / _LOCK).exists():
            raise SettingsError(
                f"{self.path} holds things that `tailrace up` did not put there",
                hint="Give another folder with --folder; its content is removed at every start.",
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / _LOCK).open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise AlreadyUp(f"another `tailrace up` runs in {self.path}") from None
        self._empty()
        self.logs.mkdir()
        self.temporary.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.temporary, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()

    @property
    def logs(self) -> Path:
        """Where the programs log."""
        return self.path / "logs"

    @property
    def temporary(self) -> Path:
        """What nobody needs after the run."""
        return self.path / TEMPORARY

    @property
    def settings_file(self) -> Path:
        """The settings that the programs run on; every verb can be used with it."""
        return self.path / "tailrace.toml"

    def log_of(self, part: str) -> Path:
        """Give the log of a program."""
        return self.logs / f"{part.replace(' ', '-')}.log"

    def write_settings(self, settings: Settings) -> None:
        """Write what is set into the settings file, which only its owner may read."""
        self.settings_file.touch(mode=0o600)
        self.settings_file.write_text(as_toml(settings))

    def _empty(self) -> None:
        for path in self.path.iterdir():
            if path.name == _LOCK:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def as_toml(settings: Settings) -> str:
    """Write the settings that were set, secrets included, and all paths as absolute ones: the file lies elsewhere."""
    given = {section: _given(getattr(settings, section)) for section in sorted(settings.model_fields_set)}
    for section, name, path in absolute_paths(settings):
        given.setdefault(section, {})[name] = path
    lines = ["# Made by `tailrace up`: the settings of this run. Other verbs use it by --config.\n"]
    for section, named in given.items():
        values = [f"{name} = {_toml(value)}\n" for name, value in named.items() if value is not None]
        lines += [f"\n[{section}]\n", *values] if values else []
    return "".join(lines)


def _given(section: BaseModel) -> dict[str, Any]:
    values = {name: getattr(section, name) for name in sorted(section.model_fields_set)}
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()}


def _toml(value: Any) -> str:
    """Write a value; JSON's texts, numbers and booleans are TOML's too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(name))} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value if isinstance(value, bool | int | float) else str(value), ensure_ascii=False)
