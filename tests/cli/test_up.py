"""`tailrace up --demo` as a person uses it: one run of the real pipeline serves all tests of this file."""

from __future__ import annotations

import json
import shlex
import urllib.request
from collections.abc import Iterator

import pytest

from tailrace.cli.app import run
from tailrace.up.demo import ENTITY
from tailrace.warehouse import read_tables
from up_pipeline import SECONDS, Pipeline, alive, kill, running_pipeline, wait_gone

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(3 * SECONDS)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with running_pipeline(tmp_path_factory.mktemp("up")) as running:
        yield running


def newest_batch(pipeline: Pipeline) -> int:
    (mirror,) = (
        table
        for table in read_tables(pipeline.folder / ".tailrace" / "up" / "warehouse")
        if table.name == "shop.transactions"
    )
    return int(mirror.snapshots[-1].properties["tailrace.batch"])


def test_a_payment_made_by_hand_reaches_features_page_and_tables(pipeline):
    user = 990_017  # nobody whom the load knows
    printed = pipeline.pay(user, 12.25)
    assert printed.startswith(f"user {user} paid 12.25: ")
    key = printed.split()[-1]

    pipeline.wait_for_features_of(user)
    lookup = pipeline.suggested(" lookup ").replace(str(ENTITY), str(user))
    assert json.loads(pipeline.run(f"{lookup} --json"))["values"]["amount_1h"] == 12.25
    redis_cli = pipeline.suggested("redis-cli").replace(f":{ENTITY}:", f":{user}:")
    assert "by-hand" in pipeline.run(redis_cli)

    address = pipeline.wait_ready()["dashboard"]
    with urllib.request.urlopen(f"{address}api/features/fraud/{user}", timeout=120) as answer:
        assert "by-hand" in answer.read().decode()

    # The batch that runs now may have begun before the payment; the one after it has it for certain.
    now = newest_batch(pipeline)
    pipeline.wait_until(lambda: newest_batch(pipeline) >= now + 2, "two more batches of the warehouse")
    query = f"SELECT user_id, amount FROM shop.transactions WHERE merchant = 'by-hand' AND _id = '{key}'"
    suggested = shlex.split(pipeline.suggested(" sql "))
    rows = pipeline.run(shlex.join([*suggested[:-1], query, "--json"]))
    assert [json.loads(line) for line in rows.splitlines()] == [{"user_id": user, "amount": 12.25}]


def test_a_killed_producer_comes_back_and_misses_nothing(pipeline):
    user, before = 990_018, pipeline.pid_of("producer")
    assert pipeline.suggested("kill -9") == f"kill -9 {before}"
    kill(before)
    pipeline.pay(user, 1)
    pipeline.wait_until(lambda: pipeline.pid_of("producer") != before, "the producer's return")
    pipeline.wait_for_features_of(user)


def test_a_second_run_in_the_same_folder_is_refused(pipeline, capsys):
    assert run(["up", "--folder", str(pipeline.folder / ".tailrace" / "up")]) == 78
    assert "error[already-up]" in capsys.readouterr().err


def test_ctrl_c_stops_everything_in_order_and_leaves_no_process(pipeline):
    started = pipeline.processes()
    assert len(alive(started)) > len(pipeline.parts)
    assert pipeline.interrupt() == 0
    pipeline.close()
    wait_gone(started)
    stopped = [line["part"] for line in pipeline.said if line.get("state") == "stopped"]
    assert sorted(stopped) == sorted(pipeline.parts)
    assert stopped[0] == "load"
    assert set(stopped[-3:]) == {"mongodb", "kafka", "redis"}
    assert pipeline.said[-1]["event"] == "stopped"
