"""Damaged inputs at every door: nothing but a value or an error of ours comes out, and no memory stays behind.

`make fuzz INPUTS=1000000` is the long form. What was found once is kept in `tests/data/fuzz.jsonl`, and tried every
time. The gateway's frames beside a watcher are in `tests/gateway/test_frame_fuzz.py`, the kernel's own entries in
`make fuzz-kernel`.
"""

from __future__ import annotations

import base64
import gc
import json
import os
from itertools import islice

import pytest

from fuzz.doors import DOORS, Door
from fuzz.inputs import ROOT, mutants
from gateway.test_many_watchers import resident_bytes

INPUTS = int(os.environ.get("INPUTS", "500"))
SEED = int(os.environ.get("SEED", "1"))
WARM_UP = 0.3
"""Caches fill up in the first part of a run; what grows behind it grows for ever."""
MOST_GROWTH = 48 << 20
FOUND = ROOT / "tests" / "data" / "fuzz.jsonl"


def found() -> list[tuple[str, bytes]]:
    lines = [json.loads(line) for line in FOUND.read_text().splitlines()]
    return [(line["door"], base64.b64decode(line["input"])) for line in lines]


def enter(door: Door, data: bytes) -> None:
    """Try one input; a failure says how to keep it."""
    try:
        door.enter(data)
    except Exception as error:
        line = json.dumps({"door": door.name, "input": base64.b64encode(data).decode()})
        raise AssertionError(f"{type(error).__name__}: {error}\nkeep it in {FOUND.name}: {line}") from error


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_damaged_inputs(door: Door) -> None:
    stream = mutants(door.seeds(), SEED, is_bson=door.is_bson)
    for data in islice(stream, int(INPUTS * WARM_UP)):
        enter(door, data)
    gc.collect()
    before = resident_bytes()
    for data in islice(stream, INPUTS - int(INPUTS * WARM_UP)):
        enter(door, data)
    gc.collect()
    assert resident_bytes() - before < MOST_GROWTH


@pytest.mark.parametrize(("name", "data"), found())
def test_what_was_found_before(name: str, data: bytes) -> None:
    enter(next(door for door in DOORS if door.name == name), data)
