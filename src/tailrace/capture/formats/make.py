"""From the settings to a format, and from its name to its decoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace import kernel
from tailrace.capture.formats.avro import AvroDecoder, AvroFormat
from tailrace.capture.formats.bson import BsonDecoder, BsonFormat
from tailrace.capture.formats.cloud_events import CloudEventsDecoder, CloudEventsFormat
from tailrace.capture.formats.debezium import VERSION, DebeziumDecoder, DebeziumFormat
from tailrace.capture.formats.debezium_json import unprintable_ranges
from tailrace.capture.formats.flat import ROW, FlatDecoder, FlatFormat
from tailrace.capture.formats.format import DOCUMENT_KEY, DecodedFormat, Format, KeyRule
from tailrace.capture.formats.json import CanonicalDecoder, CanonicalFormat, JsonDecoder, JsonFormat
from tailrace.capture.formats.json_schema import JsonSchemaDecoder, JsonSchemaFormat
from tailrace.capture.formats.registered import RegisteredFormat
from tailrace.capture.formats.registry import SchemaRegistry
from tailrace.capture.formats.stored_records import RecordDecoder
from tailrace.capture.formats.traced import TracedFormat
from tailrace.capture.plugins import load_object
from tailrace.capture.record import CompiledRecords, Record
from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.event import ChangeEvent
from tailrace.policy import NO_POLICY, CompiledPolicy, Policy
from tailrace.raw import extended_json
from tailrace.telemetry import Sampler


class GovernedFormat(Format):
    """Applies a policy to every event, and leaves the rest to another format.

    Records carry the event they were made of, so that dead letters and inventories have the governed one too.
    """

    def __init__(self, inner: Format, policy: Policy) -> None:
        super().__init__()
        self._inner = inner
        self._policy = policy
        self.content_type = inner.content_type

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""
        return self._inner.records(self._policy.event(event))

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events; the kernel applies the policy while it makes them."""
        compiled = self._policy.compiled()
        if compiled is not None and isinstance(self._inner, CompiledFormat):
            return self._inner.governed(events, compiled)
        return self._inner.batch(self._policy.events(events))


_DECODERS: Mapping[str, type[RecordDecoder]] = {
    decoder.name: decoder
    for decoder in (
        JsonDecoder, CanonicalDecoder, BsonDecoder, FlatDecoder, DebeziumDecoder, CloudEventsDecoder, AvroDecoder,
        JsonSchemaDecoder,
    )
}  # fmt: skip
_REGISTERED: Mapping[str, type[RegisteredFormat]] = {"avro": AvroFormat, "jsonschema": JsonSchemaFormat}
NAMES = tuple(_DECODERS)


def unchanged(format: Format) -> Format:
    """Put nothing before a format."""
    return format


def named_by_namespace(namespace: str) -> str:
    """Give the subject of a namespace where no topics are: that of a topic of the same name."""
    return f"{namespace}-value"


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What the settings say of a format, and all that another process needs to make the same one."""

    name: str
    """One of `NAMES`, or a user's function, `module:function`."""
    key_field: str | None = None
    fields: Sequence[str] = ()
    """Those of `flat`."""
    tombstones: bool | None = None
    """Whether they follow deletes; by default with `debezium` only."""
    server_name: str = "tailrace"
    """`source.name` of `debezium`."""
    looks_up: bool = False
    """Whether the stream looks documents up after their events."""
    keeps_unrepresentable: bool = False
    """Whether events that the format cannot carry whole are written all the same, with a header."""
    registry: SchemaRegistry | None = None
    """Where `avro` and `jsonschema` have their schemas."""
    subject_of: Callable[[str], str] = named_by_namespace
    """The registry's subject for the values of a namespace."""
    stops_when_incompatible: bool = False
    """Whether a document that its schema cannot take ends the stream, instead of being a dead letter."""
    before: Callable[[Format], Format] = unchanged
    """Puts transforms of events and records before the format, behind the policy."""
    policy: Policy = NO_POLICY
    """What happens to fields before a record is made."""
    sample_ratio: float = 0.0
    """Share of the events whose records have the context of a trace."""

    @property
    def is_users_function(self) -> bool:
        """Whether it is a user's function, which may remember things and so runs in one process only."""
        return ":" in self.name

    def make(self) -> Format:
        """Make the format: the kernel's where it runs and does this one, else the reference."""
        made = self.before(self._made())
        if self.sample_ratio:
            made = TracedFormat(made, Sampler(self.sample_ratio))
        return GovernedFormat(made, self.policy) if self.policy else made

    def _made(self) -> Format:
        reference = self._reference()
        reference.looks_up = self.looks_up
        reference.keeps_unrepresentable = self.keeps_unrepresentable
        compiled = kernel.module()
        return reference if compiled is None or not self._is_compiled else self._compiled(compiled, reference)

    @property
    def _has_tombstones(self) -> bool:
        return (self.name == "debezium") if self.tombstones is None else self.tombstones

    @property
    def _is_compiled(self) -> bool:
        """Whether the kernel knows the format; it writes fields one by one, so their names have to differ."""
        return self.name in NAMES and len({*self.fields, *ROW}) == len(self.fields) + len(ROW)

    def _compiled(self, compiled: Any, reference: Format) -> Format:
        made = compiled.RecordFormat(
            self.name,
            Record,
            key_field=self.key_field,
            tombstones=self._has_tombstones,
            fields=self.fields,
            version=VERSION,
            server_name=reference.source if isinstance(reference, CloudEventsFormat) else self.server_name,
            unprintable=unprintable_ranges() if self.name == "debezium" else [],
        )
        if isinstance(reference, RegisteredFormat):
            reference.learned = lambda namespace, number, schema: made.learn(namespace, number, schema.plan())
        return CompiledFormat(reference, made)

    def _reference(self) -> Format:
        name, key = self.name, KeyRule(self.key_field) if self.key_field else DOCUMENT_KEY
        wanted = self._has_tombstones
        if name == "json":
            return JsonFormat(key, tombstones=wanted)
        if name == "canonical":
            return CanonicalFormat(key, tombstones=wanted)
        if name == "bson":
            return BsonFormat(key, tombstones=wanted)
        if name == "flat":
            if not self.fields:
                raise SettingsError(
                    "the format flat needs the fields to write, and capture.fields names none",
                    hint='Set capture.fields, such as ["status", "total"], or use the format json.',
                )
            return FlatFormat(self.fields, key, tombstones=wanted)
        if name == "debezium":
            return DebeziumFormat(self.server_name, key, tombstones=wanted)
        if name == "cloudevents":
            return CloudEventsFormat(self.server_name, key, tombstones=wanted)
        if name in _REGISTERED:
            if self.registry is None:
                raise SettingsError(
                    f"the format {name} needs a schema registry",
                    hint="Set registry.url, such as http://registry:8081, or use the format json.",
                )
            return _REGISTERED[name](
                self.registry, self.subject_of, key, tombstones=wanted, stops=self.stops_when_incompatible
            )
        if self.is_users_function:
            return FunctionFormat(load_object(name), key, tombstones=wanted)
        raise SettingsError(f"there is no format {name!r}", hint=f"Use {', '.join(NAMES)} or module:function.")


