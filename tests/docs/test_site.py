"""The site builds without a warning and without the internet, and the pages made of the code hold all of it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import typer

from docs.pages import DOCS
from tailrace import errors
from tailrace.cli.app import app
from tailrace.settings import describe


def text_of(page: Path) -> str:
    """What a reader sees of a page."""
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        address = page.relative_to(DOCS).with_suffix("").as_posix()
        assert address == "index" or f'href="{address}.html"' in home, f"{address} cannot be found"


def test_every_error_code_has_its_cause_and_next_step(site: Path) -> None:
    page = text_of(site / "errors.html")
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind in (errors.Outcome, errors.TailraceError):
            continue
        row = page[page.index(kind.code, page.rindex("Every code")) :][:1500]
        for part in (kind.outcome.value, kind.__doc__.split("\n\n")[0], kind.default_hint):
            assert " ".join(part.replace("`", "").split()) in " ".join(row.split()), f"{kind.code} lacks {part!r}"


def test_every_verb_and_flag_is_there(site: Path) -> None:
    page = text_of(site / "reference" / "cli.html")

    def look(name: str, command: typer.core.TyperCommand | typer.core.TyperGroup) -> None:
        assert name in page
        for parameter in command.params:
            if not parameter.hidden and "completion" not in parameter.name:
                assert parameter.opts[0] in page, f"{name} {parameter.opts[0]}"
        for child, inner in getattr(command, "commands", {}).items():
            look(f"{name} {child}", inner)

    look("tailrace", typer.main.get_command(app))


def test_every_setting_is_there(site: Path) -> None:
    page = text_of(site / "reference" / "settings.html")
    for key, _, _, meaning in describe():
        section, _, name = key.partition(".")
        part = page[page.index(f"[{section}]") :]
        assert name in part
        assert " ".join(meaning.split()) in " ".join(part.split())


def test_no_character_of_the_markup_is_shown(site: Path) -> None:
    """Choices stood as `auto \\| mongodb`: in code a backslash is itself."""
    for page in site.rglob("*.html"):
        code = re.findall(r"<td><code>(.*?)</code>", page.read_text(), re.DOTALL)
        assert not [each for each in code if "\\|" in each], page.relative_to(site)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r'<(?:script|img|iframe|source)[^>]+src="https?:|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+https?:'
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), f"{page.relative_to(site)} needs the internet"


def test_no_mark_of_a_generated_part_is_left(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "<!-- every" not in page.read_text()
        assert "<!-- a record" not in page.read_text()


def test_every_link_leads_to_a_file(site: Path) -> None:
    """Read from disk there is no server that would find the page of a folder."""
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if not re.match(r"[a-z]+:|//", link):
                assert (page.parent / link).resolve().is_file(), f"{page.relative_to(site)}: {link}"
