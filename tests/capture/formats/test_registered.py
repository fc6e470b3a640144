"""Avro and JSON Schema: stock consumers read every record, and the registry's word on compatibility counts."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bson
import fastavro
import httpx
import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.codec_options import DatetimeConversion
from hypothesis import given
from hypothesis import strategies as st
from pymongo.database import Database

from bson_strategies import DOCUMENTS as ANY
from schema_keeping import KeepingRegistry
from schema_registry import Registry
from tailrace.capture.formats import Format, decoder_of, event_decoder_of, make_format
from tailrace.capture.formats.document_schema import DocumentSchema
from tailrace.capture.formats.registry import Incompatible, SchemaRegistry
from tailrace.errors import EventUnconvertible, SchemaDrifted, SettingsError, SinkUnavailable
from tailrace.owned import run_guarded
from tailrace.raw import extended_json
from tailrace.retry import RetryPolicy, retried
from tailrace.stand.java import java_home
from tailrace.stand.maven import fetch_jars
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData

KINDS = pytest.mark.parametrize("kind", ["avro", "jsonschema"])


def event(document: dict[str, Any] | None, operation: str = "insert", **parts: Any) -> bytes:
    key = {"_id": (document or {"_id": 1}).get("_id", 1)}
    data = TokenData(Timestamp(7, 3), uuid=bytes(16), event_identifier=bson.encode(key))
    shown: dict[str, Any] = {"_id": ResumeToken.encode(data).to_document(), "operationType": operation}
    shown |= {"clusterTime": Timestamp(7, 3), "ns": {"db": "shop", "coll": "people"}, "documentKey": key}
    return bson.encode(shown | ({} if document is None else {"fullDocument": document}) | parts)


def made(kind: str, registry: SchemaRegistry, prefix: str = "t", **options: Any) -> Format:
    return make_format(kind, registry=registry, subject_of=lambda namespace: f"{prefix}.{namespace}-value", **options)


DOCUMENTS: list[dict[str, Any]] = [
    {"_id": 1, "a": "x", "n": 5, "empty": {}, "list": []},
    {"_id": 2, "n": Int64(2**40), "nested": {"é-1": 1.5, "l": [1, "two", {"k": True}, None, [1]]}, "list": [[]]},
    {"_id": ObjectId(), "when": DatetimeMS(1_700_000_000_000), "d": Decimal128("12.50"), "b": Binary(b"abc", 5)},
    {"_id": "s", "rx": Regex("a"), "ts": Timestamp(5, 5), "code": Code("f()", {"x": 1}), "none": None, "b": b"plain"},
    {"_id": 4, "when": Int64(77), "a": 7, "1st": 1, "a b": 1, "a_x20_b": 2},
]
RARE: list[dict[str, Any]] = [
    {"_id": 6, "a_b": {"x": 1}, "a": {"b": {"y": 1}}, "A": {"z": 1}, "": {"int": {"null": 1}}, "A_B": 1, "a_item": {}},
    {"_id": 7, "a": [{"x": 1}], "first": DatetimeMS(-62_135_596_800_000), "last": DatetimeMS(253_402_300_799_999)},
    {"_id": 8, "first": DatetimeMS(-(2**63)), "last": DatetimeMS(2**63 - 1), "definitions": {"type": "x", "anyOf": 1}},
]
"""Names that would be one in a schema, and dates that consumers do not have."""
EVERY = [*DOCUMENTS, *RARE]
ANY_DATE = bson.CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_MS)


def test_documents_under_a_schema_are_what_avro_reads() -> None:
    schema = DocumentSchema("Document")
    for document in DOCUMENTS:
        schema.grow(extended_json.decode(bson.encode(document)))
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema.avro())))
    read = [_read(schema, parsed, document) for document in DOCUMENTS]
    assert (
        read[0]["n"] == 5 and read[1]["n"] == 2**40 and read[0]["empty"]["k"] is None
        if "k" in read[0]["empty"]
        else True
    )
    assert read[1]["nested"] == {"_xe9__x2d_1": 1.5, "l": [1, "two", {"k": True}, None, [1]]}
    assert read[2]["d"] == "12.50"
    assert read[2]["b"] == b"abc"
    assert read[3]["ts"] == '{"$timestamp":{"t":5,"i":5}}'
    assert (read[4]["when"], read[4]["_1st"], read[4]["a_x20_b"], read[4]["a_x20_b_"]) == (
        '{"$numberLong":"77"}', 1, 1, 2,
    )  # fmt: skip


def _read(schema: DocumentSchema, parsed: Any, document: dict[str, Any]) -> Any:
    out = bytearray()
    schema.write(extended_json.decode(bson.encode(document)), out)
    stream = io.BytesIO(bytes(out))
    read = fastavro.schemaless_reader(stream, parsed)
    assert not stream.read(), "bytes are left"
    return read


def test_json_under_a_schema_has_every_type() -> None:
    format, read = made("jsonschema", KeepingRegistry()), {}
    for document in [*DOCUMENTS, {"_id": 5, "one": Code("g()"), "x": 2.0, "e": DatetimeMS(-1)}]:
        value = format.records(event(document))[0].value or b""
        read |= json.loads(value[5:])["after"]
    assert read["nested"] == {"é-1": 1.5, "l": [1, "two", {"k": True}, None, [1]]}
    assert (read["d"], read["ts"], read["b"]) == ("12.50", '{"$timestamp":{"t":5,"i":5}}', "cGxhaW4=")
    assert read["code"] == '{"$code":"f()","$scope":{"x":{"$numberInt":"1"}}}', "and it is a str in Python"
    assert (read["one"], read["x"], read["e"]) == ('{"$code":"g()"}', 2.0, "1969-12-31T23:59:59.999Z")
    assert read["when"] == '{"$numberLong":"77"}', "a long beside dates"


@given(st.lists(ANY, min_size=1, max_size=4))
def test_any_documents_are_read_under_one_schema_and_it_survives_the_registry(found: list[dict[str, Any]]) -> None:
    decoded = [extended_json.decode(bson.encode(document)) for document in found]
    schema = DocumentSchema("Document")
    for document in decoded:
        schema.grow(document)
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema.avro())))
    again = DocumentSchema.of_avro(json.loads(json.dumps(schema.avro())))
    plain = DocumentSchema.of_json_schema("Document", json.loads(json.dumps(schema.json_schema())))
    for document in decoded:
        out, other = bytearray(), bytearray()
        schema.write(document, out)
        again.write(document, other)
        assert out == other
        stream = io.BytesIO(bytes(out))
        fastavro.schemaless_reader(stream, parsed)
        assert not stream.read()
        assert plain.plain(document) == schema.plain(document)
        assert not list(schema.unfit(document))


@KINDS
def test_a_schema_grows_with_what_is_seen_and_a_restart_goes_on_with_it(kind: str) -> None:
    registry = KeepingRegistry()
    first = made(kind, registry)
    ids = [first.records(event(document))[0].value[:5] for document in DOCUMENTS[:2] for _ in range(2)]
    assert ids == [b"\0\0\0\0\1", b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\2"]
    assert made(kind, registry).records(event(DOCUMENTS[0]))[0].value[:5] == ids[-1]
    two = made(kind, registry)
    two.records(event(DOCUMENTS[2]))
    assert first.records(event(DOCUMENTS[2]))[0].value[:5] == b"\0\0\0\0\3", "what another process made is taken over"


@KINDS
def test_fields_that_the_client_encrypts_are_named_in_the_schema(kind: str) -> None:
    registry = KeepingRegistry()
    secret, plain = Binary(b"\1" + bytes(40), 6), Binary(b"x", 0)
    document = {"_id": 1, "ssn": secret, "photo": plain, "in": {"many": [None, secret]}}
    value = made(kind, registry).records(event(document))[0].value or b""
    assert secret in value or base64.b64encode(secret) in value
    made(kind, registry).records(event({**document, "more": "x"}))  # the registry's schema is read, and grows
    (versions,) = registry.schemas.values()
    assert [list(_encrypted(json.loads(each))) for each in versions] == [["ssn", "many"]] * 2


def _encrypted(form: Any, name: str = "") -> Iterator[str]:
    """The names of the fields whose bytes a schema calls encrypted, in Avro and in JSON Schema."""
    if isinstance(form, list):
        for each in form:
            yield from _encrypted(each, name)
    elif isinstance(form, dict):
        if form.get("bson") == "encrypted":
            yield name
        own = form.get("name", name)
        for key, each in form.items():
            yield from _encrypted(each, key if key in ("ssn", "many") else own)


@KINDS
def test_what_the_registry_refuses_is_named_and_costs_nobody_else(kind: str) -> None:
    registry = KeepingRegistry("FULL")
    strict, stopping = made(kind, registry), made(kind, registry, stops_when_incompatible=True)
    strict.records(event({"_id": 1, "n": 1}))
    for _ in range(2):
        with pytest.raises(EventUnconvertible, match=r"shop\.people cannot take n of the type string under FULL"):
            strict.records(event({"_id": 1, "n": "one"}))
    with pytest.raises(SchemaDrifted, match="n of the type string"):
        stopping.records(event({"_id": 1, "n": "one"}))
    assert strict.records(event({"_id": 2, "n": 2}))


@KINDS
def test_the_heads_of_records_can_be_read_back(kind: str) -> None:
    record = made(kind, KeepingRegistry()).records(event(None, "delete"))[0]
    state = decoder_of(kind).read(record.key or b"", record.value or b"")
    assert (state.namespace, state.operation, state.document_key) == ("shop.people", "delete", {"_id": 1})
    assert not decoder_of(kind).has_documents, "verify would compare documents that the heads do not have"
    with pytest.raises(SettingsError, match="consumers of the schema registry"):
        event_decoder_of(kind)


def test_a_format_without_its_registry_is_refused_and_an_absent_one_is_waited_for() -> None:
    with pytest.raises(SettingsError, match="registry"):
        make_format("avro")
    with pytest.raises(SinkUnavailable, match="does not answer"):
        made("avro", SchemaRegistry("http://127.0.0.1:9")).records(event(DOCUMENTS[0]))


def test_cloud_events_have_their_attributes_and_can_be_read_back() -> None:
    record = make_format("cloudevents", server_name="shop").records(event({"_id": 1, "a": 2}))[0]
    value = json.loads(record.value or b"")
    data = value.pop("data")
    assert value == {
        "specversion": "1.0", "id": dict(record.headers)["token"].decode(), "source": "shop/shop.people",
        "type": "com.mongodb.changestream.insert", "subject": '{"_id":1}', "time": "1970-01-01T00:00:07Z",
        "datacontenttype": "application/json",
    }  # fmt: skip
    assert data["fullDocument"] == {"_id": 1, "a": 2}
    assert dict(record.headers)["content-type"].startswith(b"application/cloudevents+json")
    assert decoder_of("cloudevents").read(record.key or b"", record.value or b"").document == {"_id": 1, "a": 2}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with Registry.start(folder=tmp_path_factory.mktemp("registry")) as server:
        yield server


def events_of(database: Database[Any]) -> list[bytes]:
    """What a real server tells of documents of every type: inserts, updates and deletes."""
    people = database.people.with_options(ANY_DATE)
    with people.watch(full_document="updateLookup") as stream:
        for document in EVERY:
            people.insert_one(document)
            people.update_one({"_id": document["_id"]}, {"$set": {"seen": True}})
            people.delete_one({"_id": document["_id"]})
        return [bson.encode(next(stream)) for _ in range(3 * len(EVERY))]


@pytest.mark.long
def test_what_a_real_registry_answers_to_wrong_requests(registry: Registry) -> None:
    """`make registry`: a subject that is not there, another path, a level it does not have, a schema that is none."""
    real = SchemaRegistry(registry.url)
    patiently(real.check)
    assert patiently(lambda: real.latest("nobody-value")) is None
    for path in ("/elsewhere", "/../../nowhere"):
        wrong = SchemaRegistry(registry.url + path)
        for ask in (wrong.check, lambda wrong=wrong: wrong.latest("nobody-value")):
            with pytest.raises(SettingsError, match="is not the API of a schema registry"):
                patiently(ask)
    odd = SchemaRegistry(registry.url, "SIDEWARD")
    with pytest.raises(SettingsError, match="refuses the request"):
        patiently(lambda: odd.register("nobody-value", '"string"', "AVRO", is_first=True))
    with pytest.raises(Incompatible):
        patiently(lambda: real.register("nobody-value", '{"type":"record"}', "AVRO", is_first=True))


def patiently(ask: Callable[[], Any]) -> Any:
    """Ask again where nothing came in time, as a producer does: a busy machine may let a first request wait."""
    return retried(ask, RetryPolicy(budget=120), is_passing=lambda error: isinstance(error, SinkUnavailable))


@pytest.mark.long
@KINDS
@pytest.mark.parametrize("compatibility", ["BACKWARD", "FULL"])
def test_stock_deserializers_read_every_record_of_a_real_registry(
    registry: Registry, database: Database[Any], implementation: str, kind: str, compatibility: str
) -> None:
    """`make registry`: events of a real server, every type; Confluent's own client reads what was not refused."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    prefix = f"{kind}-{compatibility}-{implementation}"
    writer = made(kind, SchemaRegistry(registry.url, compatibility), prefix)
    client = SchemaRegistryClient({"url": registry.url})
    read = AvroDeserializer(client) if kind == "avro" else JSONDeserializer(None, schema_registry_client=client)
    events = [*events_of(database), event({"_id": 9, "of": {"$id": 5, "$schema": 1}, "and": {"$ref": 7}})]
    refused = found = 0
    for each in events:
        try:
            record = writer.records(each)[0]
        except EventUnconvertible as error:
            refused += "cannot take" in str(error)
            continue
        context = SerializationContext(f"{prefix}.{database.name}.people", MessageField.VALUE)
        envelope = read(record.value, context)
        assert envelope["operationType"] == record.operation
        assert (envelope["after"] is None) == (bson.decode(each, ANY_DATE).get("fullDocument") is None)
        found += 1
    assert found == len(events) - refused
    assert bool(refused) == (compatibility == "FULL")


