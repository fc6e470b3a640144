"""Jars from Maven Central, fetched by Apache Ivy and verified by checksum.

Ivy itself is one of pyspark's jars, so a machine needs neither Maven nor a JDK. It runs with settings of its own, since
a half-filled local Maven repository breaks its default chain. The jars and everything they depend on must
be exactly the ones that were pinned: a list in the format of `sha256sum`. To make such a list for other
coordinates:

    python -m tailrace.stand.maven org.apache.kafka:kafka_2.13:4.3.1 ... > kafka.sha256
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tailrace.errors import ChecksumMismatch, DownloadFailed, MissingExtra
from tailrace.owned import GuardedProcess, OwnedThread
from tailrace.stand.cache import made_once, report_progress, sha256_of
from tailrace.stand.java import java_home

_ATTEMPTS = 3
_SECONDS_TO_FETCH = 900
_JARS_PER_LINE = 10
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0">
  <info organisation="tailrace" module="stand"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_EXTRA = "http://ant.apache.org/ivy/extra"
"""The namespace of Ivy's own XML; nothing is fetched from there."""
_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"


def fetch_jars(
    name: str, coordinates: Sequence[str], checksums: Mapping[str, str], overrides: Sequence[str] = ()
) -> list[Path]:
    """The jars of these `group:artifact:version` and all that they need; fetched on the first call.

    Behind a version may be a `:classifier`: that jar is fetched alone. `overrides` has the versions of what they need
    that are fetched in place of those they ask for.
    `checksums` maps each jar's file name to its SHA-256. Other pins make another folder in the cache.
    """
    pins = repr((sorted([*coordinates, *overrides]), sorted(checksums.items())))
    folder = f"{name}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"

    def fill(target: Path) -> None:
        report_progress(f"fetching {name}: {len(checksums)} jars")
        resolve(coordinates, target, overrides, expected=len(checksums))
        _verify(target, checksums)

    return sorted(made_once(folder, fill).glob("*.jar"))


def fetch_archive(
    coordinate: str, classifier: str, extension: str, sha256: str, unpack: Callable[[Path, Path], None]
) -> Path:
    """The folder with the unpacked content of one archive of `group:artifact:version`; fetched on the first call."""
    _, name, revision = coordinate.split(":")

    def fill(target: Path) -> None:
        report_progress(f"fetching {name} {revision}")
        dependency = _dependencies([f"{coordinate}:{classifier}"], extension)
        with tempfile.TemporaryDirectory(prefix="tailrace-ivy-") as folder:
            found = _fetched(Path(folder), dependency, coordinate, None)
            _verify(found, {f"{name}-{revision}-{classifier}.{extension}": sha256})
            unpack(next(found.iterdir()), target)

    return made_once(f"{name}-{revision}-{sha256[:12]}", fill)


def read_checksums(path: Path) -> dict[str, str]:
    """A list in the format of `sha256sum`, as a map from file name to checksum."""
    pairs = (line.split() for line in path.read_text().splitlines() if line.strip())
    return {name: checksum for checksum, name in pairs}


def resolve(
    coordinates: Sequence[str], target: Path, overrides: Sequence[str] = (), *, expected: int | None = None
) -> None:
    """Let Ivy put the jars into `target`, unverified, reporting its progress out of `expected` jars."""
    with tempfile.TemporaryDirectory(prefix="tailrace-ivy-") as folder:
        dependencies = "\n".join([_dependencies(coordinates), *map(_override, overrides)])
        jars = _fetched(Path(folder), dependencies, ", ".join(coordinates), expected)
        for jar in jars.iterdir():
            shutil.move(jar, target / jar.name)


def _fetched(work: Path, dependencies: str, names: str, expected: int | None) -> Path:
    """Let Ivy fetch dependencies, and give the folder with the files."""
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(_MODULE.format(dependencies=dependencies))
    for attempt in range(1, _ATTEMPTS + 1):
        code, last_line = _run_ivy(work, expected)
        if code == 0:
            break
        if attempt == _ATTEMPTS:
            raise DownloadFailed(f"Ivy could not fetch {names}: {last_line}")
    return work / "jars"


def _dependencies(coordinates: Iterable[str], extension: str = "jar") -> str:
    lines = []
    for coordinate in coordinates:
        organisation, name, revision, *classifier = (quoteattr(part) for part in coordinate.split(":"))
        start = f'    <dependency org={organisation} name={name} rev={revision} conf="default->default"'
        if not classifier:
            lines.append(f"{start}/>")
            continue
        kind = f"type={quoteattr(extension)} ext={quoteattr(extension)}"
        artifact = f'<artifact name={name} {kind} e:classifier={classifier[0]} xmlns:e="{_EXTRA}"/>'
        lines.append(f'{start} transitive="false">{artifact}</dependency>')
    return "\n".join(lines)


def _override(coordinate: str) -> str:
    organisation, name, revision = (quoteattr(part) for part in coordinate.split(":"))
    return f"    <override org={organisation} module={name} rev={revision}/>"


def _run_ivy(work: Path, expected: int | None) -> tuple[int, str]:
    """Run Ivy once; its exit code and the last line it printed. What one run fetched, the next one keeps."""
    options = ["-settings", "settings.xml", "-cache", "cache", "-ivy", "ivy.xml", "-types", "jar", "bundle", "tar.gz"]
    java = str(java_home() / "bin" / "java")
    with GuardedProcess[str](
        [java, "-Xmx256m", "-jar", str(_ivy_jar()), *options, "-retrieve", f"jars/{_PATTERN}"],
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ivy:
        has_ended = threading.Event()

        def end_when_late() -> None:
            if not has_ended.wait(_SECONDS_TO_FETCH):
                ivy.kill()

        OwnedThread(end_when_late, name="ivy-deadline").start()
        try:
            last_line = _follow(ivy.stdout or (), expected)
            return ivy.wait(), last_line
        finally:
            has_ended.set()
            ivy.kill()


def _follow(output: Iterable[str], expected: int | None) -> str:
    """Report Ivy's progress as it prints it; returns the last line."""
    needed = fetched = 0
    last_line = ""
    for line in filter(None, map(str.strip, output)):
        last_line = line
        if line.startswith("found "):
            needed += 1
            _report("needs", needed, None)
        elif line.startswith("[SUCCESSFUL ]"):
            fetched += 1
            _report("fetched", fetched, expected)
    return last_line


def _report(what: str, count: int, expected: int | None) -> None:
    """Say how far it is, at every tenth jar and at the last."""
    if count % _JARS_PER_LINE == 0 or count == expected:
        report_progress(f"  {what} {count}{f' of {expected}' if expected else ''} jars")


def _ivy_jar() -> Path:
    """Ivy, which pyspark carries."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.origin:
        raise MissingExtra("fetching jars needs pyspark", hint="Install it with: pip install 'tailrace[spark]'")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))


def _verify(folder: Path, checksums: Mapping[str, str]) -> None:
    found = {jar.name: sha256_of(jar) for jar in folder.iterdir()}
    if found == checksums:
        return
    differ = sorted(name for name in found.keys() | checksums.keys() if found.get(name) != checksums.get(name))
    raise ChecksumMismatch(f"not the pinned files: {', '.join(differ)}", files=differ)


def _print_checksums(coordinates: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        resolve(coordinates, Path(folder))
        for jar in sorted(Path(folder).iterdir()):
            print(f"{sha256_of(jar)}  {jar.name}")


if __name__ == "__main__":
    _print_checksums(sys.argv[1:])
