"""Who may log in to a broker over TLS: by a password, by SCRAM, by a certificate or by a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.stand.node import ThrowAwayCA

_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """One user, who may come by PLAIN, SCRAM-SHA-512, a certificate, or a token of OAUTHBEARER, and may do everything.

    Others come by PLAIN, and may do what ACLs allow them; so does everybody whose name a token or a certificate says.
    """

    certificates: ThrowAwayCA
    user: str
    password: str = field(repr=False)
    others: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords by name."""
    jwks_url: str | None = None
    """Where the keys are that tokens are signed with; without, nobody comes by a token."""

    @property
    def java_options(self) -> list[str]:
        """What the broker's JVM has to know beforehand: since 4.0 it asks no address that is not named there."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks_url}"] if self.jwks_url else []

    @property
    def credentials(self) -> list[str]:
        """What is written into the log folder when it is formatted: SCRAM's users are kept by the cluster."""
        return ["--add-scram", f"SCRAM-SHA-512=[name={self.user},password={self.password}]"]

    def properties(self, folder: Path, by_sasl: str, by_certificate: str) -> Mapping[str, object]:
        """Give the settings of the broker for its two listeners, and write the file that it needs.

        Who comes without TLS is the broker itself, or a test that gives ACLs.
        """
        key_store = folder / "broker.pem"
        key_store.write_bytes(in_pkcs8(self.certificates.certificate_key_file.read_bytes()))
        sasl, mutual = f"listener.name.{by_sasl}", f"listener.name.{by_certificate}"
        users = " ".join(f'user_{name}="{word}"' for name, word in {self.user: self.password, **self.others}.items())
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{self.user}",
            **{f"{each}.ssl.keystore.type": "PEM" for each in (sasl, mutual)},
            **{f"{each}.ssl.keystore.location": key_store for each in (sasl, mutual)},
            f"{mutual}.ssl.truststore.type": "PEM",
            f"{mutual}.ssl.truststore.location": self.certificates.ca_file,
            f"{mutual}.ssl.client.auth": "required",
            f"{mutual}.ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
            f"{sasl}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512" + (",OAUTHBEARER" if self.jwks_url else ""),
            f"{sasl}.plain.sasl.jaas.config": f"{_LOGIN}.plain.PlainLoginModule required {users};",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            **(self._tokens(f"{sasl}.oauthbearer") if self.jwks_url else {}),
        }

    def _tokens(self, prefix: str) -> Mapping[str, object]:
        """Check the signature, the audience and the time of each token; `sub` is the user."""
        module = f"{_LOGIN}.oauthbearer"
        return {
            f"{prefix}.sasl.jaas.config": f"{module}.OAuthBearerLoginModule required;",
            f"{prefix}.sasl.server.callback.handler.class": f"{module}.OAuthBearerValidatorCallbackHandler",
            f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": self.jwks_url,
            f"{prefix}.sasl.oauthbearer.expected.audience": "kafka",
            f"{prefix}.connections.max.reauth.ms": 3_600_000,  # who stays has to show a new token when the old one ends
        }


def in_pkcs8(key_and_chain: bytes) -> bytes:
    """Write the key as Java reads it; the certificates behind it stay as they are."""
    from cryptography.hazmat.primitives import serialization

    end = key_and_chain.index(b"-----BEGIN CERTIFICATE-----")
    key = serialization.load_pem_private_key(key_and_chain[:end], None)
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return written + key_and_chain[end:]
