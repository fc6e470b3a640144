"""Where a Kafka cluster is, as a URL says it; needs no client library."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tailrace.capture.kafka_iam import with_iam
from tailrace.errors import SettingsError
from tailrace.settings import masked

_log = logging.getLogger("tailrace.kafka")
_MS_BETWEEN_CONNECTIONS = 1_000
"""By default the client library waits up to ten seconds before it tries again a broker that was away."""


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """A cluster, and what else its URL says: `kafka://user:password@host:9092,host:9092/topic?linger.ms=5`."""

    servers: str
    topic: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the client library, under its own names."""

    @classmethod
    def parse(cls, url: str) -> KafkaAddress:
        """Read a URL; its parameters are passed to the client library."""
        parts = urlsplit(url)
        if parts.scheme != "kafka" or not parts.netloc:
            raise SettingsError(f"{masked(url)} is not a Kafka URL", hint="It looks like kafka://host:9092/topic.")
        credentials, _, servers = parts.netloc.rpartition("@")
        options = dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else [])
        if credentials:
            user, _, password = credentials.partition(":")
            options = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": unquote(user),
                "sasl.password": unquote(password),
                **options,
            }
        return cls(servers, parts.path.strip("/") or None, options)

    def config(self, **settings: Any) -> dict[str, Any]:
        """Give the settings of a client; those of the URL win, and `linger_ms` stands for linger.ms."""
        own = {name.replace("_", "."): value for name, value in settings.items()}
        if "reconnect.backoff.ms" not in self.options:  # the library refuses a longest wait below the first one
            own = {"reconnect.backoff.max.ms": _MS_BETWEEN_CONNECTIONS, **own}
        return {
            "bootstrap.servers": self.servers,
            "log_level": 4,
            "logger": _log,
            **own,
            **with_iam(self.servers, self.options),
        }
