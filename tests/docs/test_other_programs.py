"""Commands of other programs on the pages: what they name of ours exists. A program that nobody checks is an error."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from command_lines import complaint_about_words
from docs.pages import DOCS, ROOT, all_pages
from tailrace.dashboard.web.endpoints import description
from tailrace.settings import Settings
from tailrace.spark import CONNECTORS

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
UNITS = {file.name for file in (ROOT / "deploy" / "systemd").glob("*.service")}
PRODUCER = {"/metrics", "/healthz", "/state", "/pause", "/resume", "/snapshot", "/recover"}
Words = list[str]


def pip(words: Words) -> str | None:
    """Extras that are asked for exist."""
    asked = re.findall(r"tailrace\[([\w,]+)\]|\.\[([\w,]+)\]", " ".join(words))
    unknown = {name for pair in asked for name in ",".join(pair).strip(",").split(",")} - EXTRAS
    return f"no extra {unknown}" if unknown else None


def curl(words: Words) -> str | None:
    """The page at the address exists, at a producer or at the dashboard."""
    (address,) = [urlsplit(word) for word in words if word.startswith("http")]
    known = PRODUCER if address.port == 9464 else set(description()["paths"])
    return None if address.path in known else f"no page {address.path}"


def systemd(words: Words) -> str | None:
    """The unit exists; an instance is one of its template."""
    named = [word for word in words if word.startswith("tailrace")]
    unknown = {f"{re.sub('@.*', '@', name)}.service" for name in named} - UNITS
    return f"no unit {unknown}" if unknown else None


def files(words: Words) -> str | None:
    """Files and folders of the repository exist."""
    named = [word for word in words if word.split("/")[0] in ("deploy", "tests", "examples", "bench")]
    missing = [name for name in named if not list(ROOT.glob(name.partition("::")[0]))]
    return f"no file {missing}" if missing or not named else None


def bench_module(words: Words) -> str | None:
    """A module that is run by its name exists."""
    module = words[words.index("-m") + 1] if "-m" in words else None
    return f"no module {module}" if module and importlib.util.find_spec(module) is None else None


def settings_file(words: Words) -> str | None:
    """What is printed into a settings file are settings."""
    Settings.model_validate(tomllib.loads(words[1].encode().decode("unicode_escape")))
    return None


def job(words: Words) -> str | None:
    """A job is submitted with words that `tailrace` understands."""
    return files(words) or complaint_about_words(words[1:])


def spark_packages(words: Words) -> str | None:
    """The packages are those that the jobs use."""
    asked = [words[words.index("--packages") + 1]] if "--packages" in words[:-1] else []
    return f"not of the jobs: {asked}" if not set(asked) <= set(CONNECTORS) else None


def of_others(_: Words) -> None:
    """Nothing of ours is in it."""


def kubectl(words: Words) -> str | None:
    """What is applied is a folder of ours, and a label that is set is one that a manifest selects by."""
    if "label" not in words:
        return files(words)
    label = words[-1].partition("=")[0]
    manifests = (ROOT / "deploy" / "kubernetes").rglob("*.yaml")
    return None if any(label in manifest.read_text() for manifest in manifests) else f"no manifest has {label}"


CHECKS: dict[str, Callable[[Words], str | None]] = {
    "pip": pip, "/opt/tailrace/bin/pip": pip, "curl": curl, "systemctl": systemd, "journalctl": systemd,
    "kubectl": kubectl, "install": files, ".venv/bin/pytest": files, "deploy/spark/submit.sh": job,
    "uvx": lambda words: complaint_about_words(words[2:]), "printf": settings_file, "python": bench_module,
    "python3": bench_module, "spark-sql": spark_packages, "spark-submit": spark_packages, "export": of_others,
    "mkdir": of_others, "touch": of_others,
    "docker": of_others,  # the image, and what compose starts: tests/deploy
    "kafka-acls.sh": of_others, "redis-cli": of_others,  # `make access` sets each of them
    "mongod": of_others, "mongosh": of_others,  # tests/newcomer/test_deployments.py starts one so
}  # fmt: skip


def commands_on(page: Path) -> Iterator[str]:
    """Every line of a shell block, and what stands indented or as inline code and begins with a known program."""
    text = re.sub(r" \\\n\s+", " ", page.read_text())
    for language, block in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield from filter(None, block.splitlines() if language in ("", "sh", "bash") else ())
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^ {4,}(?:\$ )?(\S.*)$", rest, re.MULTILINE) + re.findall(r"`([^`\n]+ [^`\n]+)`", rest):
        if line.split()[0] in CHECKS:
            yield line


def complaint(line: str) -> str | None:
    words = shlex.split(re.split(r"\s+#\s|\s[>|]|\s2>|\s&", line)[0])
    if not words or words[0] in ("tailrace", "make"):  # `test_names.py` has these
        return None
    check = CHECKS.get(words[0])
    return f"nobody checks {words[0]}" if check is None else check(words)


TUTORIAL = DOCS / "tutorial.md"
"""It is executed, `test_tutorial.py`."""


PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in all_pages() if page != TUTORIAL]


@pytest.mark.parametrize("page", PAGES)
def test_what_commands_name_exists(page: Path) -> None:
    assert not {line: said for line in commands_on(page) if (said := complaint(line))}


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'tailrace[kafak]'",
        "curl http://127.0.0.1:9464/paus",
        "curl http://127.0.0.1:8480/api/stremas",
        "systemctl start tailrace-produser@orders",
        "kubectl apply -k deploy/kubernets",
        ".venv/bin/pytest tests/tokne",
        "uvx tailrace dmeo",
        "deploy/spark/submit.sh features features.toml --topcis a",
        "python -m bench.latnecy",
        "spark-sql --packages org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.0.0",
        "helm install tailrace",
    ],
)
def test_a_wrong_one_is_found(line: str) -> None:
    assert complaint(line)
