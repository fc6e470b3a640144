"""What values a setting takes, in words: for `tailrace settings`, the documentation and error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

_CHOICES = re.compile(r"\^\(([\w|-]+)\)\$")
_NAMES = {str: "text", SecretStr: "secret", bool: "true or false", int: "integer", float: "number", Path: "path"}
STREAM_NAME = "^[^~]"
IDENTIFIER = "^[A-Za-z_][A-Za-z0-9_]*$"
NAMESPACE = r"^[^.]+\..+"
HOST_AND_PORT = r"^(\[[^\]]+\]|[^:\s]+):\d+$"
CONTRACTS = "^(evolve|json|variant|strict)$"
HEAP = "^[1-9][0-9]*[kmgtKMGT]$"
MASTER = r"^(local(\[(\*|[1-9][0-9]*)(, *[1-9][0-9]*)?\])?|local-cluster\[.+\]|yarn|[a-z0-9]+://.+)$"
_IN_WORDS = {
    NAMESPACE: "must be db.collection",
    HOST_AND_PORT: "must be host:port",
    HEAP: "must be a size such as 512m or 2g",
    MASTER: "must be a Spark master such as local[*], yarn, spark://host:7077, k8s://https://host or sc://host",
    STREAM_NAME: "must not be empty or begin with ~",
    IDENTIFIER: "must be letters, digits and underscores, and not begin with a digit",
}
_PLAIN = (
    (re.compile(r"(Input|String|Value) should "), "must "),
    (re.compile(r"Field required"), "is missing"),
    (re.compile(r"a valid tuple"), "a list"),
    (re.compile(r"a valid dictionary( or instance of \w+)?"), "a table"),
    (re.compile(r"a valid string"), "text"),
    (re.compile(r"items after validation, not \d+"), "characters"),
)
"""What pydantic says, and how someone says it who writes settings."""
_URL = re.compile(r"(?!mongodb)[a-z][a-z0-9+.-]*://")
_LARGEST_NUMBER: Final = 1_000_000_000
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def choices(pattern: str) -> list[str]:
    """Give the texts that a pattern of alternatives allows; none for any other pattern."""
    found = _CHOICES.fullmatch(pattern)
    return found[1].split("|") if found else []


def pattern_in_words(pattern: str) -> str:
    """Say what a text has to be that does not fit its pattern."""
    names = choices(pattern)
    return f"must be one of {', '.join(names)}" if names else _IN_WORDS.get(pattern, f"must match {pattern}")


def plain_reason(message: str) -> str:
    """Give pydantic's reason without its own words: `must be a valid integer`."""
    message = message.replace("Value error, ", "").partition(", unable to parse ")[0]
    for theirs, ours in _PLAIN:
        message = theirs.sub(ours, message)
    return message


def type_name(field: FieldInfo) -> str:
    """Say what a setting takes: its choices, or its kind with the bounds."""
    for rule in field.metadata:
        names = choices(getattr(rule, "pattern", None) or "")
        if names:
            return " | ".join(names)
    bounds = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(rule, name, None) is not None
    ]
    return " ".join([_name_of(field.annotation), *bounds])


def bounded(value: Any) -> Any:
    """Refuse numbers that are not finite, or so large that clocks and client libraries cannot hold them."""
    if isinstance(value, int | float) and not abs(value) <= _LARGEST_NUMBER:
        raise ValueError(f"must be at most {_LARGEST_NUMBER:,}")
    return value


def usable(value: Any) -> Any:
    """Refuse what no setting can be: a number without bounds, a URL that no library can take apart."""
    for each in value if isinstance(value, tuple) else (value,):
        text = each.get_secret_value() if isinstance(each, SecretStr) else each
        if isinstance(text, str) and _URL.match(text):
            try:
                urlsplit(text)
            except ValueError:
                raise ValueError("must be a URL; an address of IPv6 in it needs both brackets") from None
    return bounded(value)


def refuse_placeholder(token: SecretStr | None) -> SecretStr | None:
    """Refuse the token that a template came with: everybody can read it there."""
    if token is not None and token.get_secret_value().startswith("change-me"):
        raise ValueError("is still the placeholder of the template; make one with `openssl rand -hex 24`")
    return token


def http_address(address: SecretStr | None) -> SecretStr | None:
    """Refuse what is no address of an HTTP endpoint."""
    if address is not None:
        http_addresses((address.get_secret_value(),))
    return address


def http_addresses(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is no address of an HTTP endpoint."""
    for address in addresses:
        if not _is_http_address(address):
            raise ValueError("must be an address such as http://127.0.0.1:9464")
    return addresses


def _is_http_address(address: str) -> bool:
    parts = urlsplit(address)
    try:
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        return False


def mongodb_uris(uris: dict[str, str]) -> dict[str, str]:
    """Refuse what is no address of a MongoDB deployment; the value is not quoted, it may have a password."""
    from pymongo.errors import PyMongoError
    from pymongo.uri_parser import parse_uri

    for name, uri in uris.items():
        if not uri.startswith("mongodb+srv://"):  # would ask the DNS
            try:
                parse_uri(uri if "://" in uri else f"mongodb://{uri}")
            except (PyMongoError, ValueError):
                raise ValueError(f"the URI of {name} must be one such as mongodb://host:27017/") from None
    return uris


def one_of(pattern: str) -> Callable[[dict[str, str]], dict[str, str]]:
    """Refuse values of a table that a pattern of alternatives does not allow."""

    def checked(table: dict[str, str]) -> dict[str, str]:
        for name, value in table.items():
            if value not in choices(pattern):
                raise ValueError(f"{name} {pattern_in_words(pattern)}")
        return table

    return checked


def _name_of(kind: Any) -> str:
    if kind in _NAMES:
        return _NAMES[kind]
    arguments: Sequence[Any] = [each for each in get_args(kind) if each not in (NoneType, Ellipsis)]
    if get_origin(kind) is tuple:
        return f"list of {_name_of(arguments[0])}"
    if get_origin(kind) is dict:
        return "table of text"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "tables"
    return " or ".join(map(_name_of, arguments)) if arguments else str(kind)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