def make_format(name: str, **options: Any) -> Format:
    """Make the format called `name`; the options are those of `FormatOptions`."""
    return FormatOptions(name, **options).make()


def decoder_of(name: str) -> RecordDecoder:
    """Give the decoder of a format; records of a user's own function cannot be read back."""
    if name not in _DECODERS:
        raise SettingsError(
            f"records of the format {name!r} cannot be read back", hint=f"Possible with {', '.join(NAMES)}."
        )
    return _DECODERS[name]()


def event_decoder_of(name: str) -> RecordDecoder:
    """Give the decoder of a format whose records become events again."""
    decoder = decoder_of(name)
    if not decoder.has_events:
        readable = ", ".join(each for each, kind in _DECODERS.items() if kind.has_events)
        raise SettingsError(
            f"records of the format {name} are for consumers of the schema registry; jobs do not read them",
            hint=f"Jobs read {readable}; in Spark itself, from_avro reads Avro.",
        )
    return decoder


class FunctionFormat(DecodedFormat):
    """What `function(event)` returns for the decoded event becomes the value.

    None leaves the event out; `bytes` and `str` are written as they are; documents, lists and all BSON types as relaxed
    Extended JSON. A function that raises sends the event to the dead letters.
    """

    def __init__(
        self, function: Callable[[dict[str, Any]], Any], key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False
    ) -> None:
        if not callable(function):
            hint = "Write module:function in capture.format."
            raise SettingsError(f"{function!r} is no function that could be a format", hint=hint)
        super().__init__(key, tombstones=tombstones)
        self._function = function

    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes | None:
        try:
            value = self._function(extended_json.decode_for_people(view.raw))
        except Exception as error:
            name = getattr(self._function, "__qualname__", self._function)
            raise EventUnconvertible(f"{name} raised {type(error).__name__}: {error}") from error
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else extended_json.relaxed_of(value)


class CompiledFormat(Format):
    """Gives the same records as its reference, several times as fast.

    The kernel declines what is rare: a document that JSON cannot carry whole, bytes that are no BSON, a rename, and in
    Avro what its schema has no place for yet. The reference makes the record of such an event, or raises what is wrong
    with it.
    """

    def __init__(self, reference: Format, compiled: Any, clock: Callable[[], int] = time.time_ns) -> None:
        super().__init__()
        self._reference = reference
        self._compiled = compiled
        self._clock = clock
        self.content_type = reference.content_type
        self.looks_up = reference.looks_up
        self.keeps_unrepresentable = reference.keeps_unrepresentable

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""
        return self.batch([event])

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events; the reference takes its turn at those that the kernel declines."""
        return self._finished(self._made(events, None), self._reference.records)

    def governed(self, events: Sequence[bytes], policy: CompiledPolicy) -> Sequence[Record]:
        """Give the records for many events after a policy was applied to them."""
        made = self._made(events, policy.compiled)
        if made.unknown:
            policy.learn(made.unknown)
            made = self._made(events, policy.compiled)
        return self._finished(made, lambda event: self._reference.records(policy.reference(event)))

    def _made(self, events: Sequence[bytes], policy: Any) -> Any:
        return self._compiled.batch(events, self.looks_up, self._clock(), policy)

    def _finished(self, made: Any, convert: Callable[[bytes], Sequence[Record]]) -> Sequence[Record]:
        if not made.declined:
            return CompiledRecords(made)
        records: list[Record] = []
        for each in made.records():
            if type(each) is bytes:
                records += convert(each)
            else:
                records.append(each)
        return records
