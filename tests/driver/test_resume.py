"""The resume logic alone: what it would send, compared with a literal restatement of the specification's text."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo.errors import (
    AutoReconnect,
    CursorNotFound,
    ExecutionTimeout,
    NotPrimaryError,
    OperationFailure,
)

from tailrace import server_codes
from tailrace.client.commands import Aggregate, DecodedBatch, GetMore, Reply
from tailrace.driver import ResumeRules, WatchOptions
from tailrace.driver.commands import Pause, Scope, Step
from tailrace.driver.resume import POLICY, ResumableStream, ResumeBudget, proceed
from tailrace.driver.rules import Failure
from tailrace.errors import ResumeTokenMissing

Position = dict[str, Any]


@dataclass
class SpecificationText:
    """Today's text, sentence by sentence: "Updating the Cached Resume Token" and "Resume Process"."""

    start_after: Any
    resume_after: Any
    start_at_operation_time: Any
    cached_resume_token: Any = None
    saved_operation_time: Any = None
    has_returned_a_document: bool = False

    def __post_init__(self) -> None:
        # "When the ChangeStream is started: if startAfter is set, cache it; else if resumeAfter is set, cache it;
        # else, resumeToken remains unset."
        if self.start_after is not None:
            self.cached_resume_token = self.start_after
        elif self.resume_after is not None:
            self.cached_resume_token = self.resume_after
        self.saved_operation_time = self.start_at_operation_time

    def initial_aggregate_returned(self, batch: list[Any], token: Any, operation_time: Any, wire_version: int) -> None:
        # "MUST save the operationTime from the initial aggregate response when: none of startAtOperationTime,
        # resumeAfter, startAfter were specified; the max wire version is >= 7; the response had no results;
        # it did not include a postBatchResumeToken."
        specified = (self.start_at_operation_time, self.resume_after, self.start_after)
        if all(one is None for one in specified) and wire_version >= 7 and not batch and token is None:
            self.saved_operation_time = operation_time

    def returned(self, batch: list[Any], token: Any) -> None:
        # "When aggregate or getMore returns: if an empty batch was returned and a postBatchResumeToken was
        # included, cache it."
        if not batch and token is not None:
            self.cached_resume_token = token

    def returning_a_document(self, identity: Any, is_last: bool, token: Any) -> None:
        # "When returning a document to the user: if it's the last document in the batch and a postBatchResumeToken
        # is included, cache it. Else, cache the _id of the document."
        self.cached_resume_token = token if is_last and token is not None else identity
        self.has_returned_a_document = True

    def resume_position(self, wire_version: int) -> Position:
        # "If there is a cached resumeToken: if the ChangeStream was started with startAfter and has yet to return
        # a result document, the driver MUST set startAfter to the cached resumeToken. Else: resumeAfter."
        if self.cached_resume_token is not None:
            if self.start_after is not None and not self.has_returned_a_document:
                return {"startAfter": self.cached_resume_token}
            return {"resumeAfter": self.cached_resume_token}
        # "Else if there is no cached resumeToken and the ChangeStream has a saved operation time (and the max wire
        # version is >= 7) ... MUST set startAtOperationTime."
        if self.saved_operation_time is not None and wire_version >= 7:
            return {"startAtOperationTime": self.saved_operation_time}
        # "Else: the driver MUST NOT set resumeAfter, startAfter, or startAtOperationTime."
        return {}


def token(number: int) -> dict[str, Any]:
    return {"_data": f"{number:08X}"}


def event(number: int) -> bytes:
    return bson.encode({"_id": token(number), "operationType": "insert", "n": number})


def never() -> float:
    return 0.0


def make(options: WatchOptions, budget: ResumeBudget | None = None) -> ResumableStream:
    scope = Scope.of_collection("shop", "orders")
    return ResumableStream(scope, [], options, budget or ResumeBudget(None, never, never))


def position_of(command: Aggregate) -> Position:
    stage = dict(command.command["pipeline"][0]["$changeStream"])
    return {name: dict(value) if name != "startAtOperationTime" else value for name, value in stage.items()}


