"""The certificate of a server of ours, taken anew when its file changes: it is renewed without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

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
