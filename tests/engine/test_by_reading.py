"""What public sources and documentation say of 8.0 and later: no such server was asked, and none is trusted unproved.

So these tests hold what was read, and nothing about a server: docs/servers.md says where each fact is from.
"""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64
from bson.timestamp import Timestamp

from engine.small_oplog import SESSION, UUID, command, entry, events_of, insert, open_small, operation, transaction
from tailrace.engine import Dialect
from tailrace.engine.dialect import is_compared
from tailrace.errors import StreamRefused
from tailrace.token import ResumeToken

pytestmark = pytest.mark.usefixtures("implementation")


def vectored(i: int, ids: list[int], **fields: Any) -> bytes:
    """The inserts of one command, as 8.0 logs retryable ones: with a session, and no transaction."""
    applied = {"applyOps": [operation(each) for each in ids]}
    session = {"lsid": SESSION, "txnNumber": Int64(7), "multiOpType": 1}
    previous = {"prevOpTime": {"ts": Timestamp(100, 1), "t": Int64(1)}}
    return entry(i, "c", "admin.$cmd", applied, ui=None, **{**session, **previous, **fields})


@pytest.mark.parametrize("version", ["8.0.0", "8.0.5", "8.2.1"])
def test_no_such_server_is_trusted_unproved(version: str) -> None:
    assert not is_compared(version)
    with pytest.raises(StreamRefused):
        Dialect.of(version)


def test_inserts_logged_together_are_no_transaction() -> None:
    """Their session is not shown, and the entry before them, which is of another write, is not read again."""
    log = insert(1, 0), vectored(2, [1, 2, 3])
    events = events_of(open_small(*log, version="8.0.0"))
    assert [event["documentKey"]["_id"] for event in events] == [0, 1, 2, 3]
    assert not any("lsid" in event or "txnNumber" in event for event in events)
    tokens = [ResumeToken.parse(event["_id"]).decode() for event in events[1:]]
    assert [token.txn_op_index for token in tokens] == [0, 1, 2]
    assert {event["clusterTime"] for event in events[1:]} == {Timestamp(100, 2)}


def test_inserts_logged_together_without_a_session() -> None:
    log = vectored(2, [1, 2], lsid=None, txnNumber=None, multiOpType=None, prevOpTime=None)
    assert [event["documentKey"]["_id"] for event in events_of(open_small(log, version="8.0.0"))] == [1, 2]


def test_a_stream_resumes_in_the_middle_of_inserts_logged_together() -> None:
    log = insert(1, 0), vectored(2, [1, 2, 3])
    second = events_of(open_small(*log, version="8.0.0"))[2]
    resumed = events_of(open_small(*log, version="8.0.0", resumeAfter=second["_id"]))
    assert [event["documentKey"]["_id"] for event in resumed] == [3]


def test_a_transaction_is_shown_with_its_session_as_before() -> None:
    [event] = events_of(open_small(transaction(1, [operation(1)]), version="8.0.0"))
    assert list(event)[:3] == ["txnNumber", "lsid", "_id"]


def created(version: str, **options: Any) -> list[dict[str, Any]]:
    views = "shop.system.views"
    log = (
        command(1, "shop", {"create": "orders", "idIndex": {"v": 2}}),
        entry(2, "i", views, {"_id": "shop.recent", "viewOn": "orders", "pipeline": []}, o2={"_id": "shop.recent"}),
        entry(3, "i", views, {"_id": "shop.t", "viewOn": "system.buckets.t", "pipeline": []}, o2={"_id": "shop.t"}),
    )
    return events_of(open_small(*log, collection=None, version=version, **options))


@pytest.mark.parametrize(("version", "tells"), [("7.0.28", False), ("8.0.4", False), ("8.0.5", True), ("8.1.0", True)])
def test_an_expanded_create_says_at_its_end_what_was_made(version: str, *, tells: bool) -> None:
    events = created(version, showExpandedEvents=True)
    types = ["collection", "view", "timeseries"] if tells else [None] * 3
    assert [event.get("nsType") for event in events] == types
    assert all(not tells or list(event)[-1] == "nsType" for event in events)
    assert created(version) == []


def test_the_type_is_no_part_of_the_token() -> None:
    """So a client may move to the newer server at any event."""
    before, after = (created(version, showExpandedEvents=True) for version in ("7.0.28", "8.1.0"))
    assert [event["_id"] for event in before] == [event["_id"] for event in after]


@pytest.mark.parametrize("name", ["reshardBegin", "reshardDoneCatchUp"])
def test_notes_of_resharding_are_told_with_their_description(name: str) -> None:
    note = {name: "shop.orders", "reshardingUUID": UUID}
    log = entry(1, "n", "shop.orders", {"msg": "x"}, o2=note)
    [plain] = events_of(open_small(log, version="8.0.0"))
    assert next(iter(plain)) == "reshardingUUID"
    assert plain["operationType"] == name
    assert "operationDescription" not in plain
    [expanded] = events_of(open_small(log, version="8.0.0", showExpandedEvents=True))
    assert expanded["operationDescription"] == {"reshardingUUID": UUID}