@dataclass
class ScriptedServer:
    """Answers commands from a log of events, and fails when the script says so."""

    wire_version: int
    sends_tokens: bool
    decodes: bool = False
    """Its replies to getMore come decoded, as small ones do."""
    log: list[int] = field(default_factory=list)
    position: int = 0
    aggregates: list[Aggregate] = field(default_factory=list)

    def answer(self, command: Step, size: int, empty_first: bool) -> Reply:
        if isinstance(command, Aggregate):
            self.aggregates.append(command)
            self.position = self._find(position_of(command))
            size = 0 if empty_first else size
        batch = self.log[self.position : self.position + size]
        self.position += len(batch)
        last = self.log[self.position - 1] if self.position else 0
        encoded = bson.encode(token(last)) if self.sends_tokens else None
        time = Timestamp(self.log[-1] + 1 if self.log else 1, 1)
        if self.decodes and isinstance(command, GetMore):
            return self._decoded(batch, token(last) if self.sends_tokens else None, time)
        return Reply(1, "shop.orders", [event(number) for number in batch], encoded, time, self.wire_version)

    def _decoded(self, batch: list[int], last: Any, time: Timestamp) -> Reply:
        documents = [bson.decode(event(number)) for number in batch]
        decoded = DecodedBatch(documents, bson.encode({"cursor": {"nextBatch": documents}}))
        return Reply(1, "shop.orders", decoded, last, time, self.wire_version)

    def _find(self, position: Position) -> int:
        """Events are the numbers 1, 2, 3, ...; their cluster time is their number."""
        wanted = position.get("resumeAfter", position.get("startAfter"))
        if wanted is not None:
            return sum(number <= int(wanted["_data"], 16) for number in self.log)
        if "startAtOperationTime" in position:
            return sum(number < position["startAtOperationTime"].time for number in self.log)
        return len(self.log)


ERRORS = st.sampled_from([AutoReconnect("gone"), CursorNotFound("no", 43, {"code": 43}, 8)])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("fail"), ERRORS),
        st.tuples(st.just("fail twice"), st.just(AutoReconnect("still gone"))),
    ),
    max_size=25,
)
STARTS = st.sampled_from(["none", "resume_after", "start_after", "start_at_operation_time"])


@settings(max_examples=200, deadline=None)
@given(STARTS, st.sampled_from([6, 7, 8, 9, 17]), st.booleans(), st.booleans(), st.booleans(), ACTIONS)
def test_the_token_is_the_one_that_the_text_gives(
    start: str, wire_version: int, sends_tokens: bool, decodes: bool, empty_first: bool, actions: list[tuple[str, Any]]
) -> None:
    server = ScriptedServer(wire_version, sends_tokens, decodes, log=[1, 2, 3])
    chosen = {"none": {}, "resume_after": {"resume_after": token(2)}, "start_after": {"start_after": token(2)}}.get(
        start, {"start_at_operation_time": Timestamp(3, 0)}
    )
    stream = make(WatchOptions(**chosen))
    text = SpecificationText(
        chosen.get("start_after"), chosen.get("resume_after"), chosen.get("start_at_operation_time")
    )
    got: list[int] = []
    left: list[int] = []
    batch_token: Any = None

    def note(reply: Reply) -> None:
        nonlocal left, batch_token
        left = [bson.decode(one)["n"] for one in reply.events]
        raw = reply.post_batch_resume_token
        batch_token = bson.decode(raw) if isinstance(raw, bytes) else raw
        text.returned(left, batch_token)

    def check(step: Step | None) -> None:
        if isinstance(step, Aggregate):
            assert position_of(step) == text.resume_position(wire_version)

    steps = stream.open()
    reply = server.answer(proceed(steps, None), 2, empty_first)
    text.initial_aggregate_returned(
        list(reply.events), reply.post_batch_resume_token, reply.operation_time, wire_version
    )
    note(reply)
    assert proceed(steps, reply) is None
    first_unseen = server.log[-1] + 1 if start == "none" else 3

    for action, detail in actions:
        if action == "write":
            server.log += range(server.log[-1] + 1, server.log[-1] + 1 + detail)
        elif action == "take":
            for _ in range(detail):
                document = stream.take_document()
                if document is not None:
                    number = document["n"]
                    document.clear()  # it is the user's now
                elif (taken := stream.take()) is not None:
                    number = bson.decode(taken)["n"]
                else:
                    break
                got.append(number)
                assert number == left.pop(0)
                text.returning_a_document(token(number), not left, batch_token)
        else:
            steps = stream.advance()
            step = proceed(steps, None)
            check(step)
            if isinstance(step, Aggregate):  # an earlier attempt to resume failed
                reply = server.answer(step, 2, empty_first)
                note(reply)
                step = proceed(steps, reply)
            if isinstance(step, GetMore):
                if action == "read":
                    reply = server.answer(step, detail, empty_first)
                    note(reply)
                    assert proceed(steps, reply) is None
                else:
                    step = proceed(steps, detail)
                    check(step)
                    assert isinstance(step, Aggregate)
                    if action == "fail twice":
                        with pytest.raises(AutoReconnect):
                            proceed(steps, detail)
                    else:
                        reply = server.answer(step, 2, empty_first)
                        note(reply)
                        assert proceed(steps, reply) is None
        assert stream.resume_token == text.cached_resume_token
    assert stream.alive
    if wire_version >= 7:  # older servers can lose events until the first one, as the text allows
        assert got == list(range(first_unseen, first_unseen + len(got)))


