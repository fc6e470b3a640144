"""A throw-away certificate authority, so that servers and clients can be tested over TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import MissingExtra


@dataclass(frozen=True, slots=True)
class ThrowAwayCA:
    """The files that a server and its clients need: the authority, and a certificate with its key for each side."""

    ca_file: Path
    certificate_key_file: Path
    client_certificate_key_file: Path

    @classmethod
    def make(cls, folder: Path) -> ThrowAwayCA:
        """Make an authority and a certificate for loopback in the folder."""
        try:
            import trustme
        except ImportError as error:
            raise MissingExtra("TLS needs trustme", hint="pip install 'tailrace[stand]'") from error
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        client = authority.issue_cert(common_name="client", organization_name="clients")
        made = cls(folder / "ca.pem", folder / "server.pem", folder / "client.pem")
        authority.cert_pem.write_to_path(str(made.ca_file))
        certificate.private_key_and_cert_chain_pem.write_to_path(str(made.certificate_key_file))
        client.private_key_and_cert_chain_pem.write_to_path(str(made.client_certificate_key_file))
        return made
