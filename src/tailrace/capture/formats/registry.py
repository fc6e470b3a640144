"""A schema registry that speaks Confluent's API: subjects, versions and what it says of compatibility."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from tailrace.errors import SettingsError, SinkUnavailable
from tailrace.http_client import connection_to
from tailrace.masking import shown_url

_SECONDS_TO_ANSWER: Final = 15.0
_LARGEST_ANSWER: Final = 16 * 2**20
_OK, _NOT_FOUND, _CONFLICT, _INVALID = 200, 404, 409, 422


class Incompatible(Exception):
    """The registry refuses a schema: those who read the subject could not bear it."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Asked when a schema is first used or has grown, never for a single record."""

    url: str
    """`http(s)://user:password@host:port/path`; the path is the registry's own, such as `/apis/ccompat/v7`."""
    compatibility: str = "BACKWARD"

    def check(self) -> None:
        """Ask what every registry knows, to see whether there is one at this address."""
        status, answer = self._ask("GET", "/config")
        if status != _OK or not isinstance(answer, dict) or "compatibilityLevel" not in answer:
            raise SettingsError(
                f"{shown_url(self.url)} is not the API of a schema registry",
                hint="Give its path too: /apis/ccompat/v7 for Apicurio, nothing for Confluent.",
            )

    def latest(self, subject: str) -> tuple[int, str] | None:
        """Give the id and text of a subject's newest schema; None when it has none."""
        status, answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        if status == _NOT_FOUND:
            return None
        return int(answer["id"]), str(answer["schema"])

    def register(self, subject: str, schema: str, kind: str, *, is_first: bool) -> int:
        """Make a schema the newest of a subject and give its id; Incompatible when the registry refuses it."""
        name = quote(subject, safe="")
        if is_first:
            self._ask("PUT", f"/config/{name}", {"compatibility": self.compatibility})
        body = {"schema": schema, **({} if kind == "AVRO" else {"schemaType": kind})}
        status, answer = self._ask("POST", f"/subjects/{name}/versions", body)
        if status in (_CONFLICT, _INVALID):
            raise Incompatible(str(answer.get("message", ""))[:300])
        return int(answer["id"])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError("registry.url is no http address", hint="It looks like http://registry:8081.")
        connection = connection_to(self.url, _SECONDS_TO_ANSWER)
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, parts.path.rstrip("/") + path, text, headers)
            response = connection.getresponse()
            answer = json.loads(response.read(_LARGEST_ANSWER) or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise SinkUnavailable(f"the schema registry at {shown_url(self.url)} does not answer: {cause}") from None
        finally:
            connection.close()
        status = response.status
        if status in (401, 403):
            raise SettingsError(
                f"the schema registry at {shown_url(self.url)} refuses us",
                hint="Put user and password into registry.url.",
            )
        if status >= 400 and status not in (_NOT_FOUND, _CONFLICT, _INVALID):
            raise SinkUnavailable(f"the schema registry at {shown_url(self.url)} answers with HTTP {status}")
        return status, answer
