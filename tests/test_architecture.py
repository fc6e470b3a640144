"""Data flows one way through the packages: each may import only what stands before it."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tailrace
from waiting import SECONDS

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
    "spark_settings",
    "object_store",
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
INDEPENDENT = {"stand": {"errors", "owned", "retry", "server_codes"}}
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
    "warehouse": ["columns", "tables", "mirror", "batch"],
}
"""The rooms of the larger packages: each may import only from those before it, and from the modules beside them."""
BESIDE = {
    "warehouse": {
        "columns": [],
        "tables": [],
        "mirror": ["summary"],
        "batch": ["summary", "history", "dead_letters"],
    }
}
"""The modules beside its rooms that each room may import, where not all of them."""


def modules_of(package: str) -> dict[str, Path]:
    """All modules of a package, by their full names; a room's `__init__` has the name of the room."""
    found = {}
    for file in files_of(package):
        names = ["tailrace", *file.relative_to(SOURCE).with_suffix("").parts]
        found[".".join(names[:-1] if names[-1] == "__init__" else names)] = file
    return found


def imported_modules(file: Path, known: dict[str, Path]) -> set[str]:
    """Those of the known modules that a file imports, by whichever statement."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else node.module for name in inside}
    return names & known.keys()


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_one_way(package: str) -> None:
    rooms = ROOMS[package]
    assert {path.parent.name for path in (SOURCE / package).glob("*/__init__.py")} == set(rooms)
    modules = modules_of(package)
    beside = {path.stem for path in (SOURCE / package).glob("*.py")} - {"__init__"}
    for room in rooms:
        allowed = {*rooms[: rooms.index(room) + 1], *BESIDE.get(package, {}).get(room, beside)}
        for file in (SOURCE / package / room).glob("*.py"):
            imported = {name.split(".")[2] for name in imported_modules(file, modules) if name.count(".") > 1}
            assert imported <= allowed, f"{file.relative_to(SOURCE)} imports {', '.join(sorted(imported - allowed))}"


@pytest.mark.parametrize("package", ["dashboard", "warehouse"])
def test_no_modules_import_each_other(package: str) -> None:
    """Each can be read after those it imports. A room's `__init__` collects its names, and is left out."""
    modules = {name: file for name, file in modules_of(package).items() if file.name != "__init__.py"}
    graph = {name: imported_modules(file, modules) for name, file in modules.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)


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

UNGUARDED = {"stand/test_wine.py"}
"""A test of what ends when an owner is killed: the guard of that owner would end it all in place of what is tested."""


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


_SHORT = 2.5
"""Seconds up to which a wait is a pause between two polls, or expected to end without what it waits for."""
_WAITS = {"wait", "join", "result", "communicate", "run_guarded", "wait_for", "settimeout"}
MEASURED = {"losses", "load", "nemesis", "newcomer"}
"""Tests that measure, or have limits of their own in their make target."""


def limits_in(text: str) -> list[tuple[int, float]]:
    """Waits for what has to happen that end after a fixed number of seconds, with their lines."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
        if isinstance(node.func, ast.Attribute) and len(node.args) == (2 if name == "wait_for" else 1):
            given.append(node.args[-1])
        for value in given if name in _WAITS else ():
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                found.append((node.lineno, float(value.value)))
    return found


def test_what_tests_wait_for_may_take_as_long_as_a_busy_machine_needs():
    """A short limit tests the machine: all have that of `waiting`, which is just below the limit of a test."""
    here = Path(__file__).parent
    for file in sorted(here.rglob("*.py")):
        name = file.relative_to(here)
        short = [limit for limit in limits_in(file.read_text()) if _SHORT <= limit[1] < SECONDS]
        assert name.parts[0] in MEASURED or not short, f"{name}: use waiting.SECONDS, not {short}"


def test_a_short_limit_is_found():
    text = "assert done.wait(30)\nrun_guarded(['x'], timeout=60)\nwait_for(x, 5)\nstop.wait(0.05)\n', '.join(names)"
    assert limits_in(text) == [(1, 30.0), (2, 60.0), (4, 0.05)]


OPENS_HTTP = {
    "http_client.py": "the one client",
    "monitor/alerts.py": "alerts go through the proxy of the environment, which urllib knows",
}


def test_there_is_one_http_client():
    opens = re.compile(
        r"HTTPS?Connection\(|urlopen\(|build_opener\(|^(import|from) (httpx|requests|aiohttp)\b", re.MULTILINE
    )
    found = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if opens.search(file.read_text())}
    assert found == OPENS_HTTP.keys()


PRIVATE_OF_PYSPARK = {
    "spark/jvm.py": {"_ensure_initialized", "_jdf", "_jsparkSession", "_jsq", "_jvm", "datasource_internal"},
}
"""The module that uses what PySpark does not promise, with another way for releases that lack it."""
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
