"""A schema registry that speaks Confluent's API: subjects, versions and what it says of compatibility.

Every answer has one of four meanings: it is what was asked for; the registry refuses a schema (`Incompatible`); it may
answer otherwise later (`SinkUnavailable`, which is tried again); somebody has to change something first
(`SettingsError`, which is not).
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import orjson

from tailrace.errors import SettingsError, SinkUnavailable, TailraceError
from tailrace.http_client import connection_to
from tailrace.masking import masked, shown_url

_SECONDS_TO_ANSWER: Final = 15.0
_SECONDS_FOR_A_BODY: Final = 60.0
_LARGEST_ANSWER: Final = 16 * 2**20
_PART: Final = 2**16
_LARGEST_ID: Final = 2**31 - 1
"""Records have four bytes for it, which consumers in Java read as a signed number."""
_LONGEST_MESSAGE: Final = 300
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _TOO_LARGE, _INVALID = 401, 403, 404, 409, 413, 422
_PASSING: Final = (408, 425, 429)
"""Statuses below 500 after which the same request may succeed later."""
_INVALID_SCHEMA: Final = (None, _INVALID, 42201, 44201, 42209)
"""Codes of 422 that are about the schema: invalid, or too large; others are about the subject and its settings."""
_ADDRESS_HINT: Final = "Give its path in registry.url too: /apis/ccompat/v7 for Apicurio, nothing for Confluent."


class Incompatible(Exception):
    """The registry refuses a schema: those who read the subject could not bear it."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a registry answered."""

    status: int
    body: Any
    """Its JSON; None where it is none."""
    location: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the registry did what it was asked for."""
        return 200 <= self.status < 300

    @property
    def code(self) -> int | None:
        """The code of the registry's own error, such as 40401."""
        found = self.body.get("error_code") if isinstance(self.body, dict) else None
        return found if isinstance(found, int) else None

    @property
    def is_about_a_subject(self) -> bool:
        """Whether the subject or its version is what was not found, and not the path of the API."""
        return self.status == _NOT_FOUND and self.code is not None and self.code // 100 == _NOT_FOUND

    @property
    def message(self) -> str:
        """What the registry says of its error, in one line."""
        found = self.body.get("message") if isinstance(self.body, dict) else None
        return masked(" ".join(found.split()))[:_LONGEST_MESSAGE] if isinstance(found, str) else ""

    @property
    def shown(self) -> str:
        """The status, with the registry's own code and words."""
        code = "" if self.code in (None, self.status) else f", code {self.code}"
        return f"HTTP {self.status}{code}{f': {self.message}' if self.message else ''}"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Asked when a schema is first used or has grown, never for a single record."""

    url: str
    """`http(s)://user:password@host:port/path`; the path is the registry's own, such as `/apis/ccompat/v7`."""
    compatibility: str = "BACKWARD"

    def check(self) -> None:
        """Ask what every registry knows, to see whether there is one at this address."""
        if "compatibilityLevel" not in self._expected(self._ask("GET", "/config")):
            raise self._no_registry("the answer has no compatibilityLevel")

    def latest(self, subject: str) -> tuple[int, str] | None:
        """Give the id and text of a subject's newest schema; None when it has none."""
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        if answer.is_about_a_subject:
            return None
        found = self._expected(answer)
        schema = found.get("schema")
        if not isinstance(schema, str):
            raise self._no_registry("the answer has no schema")
        return self._id(found), schema

    def register(self, subject: str, schema: str, kind: str, *, is_first: bool) -> int:
        """Make a schema the newest of a subject and give its id; Incompatible when the registry refuses it."""
        name = quote(subject, safe="")
        has_level = not is_first or self._has_set_level(name)
        body = {"schema": schema, **({} if kind == "AVRO" else {"schemaType": kind})}
        answer = self._ask("POST", f"/subjects/{name}/versions", body)
        if answer.status in (_CONFLICT, _TOO_LARGE) or (answer.status == _INVALID and answer.code in _INVALID_SCHEMA):
            raise Incompatible(answer.message or answer.shown)
        number = self._id(self._expected(answer))
        if not has_level and not self._has_set_level(name):
            raise self._away(f"does not know the subject {subject} that it has just made")
        return number

    def _has_set_level(self, name: str) -> bool:
        """Set the compatibility of a subject; some registries do not know one without a schema."""
        answer = self._ask("PUT", f"/config/{name}", {"compatibility": self.compatibility})
        if not answer.is_success and not answer.is_about_a_subject:
            raise self._refused(answer)
        return answer.is_success

    def _expected(self, answer: _Answer) -> Mapping[str, Any]:
        """Give the object that an answer holds."""
        if not answer.is_success:
            raise self._refused(answer)
        if not isinstance(answer.body, dict):
            raise self._no_registry("the answer is no JSON object")
        return answer.body

    def _id(self, found: Mapping[str, Any]) -> int:
        number = found.get("id")
        if type(number) is not int:
            raise self._no_registry("the answer has no id that is a number")
        if not 0 <= number <= _LARGEST_ID:
            raise SettingsError(
                f"the schema registry at {self._shown} gives the id {number}, and records have four bytes for it",
                hint="Have the registry count its ids from 1: Apicurio's contentId, not its globalId.",
            )
        return number

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> _Answer:
        """Give an answer that is about the request; raises where every request would be answered alike."""
        try:
            answer = self._exchange(method, path, body)
        except ssl.SSLCertVerificationError as error:
            raise SettingsError(
                f"the certificate of the schema registry at {self._shown} is not trusted: {error.verify_message}",
                hint="Name the file of its authority in SSL_CERT_FILE, and use a host name of the certificate.",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise self._away(f"does not answer: {cause}") from None
        if answer.status in _PASSING or answer.status >= 500:
            raise self._away(f"answers with {answer.shown}")
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise SettingsError(
                f"the schema registry at {self._shown} refuses us: {answer.shown}",
                hint="Put user and password into registry.url, and let that user read and write the subjects.",
            )
        if 300 <= answer.status < 400:
            to = f" to {shown_url(answer.location)}" if answer.location else ""
            raise SettingsError(
                f"the schema registry at {self._shown} redirects{to} (HTTP {answer.status})",
                hint="Set registry.url to the address of the registry itself; redirects are not followed.",
            )
        return answer

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> _Answer:
        try:
            parts = urlsplit(self.url)
            connection = connection_to(self.url, _SECONDS_TO_ANSWER)
            headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
            if parts.username:
                pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            text = None if body is None else json.dumps(body)
        except (ValueError, SettingsError):
            raise self._no_address() from None
        try:
            connection.request(method, parts.path.rstrip("/") + path, text, headers)
            response = connection.getresponse()
            is_framed = response.chunked or response.length is not None
            content = self._content(response)
        except (UnicodeError, http.client.InvalidURL):
            raise self._no_address() from None
        finally:
            connection.close()
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            if response.status < 300 and not is_framed:  # the connection may have ended before the answer did
                raise http.client.IncompleteRead(b"") from None
            found = None
        return _Answer(response.status, found, response.headers.get("Location"))

    def _content(self, response: http.client.HTTPResponse) -> bytes:
        """Read a body of bounded size in bounded time."""
        content = bytearray()
        deadline = time.monotonic() + _SECONDS_FOR_A_BODY
        while part := response.read1(_PART):
            content += part
            if len(content) > _LARGEST_ANSWER:
                raise self._no_registry(f"the answer has more than {_LARGEST_ANSWER >> 20} MiB")
            if time.monotonic() > deadline:
                raise TimeoutError
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return bytes(content)

    def _refused(self, answer: _Answer) -> TailraceError:
        """Give the error of an answer that no repetition would change."""
        if answer.status == _NOT_FOUND and not answer.is_about_a_subject:
            return self._no_registry(answer.shown)
        hint = "Change what the registry names, on its side or in [registry], and start again."
        if answer.status == _INVALID:
            hint = "Allow writes in the registry (PUT /mode, READWRITE), and check registry.compatibility."
        return SettingsError(f"the schema registry at {self._shown} refuses the request: {answer.shown}", hint=hint)

    def _no_registry(self, cause: str) -> SettingsError:
        return SettingsError(f"{self._shown} is not the API of a schema registry: {cause}", hint=_ADDRESS_HINT)

    def _no_address(self) -> SettingsError:
        return SettingsError("registry.url is no http address", hint="It looks like http://registry:8081.")

    def _away(self, cause: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"the schema registry at {self._shown} {cause}",
            hint="Check the registry and registry.url; delivery continues from the last position.",
        )

    @property
    def _shown(self) -> str:
        return shown_url(self.url)
