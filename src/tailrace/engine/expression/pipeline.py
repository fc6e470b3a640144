"""The user's stages as one callable, with what can be known of them before an event is built.

Conditions of a `$match` move forward, before stages that do not touch what they test, as servers do. It shows: an event
that a moved condition drops never meets the stages it overtook, nor their failures, and from 6.0 on a stream cannot be
resumed at it. Seen on 4.2 to 7.0: conditions move one by one before `$addFields`, `$set`, `$unset` and `$project`;
before 7.0 `$size` and `$elemMatch` stay, and before 5.0 `$expr`; nothing moves before `$replaceRoot`. Two things that
servers move stay here: a condition on a field that a `$project` merely renamed, and on 5.0 one with `$rand`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.engine.expression import (  # noqa: F401
    accumulators,
    arithmetic,
    arrays,
    conversion,
    date_arithmetic,
    dates,
    iteration,
    logic,
    mathematics,
    meter,
    objects,
    regex_operators,
    sets,
    strings,
)
from tailrace.engine.expression.conditions import Condition, Junction
from tailrace.engine.expression.failures import Failure, Unsupported, check, fail, leave_to_server
from tailrace.engine.expression.parsing import Context, Scope, Version
from tailrace.engine.expression.stages import ALLOWED, SPLIT, Match, Projection, Run, Stage, is_forbidden
from tailrace.engine.expression.values import Date, Document, Value, text_of
from tailrace.errors import PipelineFailed, PipelineUnsupported, StreamRefused
from tailrace.server_codes import ILLEGAL_OPERATION, TYPE_MISMATCH

_SPLIT_SINCE: Final[Version] = (6, 0, 9)
_INTERNAL_DATABASES: Final = frozenset({"admin", "config", "local"})
_CACHED_HEADERS: Final = 4096

HeaderFilter = Callable[[str, str | None, str | None], bool]
"""Says whether an event with this operation type, database and collection may pass."""


class Pipeline:
    """Compiled stages. Calling it with an event's bytes gives the result's bytes, or None.

    An event that no stage changed is given back as the same object.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        slot_count: int,
        error_prefix: str,
        *,
        split: bool,
        seconds: float | None = None,
        untimed_bytes: int = 0,
    ) -> None:
        """Bind the stages; `seconds` is the processor time that they may take for one event of more than some bytes."""
        self._runs: list[Run] = [stage.bind(slot_count) for stage in stages]
        self._changes = any(not isinstance(stage, Match) for stage in stages)
        self._stages = stages
        self._error_prefix = error_prefix
        self._seconds = seconds
        self._untimed_bytes = untimed_bytes
        self.splits_large_events = split
        self.is_identity = not stages
        self.fields = _fields_read(stages)
        self.header_filter = self._make_header_filter()

    def __call__(self, event: bytes) -> bytes | None:
        """Run the stages on one event."""
        document: Document | None = Document(event)
        self._begin(event)
        try:
            for run in self._runs:
                assert document is not None
                document = run(document)
                if document is None:
                    return None
            assert document is not None
            return document.to_bytes() if self._changes else event
        except Failure as failure:
            raise PipelineFailed(self._error_prefix + failure.message, server_code=failure.code) from None

    def _begin(self, event: bytes) -> None:
        meter.begin(None if len(event) <= self._untimed_bytes else self._seconds)

    def partial_filter(self, names: Iterable[str]) -> Callable[[bytes], bool] | None:
        """Give the part of the first `$match` stages that reads these top-level fields alone.

        False for a document with those fields means that the whole event would not pass.
        """
        known = frozenset(name.encode() for name in names)
        return self._first_conditions(lambda read: bool(read) and read <= known)

    def filter_without(self, names: Iterable[str]) -> Callable[[bytes], bool] | None:
        """Give the part of the first `$match` stages that reads none of these top-level fields."""
        unknown = frozenset(name.encode() for name in names)
        return self._first_conditions(lambda read: not read & unknown)

    def _first_conditions(self, is_known: Callable[[frozenset[bytes]], bool]) -> Callable[[bytes], bool] | None:
        parts: list[Condition] = []
        for stage in self._stages:
            if not isinstance(stage, Match):
                break
            for part in stage.condition.conjuncts():
                read = part.fields()
                if read is not None and is_known(frozenset(read)):
                    parts.append(part)
        if not parts:
            return None
        match = Junction("and", parts).bind()

        def may_pass(event: bytes) -> bool:
            self._begin(event)
            try:
                return match(Document(event))
            except Failure:
                # The pipeline itself will raise it, with the whole event in hand.
                return True

        return may_pass

    def _make_header_filter(self) -> HeaderFilter | None:
        may_pass = self.partial_filter(("operationType", "ns"))
        if may_pass is None:
            return None
        answers: dict[tuple[str, str | None, str | None], bool] = {}

        def header_filter(operation: str, database: str | None, collection: str | None) -> bool:
            key = (operation, database, collection)
            answer = answers.get(key)
            if answer is None:
                if len(answers) >= _CACHED_HEADERS:
                    answers.clear()
                answer = answers[key] = may_pass(_header(operation, database, collection))
            return answer

        return header_filter


def _header(operation: str, database: str | None, collection: str | None) -> bytes:
    event: dict[str, Any] = {"operationType": operation}
    if database is not None:
        event["ns"] = {"db": database}
        if collection is not None:
            event["ns"]["coll"] = collection
    return bson.encode(event)


