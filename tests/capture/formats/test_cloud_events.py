"""CloudEvents 1.0: attributes as the specification wants them, and `source` with `id` naming one event."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import bson
import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.formats import (
    decoder_of,
    make_format,
    recovered_delete,
    recovered_rename,
    snapshot_event,
)
from tailrace.capture.formats.format import Format
from tailrace.capture.formats.made_events import KeyFields
from tailrace.capture.formats.make import CompiledFormat
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData

DATA = "8265F0A1B2000000072B0229296E04"
TOKEN = bson.encode({"_data": DATA})
TIME = Timestamp(0x65F0A1B2, 7)
OF_PATHS = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
URI_REFERENCE = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*:(?:{OF_PATHS}|[:/])*|/(?:{OF_PATHS}|[:/])*|{OF_PATHS}*(?:/(?:{OF_PATHS}|[:/])*)?)"
)
"""RFC 3986, section 4.1, without queries, fragments and IPv6: a scheme, or no colon before the first slash."""
REFUSED = re.compile("[\0-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\U0001fffe\U0001ffff\U0010fffe\U0010ffff]")


def written(format: Format, event: bytes) -> dict[str, Any]:
    """Give the envelope, after a look at what the specification says of every attribute."""
    record = format.records(event)[0]
    envelope: dict[str, Any] = json.loads(record.value or b"")
    for name in ("specversion", "id", "source", "type", "subject", "time", "datacontenttype"):
        assert isinstance(envelope[name], str), name
        assert envelope[name], name
        assert not REFUSED.search(envelope[name]), name
    assert URI_REFERENCE.fullmatch(envelope["source"]), envelope["source"]
    assert datetime.strptime(envelope["time"], "%Y-%m-%dT%H:%M:%SZ")
    assert decoder_of("cloudevents").read(record.key or b"", record.value or b"").namespace == record.namespace
    return envelope


def made(source: str = "shop", **options: Any) -> Format:
    return make_format("cloudevents", server_name=source, **options)


def inserted(key: dict[str, Any], namespace: tuple[str, str] = ("shop", "orders")) -> bytes:
    database, collection = namespace
    ns = {"db": database, "coll": collection}
    return bson.encode(
        {"_id": {"_data": DATA}, "operationType": "insert", "clusterTime": TIME, "ns": ns,
         "documentKey": key, "fullDocument": key}
    )  # fmt: skip


def sharing_a_token() -> list[bytes]:
    """All that can have the token of one position: its event, documents of a snapshot, and what recovery found."""
    documents = [
        {"_id": key, "v": 1} for key in (1, 2, "1", "", None, {"a": 1}, bson.Binary(b"x"), bson.ObjectId(b"a" * 12))
    ]
    keys = [bson.encode({"_id": document["_id"]}) for document in documents]
    return [
        inserted({"_id": 1}),
        *(snapshot_event("shop.orders", bson.encode(each), TOKEN, TIME) for each in documents),
        *(recovered_delete("shop.orders", key, TOKEN, TIME) for key in keys),
        recovered_rename("shop.orders", "shop.old", TOKEN, TIME),
        *(snapshot_event("shop.other", bson.encode(each), TOKEN, TIME) for each in documents[:2]),
    ]


@pytest.mark.parametrize("options", [{}, {"key_field": "v"}])
def test_no_two_events_have_the_same_source_and_id(options: dict[str, Any]) -> None:
    """Also where the record's key is a field of the document that they all have."""
    events = sharing_a_token()
    first, again = (
        [(each["source"], each["id"]) for each in (written(made(**options), event) for event in events)]
        for _ in range(2)
    )
    assert first == again, "an event that is sent again has the same"
    assert len(set(first)) == len(events)


def test_what_an_id_is() -> None:
    format = made()
    assert written(format, inserted({"_id": 1}))["id"] == DATA
    document = bson.encode({"_id": 5, "at": {"city": "Bonn"}})
    sharded = KeyFields.of_shard_key(["at.city"])
    assert written(format, snapshot_event("a.b", document, TOKEN, TIME, sharded))["id"] == (
        DATA + '/read/{"at.city":"Bonn","_id":5}'
    )
    deleted = recovered_delete("a.b", bson.encode({"_id": 5}), TOKEN, TIME)
    assert written(format, deleted)["id"] == DATA + '/delete/{"_id":5}'
    assert written(format, recovered_rename("a.b", "a.c", TOKEN, TIME))["id"] == DATA + "/rename"


@pytest.mark.parametrize(
    ("name", "namespace", "source"),
    [
        ("shop", ("a", "b c"), "shop/a.b%20c"),
        ("shop", ("a", "ö/%?#"), "shop/a.%C3%B6%2F%25%3F%23"),
        ("shop", ("a", "$x:[y]"), "shop/a.%24x%3A%5By%5D"),
        ("shop", ("a", "b-c_d~e.f"), "shop/a.b-c_d~e.f"),
        ("https://shop.example/mongodb", ("a", "b"), "https://shop.example/mongodb/a.b"),
        ("urn:shop", ("a", "b"), "urn:shop/a.b"),
        ("10.0.0.1:27017", ("a", "b"), "10.0.0.1%3A27017/a.b"),
        ("my shop/ö?#[", ("a", "b"), "my%20shop/%C3%B6%3F%23%5B/a.b"),
        ("100%/%41%zz", ("a", "b"), "100%25/%41%25zz/a.b"),
        ("", ("a", "b"), "/a.b"),
    ],
)
def test_a_source_is_a_uri_reference(name: str, namespace: tuple[str, str], source: str) -> None:
    found = written(made(name), inserted({"_id": 1}, namespace))["source"]
    assert found == source
    assert unquote(found.rpartition("/")[2]) == ".".join(namespace)


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(TEXTS, TEXTS, TEXTS | st.sampled_from(["\x7f", "\x85", "\ufdd0", "\uffff", "\U0001fffe"]), st.booleans())
def test_any_source_namespace_and_key(name: str, collection: str, key: str, is_snapshot: bool) -> None:
    event = inserted({"_id": key}, ("shop", collection))
    if is_snapshot:
        event = snapshot_event(f"shop.{collection}", bson.encode({"_id": key}), TOKEN, TIME)
    format = made(name)
    envelope = written(format, event)
    assert json.loads(envelope["subject"]) == {"_id": key}
    if isinstance(format, CompiledFormat):
        assert format._reference.records(event) == list(format.records(event))


@pytest.mark.parametrize("seconds", [0, 1, 2**31, 2**32 - 1])
def test_times_of_all_tokens(seconds: int) -> None:
    """The last second that a cluster time has is in the year 2106."""
    token = ResumeToken.encode(
        TokenData(Timestamp(seconds, 1), uuid=bytes(16), event_identifier=bson.encode({"_id": 1}))
    )
    event = snapshot_event("a.b", bson.encode({"_id": 1}), bson.encode(token.to_document()), Timestamp(seconds, 1))
    at = datetime.strptime(written(made(), event)["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert at.timestamp() == seconds


def test_the_kernel_writes_documents_of_a_snapshot() -> None:
    format = made()
    if isinstance(format, CompiledFormat):
        events = [event for event in sharing_a_token() if b"rename" not in event]
        assert format._compiled.batch(events, False, 0).declined == 0
