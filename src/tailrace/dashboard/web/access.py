"""Who may see and do what: where the dashboard may listen, the token, the names it answers to, and safe headers.

The token is sent in the header `Authorization: Bearer`, which no other site can make a browser send: there are no
cookies, and so nothing that a forged request could ride on. On loopback the page may be looked at without it, and only
under a loopback name, so that a foreign name that resolves to 127.0.0.1 opens nothing.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.errors import ControlRefused, SettingsError
from tailrace.settings import DashboardSettings
from tailrace.settings_types import is_loopback

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
"""What holds no data: the empty page, and whether the process is well. The same goes for what is under /static/."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one dashboard."""

    token: str | None
    guards_reads: bool
    """Whether looking needs the token too."""
    hosts: frozenset[str] | None
    """Names it answers to; None for any, where the token protects."""
    is_secure: bool

    @classmethod
    def of(cls, settings: DashboardSettings) -> Access:
        """Take the rules from the settings; SettingsError where they would leave a door open."""
        token = settings.token.get_secret_value() if settings.token else None
        is_local = is_loopback(settings.address)
        if not is_local and token is None:
            raise SettingsError(
                f"the dashboard at {settings.address} would be open to everybody",
                hint="Set dashboard.token, or listen at 127.0.0.1.",
            )
        if not is_local and settings.certificate is None and not settings.behind_proxy:
            raise SettingsError(
                f"the token would cross the network in the clear at {settings.address}",
                hint="Set dashboard.certificate, or dashboard.behind_proxy when a proxy does TLS.",
            )
        if settings.key is not None and settings.certificate is None:
            raise SettingsError("dashboard.key is the key of no certificate", hint="Set dashboard.certificate as well.")
        if settings.behind_proxy and token is None:
            raise SettingsError(
                "behind a proxy everybody would look as if from here", hint="Set dashboard.token as well."
            )
        guarded = not is_local or settings.behind_proxy
        names = None if guarded else frozenset({"localhost", "127.0.0.1", "::1", settings.address})
        return cls(token, guarded, names, settings.certificate is not None)

    def knows(self, headers: Headers) -> bool:
        """Whether a request has the token; takes the same time for every wrong one."""
        given = headers.get("authorization", "").encode()
        return self.token is not None and hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def answers_to(self, headers: Headers) -> bool:
        """Whether a request is for a name of ours."""
        if self.hosts is None:
            return True
        try:
            return urlsplit(f"//{headers.get('host', '')}").hostname in self.hosts
        except ValueError:
            return False


class Guard:
    """Stands before the application: refuses who may not, and puts the safe headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._access.is_secure:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers, path = Headers(scope=scope), scope["path"]
        if not self._access.answers_to(headers):
            hint = "Open it as http://127.0.0.1 or http://localhost, or set dashboard.behind_proxy and a token."
            return problem(ControlRefused("the dashboard has no such name", status=421, hint=hint))
        if path in OPEN_PATHS or path.startswith("/static/"):
            return None
        is_read = scope["method"] in ("GET", "HEAD")
        if is_read and not self._access.guards_reads:
            return None
        if self._access.token is None:
            hint = "Set dashboard.token to let those who know it do this."
            return problem(ControlRefused("actions are switched off", status=HTTPStatus.FORBIDDEN, hint=hint))
        if not self._access.knows(headers):
            hint = "Send the header `Authorization: Bearer` with the value of dashboard.token."
            return problem(ControlRefused("the token is missing or wrong", status=HTTPStatus.UNAUTHORIZED, hint=hint))
        return None


def problem(error: ControlRefused) -> JSONResponse:
    """Give a refusal in the form that all errors have."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else None
    form = {"code": error.code, "message": error.message, "hint": error.hint}
    return JSONResponse(form, status_code=error.status, headers=headers)
