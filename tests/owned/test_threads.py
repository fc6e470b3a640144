"""The owner of a thread learns of its death, and says what becomes of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tailrace.owned import OwnedThread, repeated, run_together
from waiting import SECONDS


@pytest.fixture(autouse=True)
def fresh_log() -> Any:
    yield
    structlog.reset_defaults()


def test_a_death_is_reported_and_the_owner_ends_it() -> None:
    told: list[BaseException] = []
    died = ValueError("mongodb://ann:hunter2@host/ is away")

    def run() -> None:
        raise died

    thread = OwnedThread(run, name="reader", on_death=told.append)
    with capture_logs() as logged:
        thread.start()
        assert thread.join(SECONDS)
    assert told == [died]
    assert (thread.error, thread.deaths, thread.is_alive) == (died, 1, False)
    (line,) = logged
    assert (line["event"], line["log_level"], line["thread"]) == ("thread_died", "error", "reader")
    assert "test_threads.py:" in line["where"]
    assert "hunter2" not in str(line)


def test_it_is_run_again_when_the_owner_says_so() -> None:
    runs: list[int] = []
    came_back = threading.Event()

    def run() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError
        came_back.set()

    thread = OwnedThread(run, name="tail", on_death=lambda _: 0.0)
    thread.start()
    assert came_back.wait(SECONDS)
    assert thread.join(SECONDS)
    assert thread.deaths == 2


def test_who_waits_for_its_end_does_not_wait_for_the_next_run() -> None:
    died = threading.Event()

    def run() -> None:
        died.set()
        raise RuntimeError

    thread = OwnedThread(run, name="tail", on_death=lambda _: 3_600.0)
    thread.start()
    assert died.wait(SECONDS)
    assert thread.join(SECONDS)


@pytest.mark.parametrize("death", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_no_kind_of_end_is_silent(death: BaseException) -> None:
    def run() -> None:
        raise death

    thread = OwnedThread(run, name="any")
    thread.start()
    assert thread.join(SECONDS)
    assert thread.error is death


def test_an_owner_that_fails_itself_is_reported_too() -> None:
    def on_death(_: BaseException) -> float:
        raise RuntimeError("nobody to tell")

    def run() -> None:
        raise ValueError

    thread = OwnedThread(run, name="orphan", on_death=on_death)
    with capture_logs() as logged:
        thread.start()
        assert thread.join(SECONDS)
    assert [line["event"] for line in logged] == ["thread_died", "owner_failed"]


def test_a_thread_that_was_not_started_has_ended() -> None:
    assert OwnedThread(lambda: None, name="idle").join(SECONDS)


def test_calls_are_made_together_and_failures_given_back() -> None:
    both = threading.Barrier(2, timeout=SECONDS)
    failure = ValueError("one of them")

    def meet() -> None:
        both.wait()

    def meet_and_fail() -> None:
        both.wait()
        raise failure

    assert run_together([meet, meet_and_fail], name="pair") == [failure]
    assert run_together([], name="nobody") == []


@pytest.mark.parametrize("at_once", [False, True])
def test_a_repeated_call_goes_on_after_one_that_failed(at_once: bool) -> None:
    calls: list[int] = []
    again = threading.Event()

    def call() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError
        again.set()

    with capture_logs() as logged, repeated(call, 0.001, name="poll", at_once=at_once):
        assert again.wait(SECONDS)
    assert [line["event"] for line in logged] == ["thread_died"]
    assert not [thread for thread in threading.enumerate() if thread.name == "poll"]


def test_the_first_repeated_call_comes_at_once_or_after_the_time() -> None:
    called = threading.Event()
    with repeated(called.set, 3600, name="poll"):
        assert not called.is_set()
    assert not called.is_set()
    with repeated(called.set, 3600, name="poll", at_once=True):
        assert called.wait(SECONDS)
