"""When a client certificate that an address names is taken for a new one."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tailrace.certificate import ClientCertificates
from tailrace.stand.node import ThrowAwayCA

ADDRESSES = {
    "mongodb": "mongodb://h/?tlsCAFile={ca}&tlsCertificateKeyFile={own}",
    "kafka": "kafka://h:1?ssl.ca.location={ca}&ssl.certificate.location={own}&ssl.key.location={own}",
    "postgresql": "postgresql://h/d?sslrootcert={ca}&sslcert={own}&sslkey={own}",
    "redis": "rediss://h/0?ssl_ca_certs={ca}&ssl_certfile={own}&ssl_keyfile={own}",
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_what_is_whole_and_another_is_new_once(tmp_path: Path, kind: str) -> None:
    made = ThrowAwayCA.make(tmp_path)
    own, ca = tmp_path / "own.pem", made.ca_file
    shutil.copy(made.client_certificate_key_file, own)
    address = ADDRESSES[kind].format(ca=quote(str(ca), safe=""), own=quote(str(own), safe=""))
    certificates = ClientCertificates(["not a URL [", address])
    assert [certificates.poll() for _ in range(3)] == [False] * 3
    other = made.other_client_certificate_key_file.read_bytes()
    own.write_bytes(other[:500])
    assert [certificates.poll() for _ in range(3)] == [False] * 3, "half a file"
    own.unlink()
    assert [certificates.poll() for _ in range(3)] == [False] * 3, "about to be replaced"
    own.write_bytes(other)
    assert [certificates.poll() for _ in range(4)] == [False, True, False, False], "the same twice, and then once"
    ca.write_bytes(b"")
    assert [certificates.poll() for _ in range(3)] == [False] * 3
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    ca.write_bytes(ThrowAwayCA.make(strangers).ca_file.read_bytes())
    assert [certificates.poll() for _ in range(3)] == [False, True, False], "an authority"


def test_a_key_of_another_certificate_waits_for_its_own(tmp_path: Path) -> None:
    """As a certificate and its key are replaced one after the other."""
    made = ThrowAwayCA.make(tmp_path)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    first, second = (made.client_certificate_key_file.read_bytes(), made.other_client_certificate_key_file.read_bytes())

    def write(file: Path, pem: bytes, *, is_key: bool) -> None:
        end = pem.index(b"-----BEGIN CERTIFICATE")
        file.write_bytes(pem[:end] if is_key else pem[end:])

    write(certificate, first, is_key=False)
    write(key, first, is_key=True)
    names = f"ssl.certificate.location={quote(str(certificate))}&ssl.key.location={quote(str(key))}"
    certificates = ClientCertificates([f"kafka://h:1?{names}"])
    write(certificate, second, is_key=False)
    assert [certificates.poll() for _ in range(3)] == [False] * 3
    write(key, second, is_key=True)
    assert [certificates.poll() for _ in range(3)] == [False, True, False]
