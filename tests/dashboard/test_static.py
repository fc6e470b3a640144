"""The page's own files: complete, without the internet, and without anything that its content policy forbids."""

from __future__ import annotations

import re

import pytest

from tailrace.dashboard.web.app import STATIC

FILES = sorted(STATIC.iterdir())
PAGE = (STATIC / "index.html").read_text()


def test_everything_that_the_page_and_its_scripts_ask_for_is_there() -> None:
    asked = set(re.findall(r'(?:src|href)="/static/([^"]+)"', PAGE))
    for script in STATIC.glob("*.js"):
        asked |= set(re.findall(r'from "\./([^"]+)"', script.read_text()))
    assert asked == {file.name for file in FILES} - {"index.html"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_comes_from_elsewhere(file) -> None:
    found = set(re.findall(r"https?://[^\s\"'`)]+", file.read_text()))
    assert found <= {"http://www.w3.org/2000/svg"}


def test_the_page_has_no_inline_script_or_style() -> None:
    assert not re.search(r"<script(?![^>]*src=)", PAGE)
    assert not re.search(r"<style|\sstyle=|\son\w+=", PAGE)


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".js"], ids=lambda file: file.name)
def test_data_never_becomes_markup(file) -> None:
    """The page shows what strangers wrote into documents."""
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.read_text()
    )


def test_every_section_of_the_navigation_is_there() -> None:
    targets = re.findall(r'href="#([^"]+)"', PAGE)
    assert targets
    assert all(f'id="{target}"' in PAGE for target in targets)
