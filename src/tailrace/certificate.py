"""Certificates that are renewed without a restart: a server's of ours, and those that addresses of others name."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from tailrace.logs import get_logger

_log = get_logger("tailrace.certificate")


class RenewedCertificate:
    """A TLS context, and the files that it was made of.

    Handshakes that begin after a renewal see the new certificate; connections that are open stay. Authorities of
    clients are added, never taken away: that needs a restart.
    """

    def __init__(
        self, context: ssl.SSLContext, certificate: Path, key: Path | None = None, authorities: Path | None = None
    ) -> None:
        self._context = context
        self._certificate = certificate
        self._key = key
        self._authorities = authorities
        self._known = self._stamp()

    def poll(self) -> None:
        """Load the files if they have changed; what cannot be used is reported, and changes nothing."""
        found = self._stamp()
        if found == self._known:
            return
        self._known = found
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # half a file must not spoil what is in use
            self._load(self._context)
        except (OSError, ssl.SSLError) as error:
            _log.warning("certificate_unusable", file=str(self._certificate), error=str(error))
        else:
            _log.info("certificate_renewed", file=str(self._certificate))

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._certificate, self._key)
        if self._authorities is not None:
            context.load_verify_locations(self._authorities)

    def _stamp(self) -> list[tuple[int, int, int] | None]:
        """Give what changes when a file is written, replaced, or linked to another, as Kubernetes does."""
        found: list[tuple[int, int, int] | None] = []
        for file in (self._certificate, self._key, self._authorities):
            try:
                stat = file.stat() if file is not None else None
            except OSError:
                stat = None
            found.append(None if stat is None else (stat.st_mtime_ns, stat.st_ino, stat.st_size))
        return found


_PAIRS: Final = (
    ("tlscertificatekeyfile", "tlscertificatekeyfile", "tlscertificatekeyfilepassword"),
    ("ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    ("sslcert", "sslkey", "sslpassword"),
    ("ssl_certfile", "ssl_keyfile", "ssl_password"),
)
"""A certificate, its key and the key's password, as addresses of MongoDB, Kafka, PostgreSQL and Redis name them."""
_AUTHORITIES: Final = ("tlscafile", "ssl.ca.location", "sslrootcert", "ssl_ca_certs")
_OTHERS: Final = ("tlscrlfile", "ssl.crl.location", "sslcrl", "ssl.keystore.location")
_FILES: Final = frozenset({name for pair in _PAIRS for name in pair[:2]} | {*_AUTHORITIES, *_OTHERS})


class ClientCertificates:
    """The files of certificates, keys and authorities that addresses name, and what was in them when it was made.

    Client libraries read them when they connect first; so a caller connects anew when there is a new one.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._named = [named for address in addresses if (named := _options(address)).keys() & _FILES]
        self._in_use = self._latest = self._contents()
        self._refused: Mapping[str, str] | None = None

    def poll(self) -> bool:
        """Whether there are others now, which can be used.

        Files are replaced one after the other: they have to be the same twice, and half a pair is reported and waits.
        """
        found = self._contents()
        is_stable, self._latest = found == self._latest, found
        if not is_stable or found in (self._in_use, self._refused):
            return False
        problem = next(filter(None, map(_problem, self._named)), None)
        if problem is None:
            self._in_use = found
        else:
            self._refused = found
            _log.warning("certificate_unusable", error=problem)
        return problem is None

    def _contents(self) -> Mapping[str, str]:
        """Digests by file; a file that cannot be read has none."""
        found: dict[str, str] = {}
        for named in self._named:
            for option in named.keys() & _FILES:
                try:
                    found[named[option]] = hashlib.sha256(Path(named[option]).read_bytes()).hexdigest()
                except (OSError, ValueError):
                    continue
        return found


def _options(address: str) -> Mapping[str, str]:
    """The options of an address, which may be no URL at all."""
    try:
        return {name.lower(): value for name, value in parse_qsl(urlsplit(address).query)}
    except ValueError:
        return {}


def _problem(named: Mapping[str, str]) -> str | None:
    """What is wrong with the certificates that an address names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for certificate, key, password in _PAIRS:
        if certificate not in named:
            continue
        given = named.get(password, "")  # never None: OpenSSL would ask the terminal
        try:
            context.load_cert_chain(named[certificate], named.get(key), lambda given=given: given)
        except (OSError, ValueError) as error:
            return f"{named[certificate]}: {error}"
    for name in _AUTHORITIES:
        file = Path(named[name]) if name in named else None
        if file is None or not file.is_file():  # a word such as `system`, or a folder
            continue
        try:
            context.load_verify_locations(file)
        except (OSError, ValueError) as error:
            return f"{file}: {error}"
    return None
