"""Actions reach the producer that was named, with its token; a confirmation is good once, for ten minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tailrace.dashboard.sources.producers import ProducerSource
from tailrace.dashboard.web.actions import SECONDS_OF_A_CONFIRMATION, Control
from tailrace.errors import ControlRefused
from tailrace.http_client import addresses_of
from tailrace.monitor import Site, serve_endpoint

TOKEN = "a-token-for-producers"


class Producer:
    """A producer's endpoint, served by what serves a producer's own."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.is_busy = False

    def answer(self, action: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.is_busy:
            raise ControlRefused("a snapshot is under way", status=409)
        self.asked.append((action, dict(body)))
        return {"accepted": action}

    def site(self) -> Site:
        names = ("pause", "resume", "snapshot", "recover")
        return Site(
            actions={f"/{name}": lambda body, name=name: self.answer(name, body) for name in names}, token=TOKEN
        )


@pytest.fixture
def producer() -> Producer:
    return Producer()


@pytest.fixture
def url(producer: Producer) -> Iterator[str]:
    with serve_endpoint(0, site=producer.site()) as port:
        yield f"http://127.0.0.1:{port}"


def status_of(control: Control, action: str, **body: Any) -> int:
    with pytest.raises(ControlRefused) as refused:
        control.ask(action, body)
    assert refused.value.hint
    return refused.value.status


def test_what_is_asked_arrives_without_what_is_for_the_dashboard_alone(producer: Producer, url: str) -> None:
    control = Control(TOKEN, lambda _: url)
    assert control.ask("snapshot", {"namespaces": ["a.b"], "producer": url}).answer == {"accepted": "snapshot"}
    assert control.ask("pause", {}).producer == url
    assert producer.asked == [("snapshot", {"namespaces": ["a.b"]}), ("pause", {})]


def test_a_recovery_is_a_dry_run_unless_it_is_confirmed(producer: Producer, url: str) -> None:
    now = 0.0
    control = Control(TOKEN, lambda _: url, clock=lambda: now)
    assert status_of(control, "recover", dry_run=False) == 409
    confirmation = control.ask("recover", {}).confirmation
    assert producer.asked == [("recover", {"dry_run": True})]
    producer.is_busy = True
    assert status_of(control, "recover", dry_run=False, confirmation=confirmation) == 409
    producer.is_busy = False
    done = control.ask("recover", {"dry_run": False, "confirmation": confirmation})
    assert (done.answer, done.confirmation) == ({"accepted": "recover"}, None)
    assert status_of(control, "recover", dry_run=False, confirmation=confirmation) == 409
    old = control.ask("recover", {"dry_run": True}).confirmation
    now = SECONDS_OF_A_CONFIRMATION + 1
    assert status_of(control, "recover", dry_run=False, confirmation=old) == 409
    assert [body for _, body in producer.asked] == [{"dry_run": True}, {"dry_run": False}, {"dry_run": True}]


def test_a_confirmation_is_for_the_producer_that_was_looked_at(url: str) -> None:
    control = Control(TOKEN, lambda location: url if location is None else f"{url}/other")
    confirmation = control.ask("recover", {}).confirmation
    assert status_of(control, "recover", dry_run=False, confirmation=confirmation, producer="other") == 409


def test_refusals_say_whose_they_are(url: str) -> None:
    assert status_of(Control(None, lambda _: url), "pause") == 403
    assert status_of(Control("a wrong token", lambda _: url), "pause") == 502
    assert status_of(Control(TOKEN, lambda _: None), "pause") == 404
    assert status_of(Control(TOKEN, lambda _: "http://127.0.0.1:1"), "pause") == 502
    assert status_of(Control(TOKEN, lambda _: url), "destroy") == 404


def test_of_several_addresses_the_one_that_runs_the_stream_is_asked(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a headless Service are: the standby's, one where nobody answers, and the one to ask."""

    def misdirected(_: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ControlRefused("another process runs the stream", status=421)

    waits = Site(
        pages={"/state": lambda: {"name": "shop", "standby": True}}, actions={"/pause": misdirected}, token=TOKEN
    )
    runs = Site(
        pages={"/state": lambda: {"name": "shop", "standby": False}}, actions=producer.site().actions, token=TOKEN
    )
    with serve_endpoint(0, "127.0.0.2", runs) as port, serve_endpoint(port, "127.0.0.3", waits):
        addresses = ["127.0.0.3", "127.0.0.4", "127.0.0.2"]
        for module in ("web.actions", "sources.producers"):
            monkeypatch.setattr(f"tailrace.dashboard.{module}.addresses_of", lambda _: addresses)
        url = f"http://tailrace-producer.example:{port}"
        assert Control(TOKEN, lambda _: url).ask("pause", {}).answer == {"accepted": "pause"}
        assert producer.asked == [("pause", {})]
        assert not ProducerSource(url).poll().is_standby
        addresses.remove("127.0.0.2")
        assert ProducerSource(url).poll().is_standby
        assert status_of(Control(TOKEN, lambda _: url), "pause") == 421


def test_a_name_has_the_addresses_that_it_resolves_to() -> None:
    assert addresses_of("http://127.0.0.1:9464") == ["127.0.0.1"]
    assert addresses_of("https://localhost:9464") == ["localhost"], "its certificate is for the name"
    assert "127.0.0.1" in addresses_of("http://localhost:9464")
    assert addresses_of("http://nowhere.invalid:9464") == ["nowhere.invalid"]
