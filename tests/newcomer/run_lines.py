"""Run command lines one after the other in one process, and write down their exit codes and what they complained about.

`python run_lines.py LINES RESULTS [--core]`, where LINES is a JSON file with a list of argument lists. With `--core`
everything that an extra brings is hidden, as if it was not installed: the import of it fails, and `find_spec` does not
find it.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from tailrace.extras import EXTRA_OF


class CoreFinder(PathFinder):
    """Finds what the core needs, and nothing that an extra brings."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in EXTRA_OF else super().find_spec(name, path, target)


def main(lines: str, results: str, *flags: str) -> None:
    if "--core" in flags:
        sys.meta_path[:] = [CoreFinder if finder is PathFinder else finder for finder in sys.meta_path]
    from tailrace.cli.app import run

    ended = []
    for arguments in json.loads(Path(lines).read_text()):
        printed, complaint = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(complaint):
            code = run(arguments)
        stdout = printed.buffer.getvalue().decode()  # type: ignore[attr-defined]
        ended.append({"code": code, "stdout": stdout, "stderr": complaint.getvalue()})
    Path(results).write_text(json.dumps(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