# --- which errors are resumed


def failure(code: int, *labels: str, message: str = "") -> Failure:
    return Failure.of(OperationFailure("x", code, {"code": code, "errorLabels": list(labels), "errmsg": message}))


@pytest.mark.parametrize("rules", ResumeRules)
@pytest.mark.parametrize("wire_version", [6, 8, 9, 17])
def test_network_errors_and_lost_cursors_are_always_resumed(rules: ResumeRules, wire_version: int) -> None:
    assert rules.resumes(Failure.of(AutoReconnect("gone")), wire_version)
    assert rules.resumes(failure(43), wire_version)
    assert not rules.resumes(Failure.of(ValueError("mine")), wire_version)


@pytest.mark.parametrize("code", [11601, 136, 237])
def test_three_codes_are_not_resumed_before_4_4(code: int) -> None:
    assert not ResumeRules.DEFAULT.resumes(failure(code), 8)
    assert not ResumeRules.ALLOW_LIST.resumes(failure(code), 8)


def test_before_4_4_the_default_resumes_what_the_allow_list_does_not() -> None:
    assert ResumeRules.DEFAULT.resumes(failure(216), 8)
    assert not ResumeRules.ALLOW_LIST.resumes(failure(216), 8)
    for code in server_codes.RESUMABLE:
        assert ResumeRules.ALLOW_LIST.resumes(failure(code), 8)
        assert ResumeRules.DEFAULT.resumes(failure(code), 8)


def test_before_4_4_not_master_is_always_resumed_also_in_words() -> None:
    unnumbered = Failure.of(NotPrimaryError("not master", {"ok": 0, "errmsg": "not master"}))
    assert ResumeRules.DEFAULT.resumes(unnumbered, 7)


def test_before_4_4_a_server_may_say_that_resuming_is_useless() -> None:
    assert not ResumeRules.DEFAULT.resumes(failure(280, "NonResumableChangeStreamError"), 8)


def test_from_4_4_on_the_label_decides() -> None:
    for rules in (ResumeRules.DEFAULT, ResumeRules.ALLOW_LIST):
        assert not rules.resumes(failure(6), 9)
        assert rules.resumes(failure(280, "ResumableChangeStreamError"), 9)
    assert ResumeRules.VERSION_1_6.resumes(failure(6), 9)


# --- conversations


def opened(stream: ResumableStream, **reply: Any) -> None:
    steps = stream.open()
    assert isinstance(proceed(steps, None), Aggregate)
    fields = {"cursor_id": 1, "namespace": "shop.orders", "batch": [], "post_batch_resume_token": None}
    fields |= {"operation_time": Timestamp(1, 1), "max_wire_version": 8}
    assert proceed(steps, Reply(**{**fields, **reply})) is None


def test_an_error_of_the_first_aggregate_is_never_resumed() -> None:
    stream = make(WatchOptions(resume_for=timedelta(hours=1)))
    steps = stream.open()
    proceed(steps, None)
    with pytest.raises(AutoReconnect):
        proceed(steps, AutoReconnect("gone"))
    assert not stream.alive


def test_the_same_server_error_again_and_again_is_believed_at_last() -> None:
    stream = make(WatchOptions())
    opened(stream)
    error = OperationFailure("always", 216, {"code": 216, "errmsg": "always"})
    for _ in range(2):
        steps = stream.advance()
        assert isinstance(proceed(steps, None), GetMore)
        assert isinstance(proceed(steps, error), Aggregate)
        assert proceed(steps, Reply(2, "shop.orders", [], None, None, 8)) is None
    steps = stream.advance()
    proceed(steps, None)
    with pytest.raises(OperationFailure):
        proceed(steps, error)
    assert not stream.alive


def test_a_time_limit_of_the_server_ends_the_call_and_not_the_stream() -> None:
    stream = make(WatchOptions())
    opened(stream, max_wire_version=9)
    steps = stream.advance()
    proceed(steps, None)
    with pytest.raises(ExecutionTimeout):
        proceed(steps, ExecutionTimeout("late", 50, {"code": 50, "errmsg": "late"}))
    assert stream.alive
    assert isinstance(proceed(stream.advance(), None), Aggregate)


