"""The site as readers see it: from disk and served, wide and narrow, light and dark, with its search."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from browsing import Browser, chromium

PAGES = (
    "index",
    "install",
    "security",
    "howto/kafka",
    "howto/mongodb-connectors",
    "reference/cli",
    "reference/settings",
)
SIZES = {"wide": (1400, 900), "narrow": (400, 800)}


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are of no interest."""


@pytest.fixture(scope="module", params=["from disk", "served"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    if request.param == "from disk":
        yield site.as_uri()
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_fit_their_window(browser: Browser, address: str, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    browser.size(width, height)
    browser.prefer(scheme)
    for page in PAGES:
        browser.open(f"{address}/{page}.html")
        assert browser.run("return document.scrollingElement.scrollWidth") <= width, f"{page} is wider than its window"
        background = browser.run("return getComputedStyle(document.body).backgroundColor").strip("rgba()").split(",")
        assert (int(background[0]) > 128) == (scheme == "light"), page
        cut_off = "return [...document.querySelectorAll('.md-tabs__link')].filter(tab => tab.offsetParent" \
            " && tab.getBoundingClientRect().right > innerWidth - 16).map(tab => tab.innerText)"  # fmt: skip
        assert browser.run(cut_off) == [], page
    assert browser.complaints() == []


@pytest.mark.parametrize("words", ["history-lost", "capture.position_store", "search index"])
def test_the_search_finds_pages_that_are_there(browser: Browser, address: str, words: str) -> None:
    browser.size(*SIZES["wide"])
    browser.open(f"{address}/howto/kafka.html")
    browser.write("input.md-search__input", words)
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    browser.until(lambda: browser.run(found), f"a result for {words}")
    first = browser.run(found)[0]
    browser.open(first)
    assert browser.text("h1"), f"{first} is no page"
    assert browser.complaints() == []
