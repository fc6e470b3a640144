"""Where a Kafka cluster is, as a URL says it; needs no client library.

Amazon MSK with IAM is `kafka://host:9098?sasl.mechanism=AWS_MSK_IAM`. The client library does not know this mechanism,
but Amazon's brokers also take OAUTHBEARER, with a signed request as its token; the library asks for the next one before
it ends. Credentials are found as AWS tools find them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

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
        try:
            options = dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else [])
        except ValueError:
            hint = "Options look like kafka://host:9092?compression.type=zstd&linger.ms=20."
            raise SettingsError(f"{masked(url)} has an option without a value", hint=hint) from None
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

    @classmethod
    def of(cls, servers: str) -> KafkaAddress:
        """Read `host:9092,host:9092`, or a URL."""
        return cls.parse(servers) if "://" in servers else cls(servers)

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


MECHANISM: Final = "AWS_MSK_IAM"
REGION: Final = "aws.region"
TOKEN_CALLBACK: Final = "oauth_cb"
"""The setting of Python's client that is no text: what gives tokens."""
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_region_in_host = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com").search


def with_iam(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Give the options of an address as the client library takes them; only those with IAM change."""
    if MECHANISM not in (options.get(name) for name in _MECHANISMS):
        return dict(options)
    rest = {name: value for name, value in options.items() if name not in (*_MECHANISMS, REGION)}
    token = partial(_token, options.get(REGION) or _region_of(servers))
    return {"security.protocol": "SASL_SSL", **rest, "sasl.mechanisms": "OAUTHBEARER", TOKEN_CALLBACK: token}


def _region_of(servers: str) -> str:
    found = _region_in_host(servers)
    if found is None:
        raise SettingsError(
            f"sasl.mechanism={MECHANISM} needs a region, and {servers} names none",
            hint=f"Append &{REGION}=eu-west-1 to the URL.",
        )
    return found[1]


def _token(region: str, _config: str) -> tuple[str, float]:
    """Sign a request; give it, and when it ends in seconds since 1970."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]

    try:
        token, milliseconds = MSKAuthTokenProvider.generate_auth_token(region)
    except (AttributeError, ValueError):  # what it makes of none
        raise ValueError("there are no AWS credentials: set AWS_PROFILE, or give the machine a role") from None
    return token, milliseconds / 1000
