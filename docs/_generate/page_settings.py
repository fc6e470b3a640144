"""The page of the settings: every key with its type, default and meaning."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import prose

from tailrace.settings import ENVIRONMENT_PREFIX, Settings, describe

_INTRODUCTION = """# Settings

Settings come from three sources; later ones override earlier ones: the file `tailrace.toml` in the working folder (or
the file named by `--config` or `TAILRACE_CONFIG`), environment variables, and command-line flags. An unknown key is an
error, wherever it is.

Relative paths in the file, and default paths, are relative to the folder of the file, so that the same settings work
from any folder. Paths in variables and flags are relative to the working folder. In a systemd unit with a
`StateDirectory`, default paths are relative to that directory.

No command, log, page or error shows secrets: tokens, passwords in URIs, and the values of secret parameters and keys
(`sasl.password`, `ssl.key.pem`, `fs.s3a.secret.key`, ...). Every setting of the type `secret` can also be read from a
file, under its name with `_file`: `uri_file = "/run/secrets/mongodb-uri"`, or `TAILRACE_CAPTURE__SINK_FILE`. A
trailing line break in the file is ignored.

    [mongodb]
    uri = "mongodb://127.0.0.1:27017/?replicaSet=rs0"

is `TAILRACE_MONGODB__URI` in the environment. A list in a variable is `a,b` or JSON. `tailrace settings` prints the
values in effect. Three variables are not in the file: `TAILRACE_CONFIG`; `TAILRACE_CACHE`, the folder for downloaded
servers and jars; and `TAILRACE_KERNEL`, which is `off` to run without the compiled kernel, or `on` to refuse to.
"""


def page() -> str:
    """Make the page."""
    parts = [_INTRODUCTION]
    for section, keys in groupby(describe(), key=lambda key: key[0].partition(".")[0]):
        about = Settings.model_fields[section].annotation
        rows = [
            (f"`{name.partition('.')[2]}`", f"`{kind}`", _default(default), prose.cell(meaning))
            for name, kind, default, meaning in keys
        ]
        parts.append(f"\n## [{section}]\n\n{prose.paragraphs((about and about.__doc__) or '')}\n")
        parts.append(prose.table(("key", "type", "default", "meaning"), rows))
        parts.append(f"\nIn the environment: `{ENVIRONMENT_PREFIX}{section.upper()}__KEY`.\n")
    return "\n".join(parts)


def _default(value: Any) -> str:
    return "none" if value in (None, (), {}) else f"`{value}`"