def test_an_event_without_token_closes_the_stream() -> None:
    stream = make(WatchOptions())
    opened(stream, batch=[bson.encode({"operationType": "insert"})])
    with pytest.raises(ResumeTokenMissing, match="Cannot provide resume functionality"):
        stream.take()
    assert not stream.alive


def test_a_batch_without_tokens_closes_the_stream_when_the_server_does_not_see_to_them() -> None:
    stream = make(WatchOptions())
    opened(stream, batch=[event(1), bson.encode({"operationType": "insert"})])
    with pytest.raises(ResumeTokenMissing):
        stream.take_batch()


@pytest.mark.parametrize("wire_version", [8, 9])
def test_getmore_has_what_the_specification_allows(wire_version: int) -> None:
    stream = make(WatchOptions(batch_size=7, max_await_time_ms=250, comment="why", collation={"locale": "de"}))
    steps = stream.open()
    command = proceed(steps, None)
    assert isinstance(command, Aggregate)
    assert command.command == {
        "aggregate": "orders",
        "pipeline": [{"$changeStream": {}}],
        "cursor": {"batchSize": 7},
        "collation": {"locale": "de"},
        "comment": "why",
    }
    proceed(steps, Reply(5, "other.$cmd.aggregate", [], None, None, wire_version))
    comment = "why" if wire_version >= 9 else None
    assert proceed(stream.advance(), None) == GetMore("other", "$cmd.aggregate", 5, 7, 250, comment)


# --- the budget


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def outage(stream: ResumableStream, clock: Clock) -> list[Step]:
    """Fail everything the logic tries, until it gives up; pauses pass at once."""
    seen: list[Step] = []
    steps, step = stream.advance(), None
    while clock.now < 1000:
        if step is None:
            steps = stream.advance()
            step = proceed(steps, None)
            assert step is not None
        seen.append(step)
        if isinstance(step, Pause):
            clock.now += step.seconds
            step = proceed(steps, None)
            continue
        try:
            step = proceed(steps, AutoReconnect("gone"))
        except AutoReconnect:
            return seen
    raise AssertionError("it never gave up")


def test_with_a_budget_it_tries_until_the_time_is_up_and_pauses_longer_and_longer() -> None:
    clock = Clock()
    stream = make(WatchOptions(), ResumeBudget(timedelta(seconds=60), clock, lambda: 1.0))
    opened(stream)
    pauses = [step.seconds for step in outage(stream, clock) if isinstance(step, Pause)]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(pauses) == POLICY.longest
    assert 160 <= clock.now < 160 + POLICY.longest
    assert stream.alive


def test_without_a_budget_there_is_one_attempt() -> None:
    clock = Clock()
    stream = make(WatchOptions(), ResumeBudget(None, clock, lambda: 1.0))
    opened(stream)
    assert [type(step) for step in outage(stream, clock)] == [GetMore, Aggregate]
    assert stream.alive


def test_a_budget_waits_for_servers_that_start_up_or_lost_an_election() -> None:
    stream = make(WatchOptions(), ResumeBudget(timedelta(hours=1), Clock(), lambda: 1.0))
    opened(stream, max_wire_version=17)
    steps = stream.advance()
    proceed(steps, None)
    unlabelled = NotPrimaryError("not primary", {"code": 10107, "errmsg": "not primary"})
    assert isinstance(proceed(steps, unlabelled), Aggregate)
    starting = OperationFailure("majority reads not yet", 134, {"code": 134, "errmsg": "not yet"})
    assert proceed(steps, starting) is None
    assert stream.alive
    assert isinstance(proceed(stream.advance(), None), Pause)


def test_the_pipeline_is_the_one_that_was_given() -> None:
    stage = {"$match": {"operationType": "insert"}}
    stream = ResumableStream(Scope.of_cluster(), [stage], WatchOptions(), ResumeBudget(None, never, never))
    stage["$match"]["operationType"] = "delete"
    command = proceed(stream.open(), None)
    assert isinstance(command, Aggregate)
    assert command.command["pipeline"][1] == {"$match": {"operationType": "insert"}}


def test_a_dead_token_ends_the_stream_whatever_the_budget() -> None:
    stream = make(WatchOptions(), ResumeBudget(timedelta(hours=1), Clock(), lambda: 1.0))
    opened(stream)
    steps = stream.advance()
    proceed(steps, None)
    assert isinstance(proceed(steps, AutoReconnect("gone")), Aggregate)
    with pytest.raises(OperationFailure, match="history"):
        proceed(steps, OperationFailure("history lost", 286, {"code": 286, "errmsg": "history lost"}))
    assert not stream.alive
