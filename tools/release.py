"""Make a release ready: check version and changelog, build wheel and sdist, install the wheel and run it.

`make release` runs it. What is left afterwards needs a token only: `twine upload dist/*`, and `git tag`.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Check, build, install and run."""
    problems = list(problems_of(ROOT))
    for problem in problems:
        print(f"not ready: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    wheel = build(ROOT / "dist")
    print(f"{wheel.name} says: {installed_version(wheel)}")
    print("ready: git tag, then twine upload dist/*")


def problems_of(root: Path) -> list[str]:
    """Say what is not in step: the version in three places, and a changelog that is still open."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    package = re.search(r'__version__ = "(.+?)"', (root / "src/tailrace/__init__.py").read_text())
    heading = re.search(r"^## (\S+) ?(.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = []
    if package is None or package[1] != version:
        found.append(f"tailrace.__version__ is not {version}, as pyproject.toml has it")
    if heading is None or heading[1] != version:
        found.append(f"the first heading of CHANGELOG.md is not {version}")
    elif not re.fullmatch(r"\(\d{4}-\d{2}-\d{2}\)", heading[2]):
        found.append(f"CHANGELOG.md gives {version} no date, such as (2026-12-24)")
    return found


def build(folder: Path) -> Path:
    """Build both kinds of package; gives the wheel."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], check=True, cwd=ROOT)
    return max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def installed_version(wheel: Path) -> str:
    """Install the wheel into an environment of its own, core only, and ask it."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        asked = subprocess.run(
            [Path(folder) / "bin" / "tailrace", "--version"], check=True, capture_output=True, text=True
        )
        return asked.stdout.strip()


if __name__ == "__main__":
    main()
