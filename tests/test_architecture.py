"""Data flows one way through the packages: each may import only what stands before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tailrace

SOURCE = Path(tailrace.__file__).parent
FLOW = [
    "logs",
    "rate_limited_log",
    "server_codes",
    "retry",
    "errors",
    "extras",
    "masking",
    "deployment",
    "families",
    "settings_source",
    "settings_types",
    "settings",
    "http_client",
    "certificate",
    "redis_access",
    "kernel",
    "raw",
    "event",
    "owned",
    "token",
    "policy",
    "fold",
    "client",
    "oplog",
    "engine",
    "proof",
    "hub",
    "cluster",
    "gateway",
    "driver",
    "monitor",
    "telemetry",
    "capture",
    "audit",
    "durable",
    "watching",
    "testing",
    "spark",
    "features",
    "warehouse",
    "dashboard",
    "diagnosis",
    "stand",
    "up",
    "cli",
]
INDEPENDENT = {"stand": {"errors", "owned"}}
STARTED_ELSEWHERE = {
    "stand/background.py": "a stand in the background stays when the command that started it ends",
}
"""Who may start a process without the guard, and why."""


def imported_parts(file: Path) -> set[str]:
    """The parts of tailrace (packages or top-level modules) that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} if node.module != "tailrace" else {f"tailrace.{a.name}" for a in node.names}
    return {name.split(".")[1] for name in names if name.startswith("tailrace.")}


def parts() -> list[str]:
    """The packages and modules that exist."""
    found = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    return sorted(found - {"__init__", "__pycache__", "py"})


def files_of(part: str) -> list[Path]:
    return sorted((SOURCE / part).rglob("*.py")) if (SOURCE / part).is_dir() else [SOURCE / f"{part}.py"]


@pytest.mark.parametrize("part", parts())
def test_imports_go_one_way(part):
    assert part in FLOW, f"{part} has no place in the flow"
    allowed = INDEPENDENT.get(part, set(FLOW[: FLOW.index(part)])) | {part}
    for file in files_of(part):
        wrong = imported_parts(file) & set(FLOW) - allowed
        assert not wrong, f"{file.relative_to(SOURCE)} imports {', '.join(sorted(wrong))}"


ROOMS = {
    "capture": ["formats", "positions", "dead_letters", "sinks", "snapshot", "source", "recovery", "producer"],
    "dashboard": ["sources", "view", "web"],
}
"""The rooms of the larger packages: each may import only from those before it, and from the modules beside them."""


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_one_way(package: str) -> None:
    rooms = ROOMS[package]
    assert {path.parent.name for path in (SOURCE / package).glob("*/__init__.py")} == set(rooms)
    for room in rooms:
        later = {f"tailrace.{package}.{name}" for name in rooms[rooms.index(room) + 1 :]}
        for file in (SOURCE / package / room).glob("*.py"):
            modules = {
                node.module for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)
            }
            wrong = {module for module in modules if module and ".".join(module.split(".")[:3]) in later}
            assert not wrong, f"{file.relative_to(SOURCE)} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("part", [part for part in parts() if (SOURCE / part).is_dir()])
def test_each_package_says_what_belongs_there(part):
    for package in {file.parent for file in files_of(part)}:
        docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
        assert docstring, f"{package.relative_to(SOURCE)}/__init__.py has no docstring"
        assert len(docstring) > 80, f"{package.relative_to(SOURCE)}/__init__.py says too little"


STARTERS = {
    "threading": {"Thread", "Timer"},
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp"},
    "multiprocessing": {"Process", "Pool", "get_context"},
    "concurrent.futures": {"ProcessPoolExecutor"},
}


def started_by(file: Path) -> set[str]:
    """What a file uses that starts threads or processes nobody owns."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in STARTERS.get(node.value.id, ()):
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in STARTERS:
            found |= {f"{node.module}.{each.name}" for each in node.names if each.name in STARTERS[node.module]}
    return found


@pytest.mark.parametrize("part", [part for part in parts() if part != "owned"])
def test_threads_and_processes_have_an_owner(part):
    for file in files_of(part):
        if str(file.relative_to(SOURCE)) not in STARTED_ELSEWHERE:
            assert not started_by(file), f"{file.relative_to(SOURCE)}: use tailrace.owned"


FORKED = {"crash_process.py", "capture/positions/test_crash.py"}
"""Tests whose processes are forked, with the state of the test in them; they call `end_with_parent`."""

UNGUARDED = {"debezium_run.py", "stand/test_wine.py"}
"""Tests that still start processes of their own, and end them when they are not killed; the list only gets shorter."""


def test_what_tests_start_ends_with_them():
    """A run of the tests that is killed leaves no process behind; threads end with it anyway."""
    here = Path(__file__).parent
    for file in sorted(here.rglob("*.py")):
        name = str(file.relative_to(here))
        started = {each for each in started_by(file) if not each.startswith("threading")}
        if name in FORKED:
            assert "end_with_parent()" in file.read_text(), name
        elif name not in UNGUARDED:
            assert not started, f"{name}: use tailrace.owned"


PRIVATE_OF_PYSPARK = {
    "spark/jvm.py": {"_ensure_initialized", "_jdf", "_jsparkSession", "_jvm"},
    "spark/prefetching.py": {"datasource_internal"},
}
"""The modules that use what PySpark does not promise, each with another way for releases that lack it."""
_JAVA = (
    "_jvm",
    "_jsc",
    "_jdf",
    "_jc",
    "_jsparkSession",
    "_jreader",
    "_jwrite",
    "_jsq",
    "_gateway",
    "_ensure_initialized",
)


def test_internal_names_of_pyspark_are_in_their_modules():
    found = {}
    for part in ("spark", "features", "warehouse", "cli", "up", "dashboard"):
        for file in files_of(part):
            names = {
                node.attr for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Attribute) and node.attr in _JAVA
                and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            }  # fmt: skip
            names |= {text for text in ("_jvm", "datasource_internal") if f'"{text}"' in file.read_text()}
            names |= {"datasource_internal"} if "pyspark.sql.datasource_internal" in file.read_text() else set()
            if names:
                found[str(file.relative_to(SOURCE))] = names
    assert found == PRIVATE_OF_PYSPARK
