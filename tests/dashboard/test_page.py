"""The page in a real browser: it shows a write that was just made, and its main states are kept as pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp

from browsing import Browser, chromium
from dashboard_site import TOKEN, dashboard, free_port, write_settings
from tailrace.capture.positions import Position, PositionStore
from tailrace.capture.positions.file import FileCells
from tailrace.stand import ReplicaSet
from waiting import wait_until as until


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of the page."""
    with chromium() as running:
        running.size(1440, 1000)
        yield running


@pytest.fixture
def page(browser: Browser, pipeline: Any) -> Browser:
    """The page of the pipeline, live."""
    browser.prefer("light")
    browser.size(1440, 1000)
    browser.open(pipeline.site.url)
    browser.until(lambda: browser.text("#connection") == "live", "the connection")
    browser.complaints()
    return browser


def test_the_page_shows_a_write_that_was_just_made(page: Browser, pipeline: Any) -> None:
    pipeline.orders.insert_one({"_id": "just now", "city": "Tromsø", "amount": 99})
    page.until(lambda: "just now" in page.text("#event-list"), "the write")
    row = page.text("#event-list li:first-child")
    assert "insert" in row
    assert "city=Tromsø" in row
    page.until(lambda: "healthy" in page.text("#box-capture"), "the green box")
    page.until(lambda: page.run("return document.querySelectorAll('.chart path.series').length") >= 4, "the charts")
    page.until(lambda: "orders" in page.text("#window-bars"), "the oplog window")
    page.until(lambda: "MongoDB → Kafka" in page.text("#latency-table"), "the latency of a hop")
    page.until(lambda: "tables job" in page.text("#letters-list"), "where dead letters would be")
    assert page.complaints() == []
    page.picture("healthy")


def test_an_event_opens_with_its_token_decoded_and_closes_with_the_keyboard(page: Browser, pipeline: Any) -> None:
    pipeline.orders.insert_one({"_id": "opened", "note": "<img src=x onerror=alert(1)>"})
    page.write("#event-filter", "opened")
    page.until(lambda: page.text("#event-list").count("opened") == 1, "the only event that matches")
    page.click("#event-list li:first-child button")
    page.until(lambda: "eventIdentifier" in page.text("#event-dialog"), "the event in full")
    shown = page.text("#event-dialog")
    assert '"note": "<img src=x onerror=alert(1)>"' in shown
    assert "clusterTime" in shown
    page.picture("event")
    page.press("\ue00c")  # Escape
    page.until(lambda: not page.run("return document.getElementById('event-dialog').open"), "the closed dialog")
    assert page.complaints() == []


def test_events_can_be_paused_and_filtered(page: Browser, pipeline: Any) -> None:
    page.click("#event-pause")
    pipeline.orders.insert_one({"_id": "while paused"})
    page.until(
        lambda: "events since" in page.text("#event-note") and "Paused. 0" not in page.text("#event-note"), "news"
    )
    assert "while paused" not in page.text("#event-list")
    page.click("#event-pause")
    page.until(lambda: "while paused" in page.text("#event-list"), "the event after the pause")
    page.write("#event-filter", "nothing is like this")
    page.until(lambda: "No event matches" in page.text("#event-note"), "the empty list")


def test_capture_is_paused_from_the_page_with_the_token(page: Browser, pipeline: Any) -> None:
    page.until(
        lambda: page.run("return document.querySelector('[data-action=pause]')?.disabled === false"), "the button"
    )
    page.click("[data-action=pause]")
    page.write("#token-input", TOKEN)
    page.click("#token-dialog button.primary")
    page.until(lambda: page.run("return !!document.querySelector('[data-action=resume]')"), "the paused capture")
    page.until(lambda: "warning" in page.text("#box-capture"), "the amber box")
    page.picture("paused")
    page.click("[data-action=resume]")
    page.until(lambda: page.run("return !!document.querySelector('[data-action=pause]')"), "the resumed capture")
    page.click("[data-action=recover]")
    page.until(lambda: "No history is lost" in page.text("#action-dialog"), "the dry run, in words")
    page.picture("recovery")
    page.click("#action-dialog menu .close")


