"""What the pages show was computed: tokens by the program, the merge by the router, events by the engine."""

from __future__ import annotations

import re
import shlex

import bson
import pytest
from bson import Timestamp, json_util

from cluster.test_merge import FakeEvent, mark
from docs.pages import blocks, read
from engine.small_oplog import open_small
from tailrace.cli.app import run
from tailrace.cluster import Merge

CONSOLES = [
    pytest.param(block.text, id=f"{page} {block.text.splitlines()[0][:60]}")
    for page in ("concepts/tokens.md", "concepts/high-water-mark.md")
    for block in blocks(page)
    if block.language == "console"
]


@pytest.mark.parametrize("console", CONSOLES)
def test_a_console_shows_what_the_program_prints(console: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, shown = console.partition("\n")
    words = shlex.split(command)
    assert words[:2] == ["$", "tailrace"]
    assert run(words[2:]) == 0
    assert capsys.readouterr().out == shown


def test_the_type_bits_make_the_difference_that_the_page_tells(capsys: pytest.CaptureFixture[str]) -> None:
    token = re.search(r"decode (\w+) --type-bits", read("concepts/tokens.md"))
    assert token is not None
    assert run(["token", "decode", token.group(1)]) == 0
    assert '{"_id": 3}' in capsys.readouterr().out


def merge_steps() -> list[list[str]]:
    """The rows of the worked example, without their numbers."""
    rows = re.findall(r"^\| \d \|(.*)\|$", read("concepts/merge.md"), re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def test_the_worked_merge_is_what_the_merge_does() -> None:
    merge: Merge[FakeEvent] = Merge()
    names = {mark(time).key: f"mark {time}" for time in range(100)}
    first, *steps = merge_steps()
    for shard in "abc":
        merge.add(shard, mark(10))
    assert len(steps) == 6
    for number, step in enumerate([first, *steps], 1):
        arrives = step[0]
        if arrives:
            shard, _, given = arrives.partition(": ")
            fed = [FakeEvent(shard, int(time), 0) for time in re.findall(rf"\b{shard}(\d+)", given)]
            names |= {event.sort_key: f"{shard}{event.time}" for event in fed}
            marked = re.search(r"mark (\d+)", given)
            merge.feed(shard, fed, mark(int(marked.group(1))) if marked else fed[-1].position)
        left = merge.take()
        marks = [names[backlog.high_water_mark.key] for backlog in merge.backlogs(now=float(number))]
        leaves = " ".join(f"{event.shard}{event.time}" for event in left)
        assert [arrives, *marks, leaves, names[merge.position.key]] == step
        if number == 3:
            assert [backlog.shard for backlog in merge.backlogs(now=3.0) if backlog.blocks_merge] == ["c"]


def test_the_stages_make_the_events_of_the_entries() -> None:
    given, shown = [block.text.splitlines() for block in blocks("concepts/stages.md") if block.language == "json"]
    entries = [bson.encode(json_util.loads(line)) for line in given]
    start = {"startAtOperationTime": Timestamp(1777636800, 0)}
    stream = open_small(*entries, **start)
    events = [bson.decode(event.raw) for event in stream.next_batch()]
    assert [json_util.dumps(event, json_options=json_util.RELAXED_JSON_OPTIONS) for event in events] == shown
    assert stream.is_closed
    other = open_small(*entries[:3], collection="other", **start)
    assert other.next_batch() == []
    assert f"`{other.post_batch_resume_token.hex}`" in read("concepts/stages.md")
