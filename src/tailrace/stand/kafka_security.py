"""A listener of a Kafka broker for TLS and SASL: which user it knows, and by which certificate it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailrace.stand.node import ThrowAwayCA

_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """One user, who may come by the SASL mechanisms PLAIN and SCRAM-SHA-512."""

    certificates: ThrowAwayCA
    user: str
    password: str

    @property
    def credentials(self) -> list[str]:
        """What is written into the log folder when it is formatted: SCRAM's users are kept by the cluster."""
        return ["--add-scram", f"SCRAM-SHA-512=[name={self.user},password={self.password}]"]

    def properties(self, folder: Path, listener: str) -> Mapping[str, object]:
        """Give the settings of the broker, and write the file that it needs."""
        key_store = folder / "broker.pem"
        key_store.write_bytes(_in_pkcs8(self.certificates.certificate_key_file.read_bytes()))
        prefix = f"listener.name.{listener}"
        plain = f'{_LOGIN}.plain.PlainLoginModule required user_{self.user}="{self.password}";'
        return {
            f"{prefix}.ssl.keystore.type": "PEM",
            f"{prefix}.ssl.keystore.location": key_store,
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{prefix}.plain.sasl.jaas.config": plain,
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        }


def _in_pkcs8(key_and_chain: bytes) -> bytes:
    """Write the key as Java reads it; the certificates behind it stay as they are."""
    from cryptography.hazmat.primitives import serialization

    end = key_and_chain.index(b"-----BEGIN CERTIFICATE-----")
    key = serialization.load_pem_private_key(key_and_chain[:end], None)
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return written + key_and_chain[end:]