def test_a_wrong_token_is_told_and_asked_for_again(page: Browser) -> None:
    page.run("sessionStorage.setItem('tailrace-token', 'a wrong one')")
    page.run("location.reload()")
    page.until(
        lambda: page.run("return document.querySelector('[data-action=pause]')?.disabled === false"), "the button"
    )
    page.click("[data-action=pause]")
    page.until(lambda: "token" in page.text("#toasts"), "the refusal")
    page.until(lambda: page.run("return document.getElementById('token-dialog').open"), "the question")
    page.click("#token-dialog button[value=forget]")
    page.until(lambda: page.text("#token-button") == "Token", "the forgotten token")


def test_it_fits_a_phone_in_the_dark(page: Browser) -> None:
    page.size(390, 844)
    page.prefer("dark")
    page.until(
        lambda: page.run("return document.querySelector('#flow-picture svg')?.clientWidth ?? 1e4") < 390,
        "a narrow flow",
    )
    page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 390, "no scrolling sideways")
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 19, 27)"
    page.picture("phone-dark")
    page.prefer("light")
    page.picture("phone")
    page.size(1440, 1000)
    page.click("#theme-button")
    page.click("#theme-button")
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    page.picture("dark")
    page.click("#theme-button")
    assert page.run("return document.documentElement.dataset.theme ?? 'auto'") == "auto"


def test_everything_that_can_be_used_has_a_name(page: Browser) -> None:
    """What a screen reader would say: buttons, fields, figures and dialogs are labelled, headings are in order."""
    script = """
      const name = (e) => e.getAttribute('aria-label') || e.textContent.trim() || e.title
        || (e.id && document.querySelector(`label[for="${e.id}"]`)?.textContent) || e.getAttribute('aria-labelledby');
      return [...document.querySelectorAll('button, a, input, select, [role=img], dialog, section, nav')]
        .filter((e) => !name(e)).map((e) => e.outerHTML.slice(0, 100));
    """
    page.until(lambda: page.run(script) == [], "a name for everything, the charts too once they are drawn")
    assert page.run("return document.documentElement.lang") == "en"
    assert page.run("return document.querySelectorAll('h1').length") == 1


def test_a_pressed_button_can_be_read_while_the_mouse_is_on_it(page: Browser) -> None:
    page.click("[data-span='1h']")
    page.until(lambda: "hour" in page.text("#charts-title"), "the longer span")
    colours = "const s = getComputedStyle(document.querySelector(arguments[0])); return [s.color, s.backgroundColor]"
    text, ground = page.run(colours, "[data-span='1h']:hover")
    _, other = page.run(colours, "[data-span='5m']")
    assert ground not in (text, other)


def test_the_charts_are_read_with_the_keyboard(page: Browser) -> None:
    page.until(lambda: page.run("return document.querySelectorAll('.chart path.series').length") >= 1, "a line")
    page.run("document.querySelector('.chart .plot').focus()")
    page.press("\ue012", "\ue012")  # left, twice
    page.until(lambda: page.run("return !!document.querySelector('.chart .crosshair')"), "the crosshair")


