"""Kafka for Spark: the addresses that the producer takes, as options of Spark's source, whose client is Java's.

The producer's client library and Java's name the same things differently. Here is what differs; every other setting of
an address is given on under its own name. What is in a file is read here, since tasks on other machines lack the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tailrace.capture.kafka_address import MECHANISM, REGION, KafkaAddress
from tailrace.errors import SettingsError

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_LOGIN: Final = {
    "sasl.username", "sasl.password", "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope", REGION,
}  # fmt: skip
_IAM: Final = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": MECHANISM,
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
"""What Amazon's jar `software.amazon.msk:aws-msk-iam-auth` takes."""
_TLS: Final = {
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location",
    "ssl.key.pem", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
}  # fmt: skip
_PKCS8: Final = re.compile("-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")


def kafka_options(servers: str) -> dict[str, str]:
    """Give the options of Spark's Kafka source for `host:9092,host:9092` or a URL such as the producer's sink has."""
    address = KafkaAddress.of(servers)
    given = address.options
    other = {name: value for name, value in given.items() if name not in _LOGIN | _TLS}
    java = {"bootstrap.servers": address.servers, **other, **_login(given), **_tls(given)}
    return {f"kafka.{name}": value for name, value in java.items()}


def _login(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    if mechanism == "OAUTHBEARER":
        return _oauth(given)
    if mechanism == MECHANISM:
        return _IAM
    if mechanism not in _MODULES:
        hint = f"Choose {', '.join(_MODULES)}, OAUTHBEARER or {MECHANISM}."
        raise SettingsError(f"Spark cannot log in to Kafka by {mechanism}", hint=hint)
    login = {"username": given.get("sasl.username", ""), "password": given.get("sasl.password", "")}
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(_MODULES[mechanism], login)}


def _oauth(given: Mapping[str, str]) -> dict[str, str]:
    names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
    login = {ours: given[key] for ours, name in names.items() if (key := f"sasl.oauthbearer.{name}") in given}
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": _jaas(f"{_OAUTH}.OAuthBearerLoginModule", login),
    }


def _jaas(module: str, login: Mapping[str, str]) -> str:
    quoted = (f'{name}="{_escaped(value)}"' for name, value in login.items())
    return f"{module} required {' '.join(quoted)};"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _tls(given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    if authority := _pem(given, "ca"):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    if certificate := _pem(given, "certificate"):
        key = _pem(given, "key") or certificate
        if "PRIVATE KEY-----" in key and not _PKCS8.search(key):
            raise SettingsError(
                "ssl.key: Java reads keys of PKCS #8 alone, and this is none",
                hint="Convert it with `openssl pkcs8 -topk8 -nocrypt -in key.pem`.",
            )
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    return options


def _pem(given: Mapping[str, str], name: str) -> str | None:
    text, location = given.get(f"ssl.{name}.pem"), given.get(f"ssl.{name}.location")
    if text is not None or location is None:
        return text
    try:
        return Path(location).read_text()
    except OSError as error:
        raise SettingsError(f"ssl.{name}.location: cannot read {location}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"ssl.{name}.location: {location} is not PEM", hint="Name a file of text.") from None
