"""What is done to settings as they are read: secrets come from files of their own, relative paths begin at a folder."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from tailrace.errors import SettingsError

PATHS = (
    "audit.log", "capture.position_store", "capture.sink", "capture.dead_letters", "capture.inventory",
    "engine.folder", "gateway.certificate", "gateway.client_ca", "spark.jars", "spark.checkpoints",
    "features.dead_letters", "warehouse.folder", "dashboard.certificate", "dashboard.key", "up.folder", "up.features",
)  # fmt: skip
"""Settings that may hold paths; a text with a colon is a path only after `file:`."""
_TEXTS = ("features.kafka_servers", "warehouse.kafka_servers")
_TABLES = ("capture.shards", "gateway.shards", "spark.config", "warehouse.catalog_config")
"""Settings that are no secrets and may hold one: a URL with a password, a table of any properties."""
_NO_PATHS = ("topic", "stop")
"""What `capture.dead_letters` may be beside a path."""


def read_toml(path: Path, hint: str) -> dict[str, Any]:
    """Read a TOML file; whatever it holds, what is wrong with it is said by name."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", hint=hint) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}", hint="Correct the line it names.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path} is not UTF-8 in line {line}", hint="Save it as UTF-8.") from None
    except RecursionError:
        raise SettingsError(f"{path} is not TOML: it is nested too deeply", hint="Simplify it.") from None


_files_read: dict[str, tuple[Path, str]] = {}
"""The files that this process has read its settings from last, and what was in them, by key."""


def forget_files() -> None:
    """Begin anew, before settings are read."""
    _files_read.clear()


def renewed_secrets(current: Callable[[str], object]) -> dict[str, str]:
    """Give the settings, by key, whose files hold another text now; `current` gives a setting as it is in use.

    One that a flag or a variable has set does not come from its file. A file that cannot be read has not changed: it
    may be about to be replaced.
    """
    found: dict[str, str] = {}
    for key, (file, before) in list(_files_read.items()):
        try:
            text = _secret_of(f"{key}_file", str(file), Path())
        except SettingsError:
            continue
        if text != before and _plain(current(key)) == before:
            found[key] = text
            _files_read[key] = file, text
    return found


def with_secrets_of_files(model: type[BaseModel], values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Put the content of the file in the place of each `..._file` that stands for a secret."""
    read = {section: dict(given) if isinstance(given, Mapping) else given for section, given in values.items()}
    for key in file_keys(model):
        section, name = key.split(".")
        given = read.get(section)
        if not isinstance(given, dict) or f"{name}_file" not in given:
            continue
        if name in given:
            raise SettingsError(f"{key} and {key}_file are both given", hint="Keep one of them.")
        file = given.pop(f"{name}_file")
        text = _secret_of(f"{key}_file", file, folder)
        given[name] = _table_of(f"{key}_file", text) if key in _TABLES else text
        if key not in _TABLES:
            _files_read[key] = folder / file, text
    return read


def file_keys(model: type[BaseModel]) -> Iterator[str]:
    """Give the keys of all settings that can be read from files of their own."""
    yield from secret_keys(model)
    yield from _TEXTS
    yield from _TABLES


def secret_keys(model: type[BaseModel]) -> Iterator[str]:
    """Give the keys of all settings that are secrets, or addresses that may hold one."""
    for section in model.model_fields:
        for name, field in _fields_of(model, section).items():
            if SecretStr in (field.annotation, *get_args(field.annotation)):
                yield f"{section}.{name}"


def located(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Let relative paths begin at a folder."""
    moved = {section: dict(given) if isinstance(given, Mapping) else given for section, given in values.items()}
    for key in PATHS:
        section, name = key.split(".")
        if isinstance(moved.get(section), dict) and name in moved[section]:
            moved[section][name] = _from_folder(moved[section][name], folder)
    return moved


def located_defaults(
    model: type[BaseModel], values: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Let paths that nobody has set begin at a folder too; gives also which ones they are."""
    moved = {section: dict(given) if isinstance(given, Mapping) else given for section, given in values.items()}
    changed: list[tuple[str, str]] = []
    for key in PATHS:
        section, name = key.split(".")
        given = moved.get(section, {})
        if not isinstance(given, dict) or name in given:
            continue
        plain = _plain(_fields_of(model, section)[name].default)
        if key == "capture.dead_letters" and not str(given.get("sink", "kafka:")).startswith("kafka:"):
            plain = "file:dead-letters"  # where they go when there is no topic
        there = _from_folder(plain, folder)
        if there != plain:
            moved[section] = {**given, name: there}
            changed.append((section, name))
    return moved, changed


def absolute_paths(settings: BaseModel) -> Iterator[tuple[str, str, Any]]:
    """Give section, name and value of every setting that is a path, from the root on, whoever set it."""
    for key in PATHS:
        section, name = key.split(".")
        value = _plain(getattr(getattr(settings, section), name))
        there = _from_folder(value, Path.cwd())
        if value and (there != value or Path(str(value).removeprefix("file:")).is_absolute()):
            yield section, name, there


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _fields_of(model: type[BaseModel], section: str) -> dict[str, FieldInfo]:
    kind: Any = model.model_fields[section].annotation
    fields: dict[str, FieldInfo] = kind.model_fields
    return fields


def _secret_of(key: str, file: Any, folder: Path) -> str:
    try:
        text = (folder / str(file)).read_text().rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"{key}: {file} cannot be read: {error.strerror}", hint="Check its path.") from None
    except ValueError:
        raise SettingsError(f"{key}: {file} is no text", hint="Write the secret into it as text.") from None
    if not text:
        raise SettingsError(f"{key}: {file} is empty", hint="Write the secret into it.")
    return text


def _table_of(key: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # its text quotes the line, which may be the secret
        raise SettingsError(f"{key} is not TOML", hint='Write lines like "fs.s3a.secret.key" = "...".') from None


def _from_folder(given: Any, folder: Path) -> Any:
    if isinstance(given, list | tuple):
        return [_from_folder(each, folder) for each in given]
    if not isinstance(given, str | Path) or str(given) in _NO_PATHS:
        return given
    text = str(given)
    if text.startswith("file:") and not text.startswith("file:/"):
        return f"file:{quote(str(folder))}/{text.removeprefix('file:')}"
    return str(folder / text) if isinstance(given, Path) or ":" not in text else given


_SERVICE_LINK = re.compile(r".+(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made a variable for a Service of the pod's namespace, whose name may begin like ours.

    `TAILRACE_GATEWAY_PORT` is one as an address only: as a number it is `TAILRACE_GATEWAY__PORT`, misspelt.
    """
    is_address = name.endswith("_PORT") and _SERVICE_URL.fullmatch(value)
    return bool(is_address or _SERVICE_LINK.fullmatch(name))