def test_captures_that_are_behind_and_stalled_and_stopped(
    browser: Browser, pipeline: Any, shared_replica_sets: Any, tmp_path: Path
) -> None:
    """Positions in the store are as old as those of a slow and of a dead producer; nobody else is needed."""
    mongodb: ReplicaSet = shared_replica_sets.of_version("6.0.5")
    settings = write_settings(
        tmp_path,
        mongodb={"uri": mongodb.uri},
        capture={"position_store": f"file:{tmp_path / 'positions'}", "sink": f"file:{tmp_path / 'out.jsonl'}"},
        dashboard={"producers": []},
    )
    keep(tmp_path / "positions", "slow", behind=200, saved=0)
    with dashboard(settings) as site:
        browser.open(site.url)
        browser.until(lambda: browser.text("#captures-list .badge.amber") == "behind", "the capture that is behind")
        assert "warning" in browser.text("#box-capture")
        browser.picture("behind")
        keep(tmp_path / "positions", "dead", behind=400, saved=300)
        browser.until(lambda: browser.text("#captures-list .badge.red") == "stalled", "the stalled capture")
        browser.until(lambda: "Problem" in browser.text("#overall"), "the alarm")
        assert "problem" in browser.text("#box-capture")
        browser.picture("stalled")
        keep(tmp_path / "positions", "ended", behind=1, saved=0, lease_seconds=0.001)
        browser.until(
            lambda: "stopped: nobody runs this stream" in browser.text("#captures-list [data-key=ended] .hint"),
            "one that ended",
        )
        assert browser.text("#captures-list [data-key=ended] .badge") == "stopped"
        for name in ("dead", "ended"):
            assert f"{name} does not move; " in browser.text(f".forecasts [data-key={name}]")
        browser.picture("stopped")
        pipeline.orders.insert_one({"_id": "without Kafka"})
        browser.until(lambda: "without Kafka" in browser.text("#event-list"), "an event of the change stream")


def keep(folder: Path, name: str, *, behind: float, saved: float, lease_seconds: float = 3_600) -> None:
    """Save a position that is so many seconds behind, as if that had been so many seconds ago."""
    store = PositionStore(FileCells(folder), clock=lambda: time.time() - saved)
    lease = store.acquire(name, "another machine/0/1/2", seconds=lease_seconds)
    store.save(Position(None, Timestamp(int(time.time() - behind), 1)), lease)


LONG_REASON = """
    const box = document.querySelector("#box-mongodb"), reason = box.querySelector(".reason");
    const facts = document.createElementNS("http://www.w3.org/1999/xhtml", "dl");
    facts.innerHTML = "<div><dt>state</dt><dd>live</dd></div><div><dt>lag</dt><dd>7 s</dd></div>";
    box.insertBefore(facts, reason);
    reason.textContent = "no server answers at http://127.0.0.1:28153: Connection refused ".repeat(4);
    return reason.getBoundingClientRect().bottom <= box.getBoundingClientRect().bottom;
"""


def test_nothing_can_be_reached(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    settings = write_settings(
        tmp_path,
        mongodb={"uri": f"mongodb://ann:hunter2@127.0.0.1:{port}/?serverSelectionTimeoutMS=500"},
        capture={
            "sink": f"kafka://127.0.0.1:{port}",
            "position_store": f"postgresql://ann:hunter2@127.0.0.1:{port}/positions?connect_timeout=1",
        },
        features={"redis_url": f"redis://:hunter2@127.0.0.1:{port}"},
        warehouse={"folder": tmp_path / "nothing"},
        dashboard={
            "producers": [f"http://127.0.0.1:{port}"],
            "gateways": [f"http://127.0.0.1:{port}/metrics"],
            "token": TOKEN,
        },
    )
    with dashboard(settings) as site:
        browser.open(site.url)
        browser.until(lambda: "Problem" in browser.text("#overall"), "the alarm")
        expected = {
            "mongodb": "red",
            "capture": "red",
            "sink": "red",
            "features": "red",
            "gateway": "red",
            "tables": "grey",
        }
        until(lambda: site.colours() == expected, "every box")
        boxes = {box["id"]: box["condition"]["reason"] for box in site.get("/api/flow")["boxes"]}
        assert all(boxes.values())
        assert "hunter2" not in site.http.get("/api/state").text
        browser.until(lambda: "no server answers" in browser.text("#looks-list"), "the reasons")
        assert "hunter2" not in browser.run("return document.documentElement.innerHTML")
        for panel in ("captures", "shards", "gaps", "letters"):
            shown = browser.text(f"#{panel}-list")
            assert "Not known: " in shown, "it says that there is nothing, where nothing could be read"
        browser.picture("nothing-reachable")
        assert browser.run(LONG_REASON), "a reason below two facts is cut through its third line"