def _fields_read(stages: Sequence[Stage]) -> frozenset[str] | None:
    """Name the fields that matter to the result; None when all of them do."""
    names: set[bytes] = set()
    for stage in stages:
        read = stage.fields()
        if read is None:
            return None
        names |= read
        if not isinstance(stage, Match):
            return frozenset(text_of(name) for name in names)
    return None


def compile_pipeline(
    stages: Iterable[bytes | Mapping[str, Any]],
    *,
    server_version: str,
    now: datetime | None = None,
    cluster_time: Timestamp | None = None,
    database: str | None = None,
    seconds: float | None = None,
    untimed_bytes: int = 0,
) -> Pipeline:
    """Compile the stages after `$changeStream`, in the dialect of a server version.

    `now` and `cluster_time` are what `$$NOW` and `$$CLUSTER_TIME` mean for the whole stream; `database` is
    the one the stream was opened on; `seconds` is the processor time that they may take for one event, and to
    be compiled; for events of up to `untimed_bytes` the clock is not looked at. Raises `StreamRefused` with the
    server's code for stages that this server would not run, and `PipelineUnsupported` for those that only the engine
    does not know.
    """
    meter.begin(seconds)
    version = _parse_version(server_version)
    scope = Scope(Context(version, _variables(now, cluster_time)))
    try:
        parsed, split = _parse_stages(list(stages), scope, database)
    except Failure as failure:
        raise _refusal(failure, failure.message) from None
    try:
        for stage in parsed:
            stage.optimize()
    except Failure as failure:
        message = f"Failed to optimize pipeline :: caused by :: {failure.message}"
        raise _refusal(failure, message) from None
    prefix = "PlanExecutor error during aggregation :: caused by :: " if version >= (5, 0) else ""
    ordered = move_matches_forward(parsed, version)
    return Pipeline(
        ordered, scope.context.slot_count, prefix, split=split, seconds=seconds, untimed_bytes=untimed_bytes
    )


def _refusal(failure: Failure, message: str) -> StreamRefused:
    kind = PipelineUnsupported if isinstance(failure, Unsupported) else StreamRefused
    return kind(message, server_code=failure.code)


def _parse_version(text: str) -> Version:
    return tuple(int(part) for part in text.split("-")[0].split("."))


def _variables(now: datetime | None, cluster_time: Timestamp | None) -> dict[str, Value]:
    moment = now if now is not None else datetime.now(UTC)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    variables: dict[str, Value] = {"NOW": Date(int(since_epoch.total_seconds() * 1000))}
    if cluster_time is not None:
        variables["CLUSTER_TIME"] = cluster_time
    return variables


def _parse_stages(
    stages: list[bytes | Mapping[str, Any]], scope: Scope, database: str | None
) -> tuple[list[Stage], bool]:
    version = scope.context.version
    specs = [_specification(stage) for stage in stages]
    split = False
    for position, (name, _) in enumerate(specs):
        if name == SPLIT and version >= _SPLIT_SINCE:
            last = position == len(specs) - 1
            check(last, 7182802, f"{SPLIT} must be the last stage in the pipeline")
            split = True
        elif name not in ALLOWED and not is_forbidden(name, version):
            leave_to_server(40324, f"Unrecognized pipeline stage name: '{name}'")
    parsed = [ALLOWED[name](name, value, scope) for name, value in specs if name in ALLOWED]
    for name, _ in specs:
        if name in ALLOWED or name == SPLIT:
            continue
        if name == "$out" and database in _INTERNAL_DATABASES and version >= (4, 4):
            fail(31321, f"Can't $out to internal database: {database}")
        fail(ILLEGAL_OPERATION, f"{name} is not permitted in a $changeStream pipeline")
    return parsed, split


def _specification(stage: bytes | Mapping[str, Any]) -> tuple[str, Value]:
    if not isinstance(stage, bytes | Mapping):
        fail(TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object")
    document = Document(stage if isinstance(stage, bytes) else raw.encode(stage))
    names = document.names()
    check(len(names) == 1, 40323, "A pipeline stage specification object must contain exactly one field.")
    return text_of(names[0]), document.get(names[0])


def move_matches_forward(stages: Sequence[Stage], version: Version) -> list[Stage]:
    """Give the stages in the order in which a server of this version runs them."""
    moved: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Match):
            _insert(moved, stage, version)
        else:
            moved.append(stage)
    return moved


def _insert(before: list[Stage], match: Match, version: Version) -> None:
    """Put each condition as far to the front as it may go; those that go nowhere stay together."""
    staying: list[Condition] = []
    by_index: dict[int, list[Condition]] = {}
    for part in match.condition.conjuncts():
        index = _index_for(before, part.movable_paths(version))
        if index == len(before):
            staying.append(part)
        else:
            by_index.setdefault(index, []).append(part)
    if not by_index:
        before.append(match)
        return
    if staying:
        before.append(Match.of(staying))
    for index in sorted(by_index, reverse=True):
        before.insert(index, Match.of(by_index[index]))


def _index_for(before: Sequence[Stage], paths: frozenset[bytes] | None) -> int:
    """Find the position of a condition on some paths: behind the last stage that it may not overtake."""
    found = len(before)
    if paths is None:
        return found
    for index in range(len(before) - 1, -1, -1):
        stage = before[index]
        if isinstance(stage, Projection):
            if not all(stage.preserves(path) for path in paths):
                return found
            found = index
        elif not isinstance(stage, Match):
            return found
    return found
