"""Random documents with marked values under random policies: no mark that is to be hidden is found in any output.

`make canary` does it for 100,000 documents; the short form is part of `make test`.
"""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from canaries import NAMES, Canaries, Canary, found_in
from schema_keeping import KeepingRegistry
from tailrace.capture.dead_letters.dead_letters import FileDeadLetters
from tailrace.capture.formats import Format, FormatOptions
from tailrace.capture.formats.make import NAMES as FORMATS
from tailrace.errors import EventUnconvertible, TailraceError
from tailrace.policy import Policy

DOCUMENTS = int(os.environ.get("DOCUMENTS", "600"))
SEED = int(os.environ.get("SEED", "1"))
_DOCUMENTS_PER_POLICY = 20


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kernel", ["on", "off"])
def test_no_mark_is_found_in_records_letters_or_errors(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference, and by the compiled kernel."""
    if kernel == "on":
        pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", kernel)
    canaries, chance = Canaries(SEED), random.Random(SEED)
    hidden = shown = refused = 0
    for number in range(DOCUMENTS):
        if number % _DOCUMENTS_PER_POLICY == 0:
            policy = canaries.new_policy()
            formats = list(_formats(policy))
        canary = canaries.canary()
        output = b" ".join(_outputs(policy, formats, canary, chance))
        for mark in canary.hidden:
            assert not found_in(output, mark), f"{mark} of seed {SEED}, document {number}, rules {canaries.rules}"
        plain = _applied(policy, canary.event)
        for mark in canary.shown if plain else ():
            assert found_in(plain, mark), f"{mark} of seed {SEED}, document {number} is gone: {canaries.rules}"
        hidden, shown = hidden + len(canary.hidden), shown + len(canary.shown)
        refused += b"cannot" in output
    assert min(hidden, shown) > DOCUMENTS / 2, "the policies must hide something, and not all"
    assert refused, "some events must be dead letters"


def _formats(policy: Policy) -> Iterator[Format]:
    fields = tuple(NAMES[:4])
    for name in FORMATS:
        for keeps in (True, False):
            options = FormatOptions(
                name, fields=fields, policy=policy, keeps_unrepresentable=keeps, registry=KeepingRegistry()
            )
            yield options.make()
    yield FormatOptions("json", key_field="email", policy=policy).make()


def _outputs(policy: Policy, formats: list[Format], canary: Canary, chance: random.Random) -> Iterator[bytes]:
    """Give all that leaves the process for an event: records of every format, dead letters, and errors."""
    for each in formats:
        try:
            for record in each.batch([canary.event]):
                headers = b" ".join(name.encode() + b"=" + value for name, value in record.headers)
                yield b" ".join([record.key or b"", record.value or b"", headers, record.event])
        except EventUnconvertible as error:
            yield _letter(policy, canary.event, error)
    cut = canary.event[: chance.randrange(len(canary.event))]
    yield _letter(policy, cut, _error_of(policy, cut))


def _applied(policy: Policy, event: bytes) -> bytes:
    """Give the event under the policy; nothing for an update whose path can be read in two ways."""
    try:
        return policy.event(event)
    except EventUnconvertible as error:
        if "position or a name" in str(error):
            return b""
        raise


def _error_of(policy: Policy, event: bytes) -> TailraceError:
    try:
        policy.event(event)
    except EventUnconvertible as error:
        return error
    return EventUnconvertible("no error")


def _letter(policy: Policy, event: bytes, error: TailraceError) -> bytes:
    """Give the line of a dead letter, and what a log may say of its error."""
    written: list[bytes] = []
    letters = FileDeadLetters(Path("/nowhere"))
    letters._write = lambda letter: written.append(repr(letter).encode())  # type: ignore[method-assign]
    letters.add(policy.event_or_stripped(event), error)
    return b" ".join([*written, repr(error).encode(), str(error).encode()])


def test_a_mark_is_found_in_base64_wherever_it_stands() -> None:
    mark = "320610640721540746"
    number = int(mark).to_bytes(8, "little")
    for before in range(4):
        for after in range(4):
            for text in (mark.encode(), number):
                assert found_in(base64.b64encode(b"\xff" * before + text + b"\xff" * after), mark)
    assert not found_in(b"atet", mark)
