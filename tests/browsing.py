"""A real browser without a window, for tests of the page; they skip where there is none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

ARTIFACTS = Path(__file__).resolve().parents[1] / "artifacts" / "dashboard"
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu")


class Browser:
    """One window of Chromium."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def size(self, width: int, height: int) -> None:
        """Look at the page through a window of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Be a browser whose user likes it light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        """Open a page."""
        self._driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and give what it returns."""
        return self._driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """The text of an element, empty when there is none."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.run(script, selector))

    def click(self, selector: str) -> None:
        """Click on an element as a person does."""
        self._driver.find_element("css selector", selector).click()

    def write(self, selector: str, text: str) -> None:
        """Write into a field."""
        field = self._driver.find_element("css selector", selector)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        self._driver.switch_to.active_element.send_keys(*keys)

    def until(self, holds: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Wait for something; a picture of what was there instead is kept."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come; see {self.picture('failed')}: {self.complaints()}")
            time.sleep(0.1)

    def picture(self, name: str) -> Path:
        """Keep a screenshot among the artefacts."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        file = ARTIFACTS / f"{name}.png"
        self._driver.save_screenshot(str(file))
        return file

    def complaints(self) -> list[str]:
        """What the browser's console says of errors, refused content among them."""
        return [entry["message"] for entry in self._driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for as long as the block runs."""
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its chromedriver on this machine")
    options = Options()
    options.binary_location = binary
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(service=Service(driver), options=options)
    try:
        yield Browser(running)
    finally:
        running.quit()
