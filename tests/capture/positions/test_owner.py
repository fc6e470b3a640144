"""Names of writers, and whether they still live."""

from __future__ import annotations

import subprocess
import sys

from tailrace.capture.positions import open_store, this_process
from tailrace.capture.positions.position import has_ended
from tailrace.owned import GuardedProcess, run_guarded
from waiting import SECONDS

NAME = "from tailrace.capture.positions import this_process; print(this_process(), flush=True); input()"


def test_a_process_knows_its_own_name_and_lives() -> None:
    assert this_process() == this_process()
    assert not has_ended(this_process())


def test_another_process_is_known_to_live_and_to_have_ended() -> None:
    with GuardedProcess(
        [sys.executable, "-c", NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        name = other.stdout.readline().strip()
        assert not has_ended(name)
        other.kill()
        other.wait(SECONDS)
        assert has_ended(name)
        assert not has_ended(f"elsewhere{name}")


def test_nothing_is_said_of_names_that_are_no_processes() -> None:
    for name in ("", "host", "host/1", "a/b/c/d", "Ada"):
        assert not has_ended(name)


def test_a_number_that_another_process_got_since_is_another_process() -> None:
    machine_and_pid, _, start = this_process().rpartition("/")
    assert has_ended(f"{machine_and_pid}/{int(start) + 1}")


def test_a_machine_of_the_same_name_is_another_machine() -> None:
    """Clones have one host name, and the first process namespace has the same number everywhere."""
    host, boot, namespace, pid, start = this_process().split("/")
    assert not has_ended(f"{host}/{boot[::-1]}x/{namespace}/{pid}/{int(start) + 1}")
    assert not has_ended(f"{host}/{namespace}/{pid}/{int(start) + 1}"), "what version 0.1.0 wrote says too little"


def test_nobody_waits_for_the_lease_of_a_dead_process(tmp_path: object) -> None:
    gone = run_guarded(
        [sys.executable, "-c", NAME], input="\n", capture_output=True, text=True, check=True, timeout=SECONDS
    )
    with open_store(f"file:{tmp_path}") as store:
        store.acquire("orders", gone.stdout.strip(), seconds=600)
        assert store.acquire("orders", this_process()).epoch == 2