SPARK_AVRO = "org.apache.spark:spark-avro_2.13:4.0.1"
SPARK_AVRO_JARS = {
    "scala-library-2.13.16.jar": "1ebb2b6f9e4eb4022497c19b1e1e825019c08514f962aaac197145f88ed730f1",
    "scala-parallel-collections_2.13-1.2.0.jar": "4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432",
    "spark-avro_2.13-4.0.1.jar": "834207b759159ceb7e367df9c0fe5998bbb547fdcdc5269dfeeba2c6803559b6",
    "spark-tags_2.13-4.0.1.jar": "422df5feabd133e8c770fee9d538beb9bfadb6604ec71a7a93dd1841663861f8",
    "xz-1.10.jar": "95c63c1a55b22dd6453890a419cc1a640f790bbf7d8ae82db1e30aefefb08888",
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_spark_reads_every_record_with_from_avro(
    registry: Registry, database: Database[Any], implementation: str, tmp_path: Path
) -> None:
    """`make registry`: each record by the schema that the registry has under its id, behind a header of five bytes."""
    prefix, asked = f"spark-{implementation}", SchemaRegistry(registry.url)
    writer, written = made("avro", asked, prefix), dict[int, list[tuple[dict[str, Any], bytes]]]()
    for each in events_of(database):
        value = writer.records(each)[0].value or b""
        written.setdefault(int.from_bytes(value[1:5], "big"), []).append((bson.decode(each, ANY_DATE), value))
    lines = []
    for number, records in written.items():
        answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=60).raise_for_status()
        values = [base64.b64encode(value).decode() for _, value in records]
        lines.append(json.dumps({"schema": answer.json()["schema"], "values": values}))
    (tmp_path / "given").write_text("\n".join(lines))
    jars = fetch_jars("spark-avro", (SPARK_AVRO,), SPARK_AVRO_JARS)
    jar = next(str(jar) for jar in jars if jar.name.startswith("spark-avro"))
    program = Path(__file__).parents[2] / "from_avro.py"
    command = [sys.executable, str(program), jar, str(tmp_path / "given"), str(tmp_path / "out")]
    done = run_guarded(
        command, capture_output=True, text=True, timeout=800, env={**os.environ, "JAVA_HOME": str(java_home())}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    read = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    sent = [event for records in written.values() for event, _ in records]
    assert len(read) == len(sent) == 3 * len(EVERY)
    for found, event in zip(read, sent, strict=True):
        assert found["operationType"] == event["operationType"]
        assert (found["after"] is None) == (event.get("fullDocument") is None)
        document = event.get("fullDocument") or {}
        if "nested" in document:
            assert found["after"]["nested"]["_xe9__x2d_1"] == 1.5
        if "d" in document:
            assert found["after"]["d"] == "12.50"
        if "A" in document:
            assert found["after"]["A_"]["z"] == 1, "Spark tells `A` and `a` apart by nothing"
        if document.get("_id") == 8:
            assert found["after"]["last"]["member1"] == '{"$date":{"$numberLong":"9223372036854775807"}}'
