"""What MkDocs calls while it builds the site: reference pages are made of the code, and nothing is written twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import page_cli
import page_errors
import page_formats
import page_python
import page_settings
import yaml
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ERROR_TABLE = "<!-- every error code -->"
"""Where `errors.md` has the table of all codes."""
PYTHON_PAGES = "Python API"
"""The section of the navigation that has one page for each package."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the packages into the navigation, and pages that nobody has put there."""
    named = yaml.safe_dump(config.nav)
    [reference] = [section["Reference"] for section in config.nav or [] if "Reference" in section]
    for entry in reference:
        if PYTHON_PAGES in entry:
            entry[PYTHON_PAGES] = [{name: path} for name, path in page_python.paths().items()]
    others = [page for page in sorted(Path(config.docs_dir).glob("*.md")) if f" {page.name}\n" not in named]
    reference[-1:-1] = [{_title(page): page.name} for page in others]
    return config


def _title(page: Path) -> str:
    return next(line.removeprefix("# ") for line in page.read_text().splitlines() if line.startswith("# "))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that exist only in the site."""
    made = {"reference/cli.md": page_cli.page(), "reference/settings.md": page_settings.page(), **page_python.pages()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in the table of error codes, and the records in every format."""
    if page.file.src_uri == "errors.md":
        return markdown.replace(ERROR_TABLE, page_errors.table())
    return page_formats.filled(markdown) if page.file.src_uri == "reference/formats.md" else markdown
