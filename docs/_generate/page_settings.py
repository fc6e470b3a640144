"""The page of the settings: every key with its type, default and meaning."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import prose

from tailrace.settings import ENVIRONMENT_PREFIX, Settings, describe

_INTRODUCTION = """# Settings

Three sources, from the weakest to the strongest: the file `tailrace.toml` in the working folder (or the one that
`--config` or `TAILRACE_CONFIG` names), environment variables, and command-line flags. A key that nobody knows is an
error, wherever it stands.

Relative paths in the file, and paths that are defaults, begin at the folder of the file, so that the same settings
mean the same from everywhere. Those in variables and flags begin at the working folder.

Secrets are shown by no command, log, page or error: neither tokens, nor passwords of URIs, nor the values of parameters
and keys that mean one (`sasl.password`, `ssl.key.pem`, `fs.s3a.secret.key`, ...). Every setting of the type `SecretStr`
can be read from a file of its own, under its name with `_file`: `uri_file = "/run/secrets/mongodb-uri"`, or
`TAILRACE_CAPTURE__SINK_FILE`. A line break at the end of the file does not count.

    [mongodb]
    uri = "mongodb://127.0.0.1:27017/?replicaSet=rs0"

is `TAILRACE_MONGODB__URI` in the environment. `tailrace settings` prints the values that are in force. Three variables
stand outside of the file: `TAILRACE_CONFIG`; `TAILRACE_CACHE`, the folder for fetched servers and jars; and
`TAILRACE_KERNEL`, which is `off` to leave the compiled kernel out, or `on` to refuse to run without it.
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
