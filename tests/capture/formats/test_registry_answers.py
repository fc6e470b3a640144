"""Whatever a schema registry answers is a clear error with a next step; scripted, as real ones answer so rarely.

An answer that may be another one later is tried again, one that needs a person is not, and none blames the documents:
only a refused schema is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from capture_harness import Harness
from odd_events import TOKEN
from scripted_registry import ScriptedRegistry, answer, serving
from tailrace.capture.formats import Format, make_format
from tailrace.capture.formats import registry as registry_module
from tailrace.capture.formats.registry import SchemaRegistry
from tailrace.errors import EventUnconvertible, Outcome, SchemaDrifted, SettingsError, SinkUnavailable, TailraceError
from tailrace.retry import RetryPolicy

EVENT = bson.encode(
    {"_id": TOKEN, "operationType": "insert", "ns": {"db": "a", "coll": "b"}, "documentKey": {"_id": 1},
     "fullDocument": {"_id": 1}}
)  # fmt: skip
PAGE = "<html><body>Sign in</body></html>"
SCHEMA = '{"type":"record","name":"Envelope","fields":[]}'


@pytest.fixture
def script() -> ScriptedRegistry:
    return ScriptedRegistry()


@pytest.fixture
def url(script: ScriptedRegistry) -> Iterator[str]:
    with serving(script) as found:
        yield found


def made(url: str, **options: Any) -> Format:
    return make_format("avro", registry=SchemaRegistry(url), **options)


def error(code: int, message: str = "because") -> dict[str, Any]:
    return {"error_code": code, "message": message}


PASSING = {
    "408": answer(408),
    "425": answer(425),
    "429 with a page": answer(429, PAGE, "Retry-After: 1"),
    "429": answer(429, error(42901)),
    "500 of the store": answer(500, error(50001, "Error in the backend data store")),
    "500 of the leader": answer(500, error(50003, "Error while forwarding the request to the primary")),
    "500 with a page": answer(500, PAGE),
    "502": answer(502, PAGE),
    "503": answer(503),
    "503 with a list": answer(503, []),
    "504": answer(504, b"\xff\xfe"),
    "half a body": answer(200, b'{"id": 1, "sch', length=500),
    "half of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
    "nothing": b"",
    "no HTTP": b"\x15\x03\x01\0\x02\x02\x46",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
}
PERMANENT: dict[str, tuple[bytes, str]] = {
    "401": (answer(401, error(40101, "Unauthorized")), "refuses us: HTTP 401, code 40101: Unauthorized"),
    "401 without a body": (answer(401), "refuses us: HTTP 401"),
    "403": (answer(403, error(40301, "User is denied operation Write")), "refuses us: .*User is denied"),
    "301": (answer(301, b"", "Location: https://user:pass@login.example/x?token=abc"), "redirects to https://user:"),
    "302 to nowhere": (answer(302), r"redirects \(HTTP 302\)"),
    "307": (answer(307, b"", "Location: /elsewhere"), "redirects to /elsewhere"),
    "304": (answer(304), "redirects"),
    "400": (answer(400, error(400, "HTTP 400 Bad Request")), "refuses the request: HTTP 400: HTTP 400 Bad Request"),
    "404 with a page": (answer(404, PAGE), "is not the API of a schema registry: HTTP 404"),
    "404 of the path": (answer(404, error(404, "HTTP 404 Not Found")), "is not the API of a schema registry"),
    "404 with a list": (answer(404, [1]), "is not the API of a schema registry"),
    "405": (answer(405), "refuses the request: HTTP 405"),
    "407": (answer(407, PAGE), "refuses the request: HTTP 407"),
    "410": (answer(410), "refuses the request: HTTP 410"),
    "418 with an odd code": (answer(418, {"error_code": "x", "message": 5}), "refuses the request: HTTP 418$"),
    "422 read-only": (answer(422, error(42205, "Subject is in read-only mode")), "code 42205: Subject is in read-only"),
    "422 level": (answer(422, error(42203, "Invalid compatibility level")), "code 42203: Invalid compatibility"),
    "a page": (answer(200, PAGE), "no JSON object"),
    "no body": (answer(200), "no JSON object"),
    "204": (answer(204), "no JSON object"),
    "no UTF-8": (answer(200, b'{"id": "\xff"}'), "no JSON object"),
    "a list": (answer(200, [{"id": 1}]), "no JSON object"),
    "null": (answer(200, "null"), "no JSON object"),
    "a deep list": (answer(200, "[" * 100_000), "no JSON object"),
    "another object": (answer(200, {"ok": True, "schema": SCHEMA}), "has no id that is a number"),
    "an id that is a text": (answer(200, {"id": "1", "schema": SCHEMA}), "has no id that is a number"),
    "an id that is null": (answer(200, {"id": None, "schema": SCHEMA}), "has no id that is a number"),
    "an id that is true": (answer(200, {"id": True, "schema": SCHEMA}), "has no id that is a number"),
    "an id that is a fraction": (answer(200, {"id": 1.5, "schema": SCHEMA}), "has no id that is a number"),
    "an id of 64 bits": (answer(200, {"id": 2**40, "schema": SCHEMA}), "gives the id 1099511627776"),
    "a negative id": (answer(200, {"id": -1, "schema": SCHEMA}), "gives the id -1"),
}  # fmt: skip
OF_READS: dict[str, tuple[bytes, str]] = {
    "no schema": (answer(200, {"id": 1}), "has no schema"),
    "a schema that is an object": (answer(200, {"id": 1, "schema": {"type": "string"}}), "has no schema"),
    "a schema that is no JSON": (answer(200, {"id": 1, "schema": "message X {}"}), "not made"),
    "another's schema": (answer(200, {"id": 1, "schema": SCHEMA}), "not made"),
    "409": (answer(409, error(409)), "refuses the request: HTTP 409: because"),
    "422": (answer(422, error(42202, "The specified version is not valid")), "refuses the request: HTTP 422"),
}  # fmt: skip
REFUSALS = {
    "409": (answer(409, error(409, "Schema being registered is incompatible")), "registered is incompatible"),
    "409 with lines": (answer(409, error(40901, "a\n  b")), "a b"),
    "409 without a body": (answer(409), "HTTP 409"),
    "409 with a list": (answer(409, ["no"]), "HTTP 409"),
    "409 with an odd message": (answer(409, {"message": {"a": 1}}), "HTTP 409"),
    "422": (answer(422, error(42201, "Input schema is an invalid Avro schema")), "an invalid Avro schema"),
    "422 of Karapace": (answer(422, error(44201, "Invalid AVRO schema")), "Invalid AVRO schema"),
    "422 without a body": (answer(422), "HTTP 422"),
    "413": (answer(413, PAGE), "HTTP 413"),
    "422 too large": (answer(422, error(42209, "Schema too large")), "Schema too large"),
}  # fmt: skip


def assert_clear(found: TailraceError, kind: type[TailraceError], outcome: Outcome) -> None:
    assert type(found) is kind
    assert found.outcome is outcome
    assert found.hint
    assert "pass@" not in str(found)


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
@pytest.mark.parametrize("label", PASSING)
def test_what_may_pass_is_tried_again(script: ScriptedRegistry, url: str, label: str, method: str) -> None:
    format = made(url)
    script.script = [(method, PASSING[label])]
    with pytest.raises(SinkUnavailable, match="schema registry at http://127") as caught:
        format.records(EVENT)
    assert_clear(caught.value, SinkUnavailable, Outcome.RETRY)
    assert format.records(EVENT)[0].value, "and the next try is served"


BODIES = [label for label, (given, _) in PERMANENT.items() if given.startswith(b"HTTP/1.1 20")]
"""Those that differ in what is read; nothing is read of what PUT is answered."""
ASKED = [(label, method) for label in PERMANENT for method in ("GET", "PUT", "POST")]


@pytest.mark.parametrize(("label", "method"), [each for each in ASKED if each[0] not in BODIES or each[1] != "PUT"])
def test_what_a_person_has_to_change_ends_it(script: ScriptedRegistry, url: str, label: str, method: str) -> None:
    given, words = PERMANENT[label]
    script.script = [(method, given)]
    with pytest.raises(SettingsError, match=words) as caught:
        made(url).records(EVENT)
    assert_clear(caught.value, SettingsError, Outcome.STOP)
    assert len(script.asked) == ["GET", "PUT", "POST"].index(method) + 1, "it is not asked again"


@pytest.mark.parametrize("label", OF_READS)
def test_what_is_no_schema_of_ours_ends_it(script: ScriptedRegistry, url: str, label: str) -> None:
    given, words = OF_READS[label]
    script.script = [("GET", given)]
    with pytest.raises(SettingsError, match=words) as caught:
        made(url).records(EVENT)
    assert_clear(caught.value, SettingsError, Outcome.STOP)


@pytest.mark.parametrize("label", REFUSALS)
def test_a_refused_schema_is_a_dead_letter_or_stops(script: ScriptedRegistry, url: str, label: str) -> None:
    given, words = REFUSALS[label]
    script.always = {"POST": given}
    format = made(url)
    for _ in range(2):
        with pytest.raises(EventUnconvertible, match="cannot take _id of the type int under BACKWARD") as caught:
            format.records(EVENT)
    assert len([each for each in script.asked if each.startswith("POST")]) == 1, "the same is not asked again"
    with pytest.raises(SchemaDrifted, match=words):
        made(url, stops_when_incompatible=True).records(EVENT)
    assert caught.value.hint


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_subject_that_is_not_there_is_made(script: ScriptedRegistry, url: str, code: int) -> None:
    script.script = [("GET", answer(404, error(code)))]
    assert made(url).records(EVENT)[0].value
    assert [each.partition("/a.b-value")[0] for each in script.asked] == [
        "GET /subjects",
        "PUT /config",
        "POST /subjects",
    ]


def test_a_level_is_set_behind_the_first_schema_where_it_cannot_be_before(script: ScriptedRegistry, url: str) -> None:
    unknown = answer(404, error(40401, "Subject not found"))
    script.script = [("PUT", unknown)]
    assert made(url).records(EVENT)[0].value
    assert [each.partition(" ")[0] for each in script.asked] == ["GET", "PUT", "POST", "PUT"]
    script.schemas.clear()
    script.always = {"PUT": unknown}
    with pytest.raises(SinkUnavailable, match="does not know the subject"):
        made(url).records(EVENT)


def test_an_answer_of_any_size_and_speed_ends(
    script: ScriptedRegistry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_LARGEST_ANSWER", 2**20)
    script.script = [("GET", answer(200, b"[" + b"1," * 2**20))]
    with pytest.raises(SettingsError, match="more than 1 MiB"):
        made(url).records(EVENT)
    monkeypatch.setattr(registry_module, "_SECONDS_FOR_A_BODY", -1.0)
    with pytest.raises(SinkUnavailable, match="TimeoutError"):
        made(url).records(EVENT)


@pytest.mark.parametrize(
    "address",
    ["http://[::1", "http://h:port", "http://h:99999999", "ftp://h", "h:8081", "", "http://", "http://h/a b", "http://h/\u00f6",
     "http://" + "a" * 80 + ".example"],
)  # fmt: skip
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(SettingsError, match="is no http address"):
        made(address).records(EVENT)


@pytest.mark.parametrize("label", PERMANENT)
def test_doctor_says_what_the_endpoint_is(script: ScriptedRegistry, url: str, label: str) -> None:
    given, _ = PERMANENT[label]
    script.script = [("GET", given)]
    with pytest.raises(SettingsError, match="schema registry") as caught:
        SchemaRegistry(url).check()
    assert_clear(caught.value, SettingsError, Outcome.STOP)
    SchemaRegistry(url).check()


@pytest.fixture
def harness(database: Database[dict[str, Any]], tmp_path: Path) -> Harness:
    return Harness(database.client, tmp_path, [f"{database.name}.orders"])


@pytest.fixture
def produced(database: Database[dict[str, Any]], harness: Harness, url: str) -> Callable[[], None]:
    """Writes a document and runs a producer until it has nothing more to do."""

    def run() -> None:
        harness.format = made(url, subject_of=lambda namespace: "t-value")
        harness.run_until_idle(backoff=RetryPolicy(first=0.01, longest=0.05, budget=60))
        database.orders.insert_one({"_id": 1})
        harness.run_until_idle(backoff=RetryPolicy(first=0.01, longest=0.05, budget=60))

    return run


def test_a_producer_waits_for_what_passes(
    script: ScriptedRegistry, harness: Harness, produced: Callable[[], None]
) -> None:
    script.script = [
        *(("GET", PASSING[label]) for label in ("503", "nothing", "half a body")),
        ("PUT", PASSING["429"]), ("POST", PASSING["500 of the store"]),
    ]  # fmt: skip
    produced()
    assert not script.script
    assert [record.operation for record in harness.delivered] == ["insert"]
    assert not harness.aside, "no document is to blame"


@pytest.mark.parametrize("label", ["a page", "422 read-only", "an id that is a text", "404 with a page"])
def test_a_producer_ends_with_what_stays(
    script: ScriptedRegistry, harness: Harness, produced: Callable[[], None], label: str
) -> None:
    script.always = {"POST": PERMANENT[label][0]}
    with pytest.raises(SettingsError):
        produced()
    assert len([each for each in script.asked if each.startswith("POST")]) == 1
    assert not harness.delivered
    assert not harness.aside, "no document is to blame"
