"""What is wrong with the settings of the Spark jobs, as far as that shows before a JVM is started.

The verbs that start one ask first, and `doctor` asks the same. What only Spark knows is in `spark.failures`.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tailrace.errors import SettingsError
from tailrace.settings import Settings, SparkSettings

_KINDS: Final = (
    (re.compile(r".*(\.memory|[mM]emoryOverhead|\.maxResultSize)"), r"\d+([kmgtp]?b?)", "a size such as 512m or 2g"),
    (re.compile(r".*\.enabled"), "true|false", "true or false"),
    (re.compile(r"spark\.(sql\.shuffle\.partitions|(driver|executor)\.cores|executor\.instances)"), r"\d+", "a number"),
)
"""What the ends of Spark's names say about their values."""
_NO_FOLDERS: Final = re.compile(r"(kafka|redis|rediss|https?|mongodb|postgres|postgresql)://|stdout:")
_WORDS_OF_CAPTURE: Final = ("topic", "stop")


def check_spark(settings: SparkSettings) -> None:
    """Raise, if the session cannot be made as it is configured."""
    for jar in settings.jars:
        _check_jar("spark.jars", jar)
    for key, value in settings.config.items():
        if not key or re.search(r"[\s=]", key):
            raise SettingsError(f"spark.config: {key!r} is not the name of a property", hint=_NAMES)
        for problem in _problems(key, value):
            raise SettingsError(f"spark.config: {key} {problem}", hint="Spark's configuration page has the values.")
    for jar in _local_jars(settings.config):
        _check_jar("spark.config: spark.jars", jar)


_NAMES: Final = "Write it as Spark's configuration page has it, in quotes."


def _problems(key: str, value: str) -> Iterator[str]:
    for name, values, words in _KINDS:
        if name.fullmatch(key) and not re.fullmatch(values, value.strip(), re.IGNORECASE):
            yield f"must be {words}"
    if key.endswith(".extraJavaOptions") and "-Xmx" in value:
        yield "must not set the heap, which is spark.driver_memory or spark.executor.memory"


def _local_jars(config: Mapping[str, str]) -> Iterator[Path]:
    """Give the jars of Spark's own property that are files of this machine."""
    for given in filter(None, config.get("spark.jars", "").split(",")):
        jar = given.strip().removeprefix("file://").removeprefix("file:")
        if ":" not in jar and "*" not in jar:
            yield Path(jar)


def _check_jar(key: str, jar: Path) -> None:
    """Raise what keeps a jar from being used; Spark only warns, and fails later for want of a class."""
    hint = "Name the files themselves; without spark.jars the connectors are downloaded."
    if not jar.is_file():
        raise SettingsError(f"{key}: {jar} {'is not a file' if jar.exists() else 'does not exist'}", hint=hint)
    if not os.access(jar, os.R_OK):
        raise SettingsError(f"{key}: {jar} may not be read", hint="Let this user read it.")
    if not zipfile.is_zipfile(jar):
        raise SettingsError(f"{key}: {jar} is not a jar", hint=hint)


def check_feature_dead_letters(settings: Settings) -> None:
    """Raise, if records that cannot be read could not be written where `features.dead_letters` says."""
    check_folder("features.dead_letters", settings.features.dead_letters)


def check_folder(key: str, location: str) -> None:
    """Raise, if a job could not write to a folder; one that is elsewhere is not asked."""
    if not location.strip() or location in _WORDS_OF_CAPTURE or _NO_FOLDERS.match(location):
        hint = "It looks like dead-letters, /var/lib/dead-letters or s3a://bucket/dead-letters."
        raise SettingsError(f"{key}: {location or 'an empty text'} is not a folder", hint=hint)
    path = _local_path(location)
    if path is None:
        return
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise SettingsError(f"{key}: {there} is a file, not a folder", hint="Name a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"{key}: {there} may not be written", hint="Let this user write there.")


def _local_path(location: str) -> Path | None:
    if location.startswith("file:"):
        return Path("/" + unquote(location.removeprefix("file:")).lstrip("/"))
    return None if ":" in location else Path(location).absolute()
