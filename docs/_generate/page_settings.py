"""The page of the settings: every key with its type, default and meaning."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import prose

from tailrace.settings import ENVIRONMENT_PREFIX, Settings, describe

_INTRODUCTION = """# Settings

Three sources, from the weakest to the strongest: the file `tailrace.toml` in the working folder (or the one that
`--config` or `TAILRACE_CONFIG` names), environment variables, and command-line flags. A key that nobody knows is an
error, wherever it stands. Secrets are shown by no command, log or error.

    [mongodb]
    uri = "mongodb://127.0.0.1:27017/?replicaSet=rs0"

is `TAILRACE_MONGODB__URI` in the environment. `tailrace settings` prints the values that are in force. Two variables
stand outside of the file: `TAILRACE_CONFIG`, and `TAILRACE_CACHE`, the folder for fetched servers and jars.
"""


def page() -> str:
    """Make the page."""
    parts = [_INTRODUCTION]
    for section, keys in groupby(describe(), key=lambda key: key[0].partition(".")[0]):
        about = Settings.model_fields[section].annotation
        rows = [
            (f"`{name.partition('.')[2]}`", f"`{kind}`".replace("|", "\\|"), _default(default), prose.cell(meaning))
            for name, kind, default, meaning in keys
        ]
        parts.append(f"\n## [{section}]\n\n{prose.paragraphs((about and about.__doc__) or '')}\n")
        parts.append(prose.table(("key", "type", "default", "meaning"), rows))
        parts.append(f"\nIn the environment: `{ENVIRONMENT_PREFIX}{section.upper()}__KEY`.\n")
    return "\n".join(parts)


def _default(value: Any) -> str:
    return "none" if value in (None, (), {}) else f"`{value}`"
