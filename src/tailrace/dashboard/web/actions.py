"""What may be asked of a producer through the dashboard; a recovery only after a dry run has shown what it would do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tailrace.dashboard.answers import ActionAnswer
from tailrace.errors import ControlRefused, ServerUnreachable
from tailrace.http_client import Answer, addresses_of, fetch, first_that, location_of
from tailrace.logs import get_logger

SECONDS_OF_A_CONFIRMATION = 600.0
_SECONDS_TO_ANSWER = 60.0
_MOST_CONFIRMATIONS = 100
_log = get_logger("tailrace.dashboard")
_KEYS: dict[str, set[str]] = {
    "pause": set(),
    "resume": set(),
    "snapshot": {"namespaces"},
    "recover": {"dry_run", "confirmation"},
}
ACTIONS = tuple(_KEYS)


@dataclass(frozen=True, slots=True)
class _Confirmation:
    producer: str
    until: float


class Control:
    """Passes actions on to producers, with their token."""

    def __init__(
        self,
        control_token: str | None,
        find: Callable[[str | None], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token = control_token
        self._find = find
        self._clock = clock
        self._confirmations: dict[str, _Confirmation] = {}

    def ask(self, action: str, body: Mapping[str, Any], actor: str | None = None) -> ActionAnswer:
        """Ask a producer, and give what it answered; blocks for as long as that takes. `actor` is for its audit log."""
        url = self._checked(action, body)
        sent = {name: value for name, value in body.items() if name in _KEYS[action] - {"confirmation"}}
        is_dry = action == "recover" and sent.setdefault("dry_run", True) is not False
        is_real = action == "recover" and not is_dry
        if is_real:
            self._check(body.get("confirmation"), url)
        try:
            answer = self._answer(url, f"/{action}", sent, actor)
        except ServerUnreachable as error:
            raise ControlRefused(error.message, status=HTTPStatus.BAD_GATEWAY, hint=error.hint) from None
        reported = answer.json() if isinstance(answer.json(), dict) else {}
        _log.info("action", action=action, producer=location_of(url), dry_run=is_dry, status=answer.status)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise _passed_on(answer.status, reported)
        if is_real:
            self._confirmations.pop(body["confirmation"], None)
        return ActionAnswer(action, location_of(url), reported, self._confirm(url) if is_dry else None)

    def _answer(self, url: str, path: str, sent: Mapping[str, Any], actor: str | None) -> Answer:
        """Ask the addresses of a producer until one is no standby."""

        def ask(address: str) -> Answer:
            timeout = _SECONDS_TO_ANSWER
            return fetch(url, path, post=sent, bearer=self._token, actor=actor, timeout=timeout, address=address)

        def is_no_standby(answer: Answer) -> bool:
            return answer.status != HTTPStatus.MISDIRECTED_REQUEST

        return first_that(addresses_of(url), ask, is_no_standby)[1]

    def _checked(self, action: str, body: Mapping[str, Any]) -> str:
        if action not in _KEYS:
            raise ControlRefused(f"there is no action {action!r}", status=HTTPStatus.NOT_FOUND, hint=_hint())
        unknown = sorted(body.keys() - _KEYS[action] - {"producer"})
        if unknown:
            raise ControlRefused(f"{action} has no key {unknown[0]!r}", status=HTTPStatus.BAD_REQUEST, hint=_hint())
        if self._token is None:
            hint = "Set dashboard.control_token to the producers' monitor.control_token."
            raise ControlRefused("the producers' token is not known here", status=HTTPStatus.FORBIDDEN, hint=hint)
        url = self._find(body.get("producer"))
        if url is None:
            hint = "Name one of the endpoints that GET /api/streams shows as `producer`."
            raise ControlRefused("no such producer is known", status=HTTPStatus.NOT_FOUND, hint=hint)
        return url

    def _confirm(self, url: str) -> str:
        now = self._clock()
        self._confirmations = {key: one for key, one in self._confirmations.items() if one.until > now}
        while len(self._confirmations) >= _MOST_CONFIRMATIONS:
            self._confirmations.pop(next(iter(self._confirmations)))
        key = secrets.token_urlsafe(16)
        self._confirmations[key] = _Confirmation(url, now + SECONDS_OF_A_CONFIRMATION)
        return key

    def _check(self, confirmation: Any, url: str) -> None:
        """Refuse a recovery without the confirmation of a dry run; it is spent when the producer has agreed."""
        known = self._confirmations.get(confirmation) if isinstance(confirmation, str) else None
        if known is None or known.producer != url or known.until < self._clock():
            hint = 'Ask with {"dry_run": true} first, look at the answer, and send its `confirmation` along.'
            raise ControlRefused("a recovery needs a dry run first", status=HTTPStatus.CONFLICT, hint=hint)


def _passed_on(status: int, reported: Mapping[str, Any]) -> ControlRefused:
    """Give a producer's refusal as ours; its word about our token is nothing that the browser's token can change."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        hint = "Make dashboard.control_token and the producer's monitor.control_token the same."
        return ControlRefused("the producer refuses the dashboard's token", status=HTTPStatus.BAD_GATEWAY, hint=hint)
    message = str(reported.get("message") or f"the producer answered with HTTP {status}")
    return ControlRefused(message, status=status, hint=reported.get("hint") and str(reported["hint"]))


def _hint() -> str:
    return "GET /api/openapi.json describes the actions."
