"""What a producer answers over HTTP: its state, and what somebody with the token may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tailrace.errors import ControlRefused

if TYPE_CHECKING:
    from pymongo import MongoClient

    from tailrace.audit import AuditLog
    from tailrace.capture.producer.producer import Producer
    from tailrace.monitor import Observer, Site
    from tailrace.monitor.endpoint import Action, Asked
    from tailrace.settings import Settings


def site_of(
    settings: Settings, client: MongoClient[Any], producer: Producer, observer: Observer, audit: AuditLog
) -> Site:
    """Put the pages and actions of a producer together."""
    from tailrace.capture.producer.state_document import full_state
    from tailrace.monitor import Site
    from tailrace.policy.configured import policy_of

    policy = policy_of(settings)
    asked = _Asked(settings, client, producer)
    token = settings.monitor.control_token
    return Site(
        pages={"/state": lambda: full_state(producer.status, settings.capture, observer.latest, policy)},
        actions={
            "/pause": partial(asked.unless_standby, asked.pause),
            "/resume": partial(asked.unless_standby, asked.resume),
            "/snapshot": partial(asked.unless_standby, asked.snapshot),
            "/recover": partial(asked.unless_standby, asked.recover),
        },
        token=token.get_secret_value() if token else None,
        asked=lambda asked: _audited(audit, asked, settings.capture.name),
        problem=lambda: _problem(producer, settings.monitor.stalled_seconds),
    )


def _audited(audit: AuditLog, asked: Asked, stream: str) -> None:
    """Write down what somebody asks for; looking at what a recovery would do is no action."""
    from tailrace.audit import Actor

    if asked.body.get("dry_run") is not True:
        actor = Actor.of_request(asked.claimed, asked.address)
        if asked.outcome == "refused":
            actor = Actor("somebody without the control token", asked.address)
        audit.record(actor, asked.path.removeprefix("/"), stream, asked.outcome, **asked.body)


class _Asked:
    """The actions, each from the body of a request to its answer."""

    def __init__(self, settings: Settings, client: MongoClient[Any], producer: Producer) -> None:
        self._settings = settings
        self._client = client
        self._producer = producer

    def unless_standby(self, act: Action, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do an action where the stream runs; a standby that agreed would let the other one go on, unnoticed."""
        if self._producer.status.is_standby:
            hint = "Ask the process that runs it; `tailrace position show` names its owner."
            raise ControlRefused(
                "another process runs the stream, and this one only waits for its lease",
                status=HTTPStatus.MISDIRECTED_REQUEST,
                hint=hint,
            )
        return act(body)

    def pause(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Stop reading."""
        _only(body)
        self._producer.pause()
        return self._accepted("pause")

    def resume(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Go on reading."""
        _only(body)
        self._producer.resume()
        return self._accepted("resume")

    def snapshot(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read collections once more."""
        _only(body, "namespaces")
        namespaces = body.get("namespaces", [])
        if not isinstance(namespaces, list) or not all(isinstance(each, str) for each in namespaces):
            raise ControlRefused("`namespaces` is a list of texts", status=HTTPStatus.BAD_REQUEST)
        return self._accepted("snapshot") | {"collections": self._producer.take_snapshot(namespaces)}

    def recover(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Recover, or show what that would do."""
        _only(body, "dry_run")
        dry_run = body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise ControlRefused("`dry_run` is true or false", status=HTTPStatus.BAD_REQUEST)
        if dry_run:
            from tailrace.cli.recover import forecast_of

            return forecast_of(self._settings, self._client).to_json()
        self._producer.recover()
        return self._accepted("recover")

    def _accepted(self, action: str) -> dict[str, Any]:
        return {"accepted": action, "stream": self._producer.status.stream}


def _only(body: Mapping[str, Any], *known: str) -> None:
    """Refuse a key that nobody knows: misspelt, it would silently do something else."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise ControlRefused(f"unknown key {unknown[0]!r}", status=HTTPStatus.BAD_REQUEST)


def _problem(producer: Producer, limit: float) -> str | None:
    """Say that the producer's thread hangs; a sink or a server that is away is no reason to start it anew."""
    seconds = producer.status.seconds_since_beat
    return None if seconds < limit else f"the producer has not run an iteration for {seconds:,.0f} s"
