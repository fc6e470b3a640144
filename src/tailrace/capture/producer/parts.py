"""The parts of a capture that the settings alone decide: made without asking any server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.capture.dead_letters.dead_letters import DeadLetters, NoDeadLetters
from tailrace.capture.formats import Format, FormatOptions
from tailrace.capture.formats.registry import SchemaRegistry
from tailrace.capture.positions import PositionStore, open_store
from tailrace.capture.positions.leader import margin_of
from tailrace.capture.sinks import Sink, SinkOptions, open_dead_letters, open_sink
from tailrace.capture.sinks.topics import DEFAULT_TEMPLATE, TopicRule
from tailrace.capture.source.namespaces import Namespaces, Slice
from tailrace.capture.source.source import Scope, Selection, read_pipeline
from tailrace.capture.transforms import DDL, renames_of, transformed
from tailrace.errors import SettingsError
from tailrace.extras import require_client
from tailrace.policy import NO_POLICY, Policy
from tailrace.policy.configured import policy_of
from tailrace.settings import CaptureSettings, RegistrySettings, Settings, TransformSettings, masked

MEGABYTE = 2**20


def checks_of(settings: Settings) -> Mapping[str, Callable[[], object]]:
    """Give what makes each part, by the setting it is made of; each raises what `produce` would raise.

    Nothing is written, and no server is asked.
    """
    chosen = settings.capture
    sink_url = chosen.sink.get_secret_value()

    def check_dead_letters() -> None:
        require_client(sink_url, f"capture.sink = {masked(sink_url)}")
        open_dead_letters(chosen.dead_letters, sink_url, topics_of(chosen)).close()

    def make_sink() -> None:
        with open_store(chosen.position_store.get_secret_value()) as store:
            sink_of(chosen, topics_of(chosen), NoDeadLetters(), store).close()

    return {
        "capture.namespaces": lambda: selection_of(chosen),
        "policy.rules": lambda: policy_of(settings, selection_of(chosen).pipeline),
        "capture.topic": lambda: topics_of(chosen),
        "capture.format": lambda: format_of(chosen, topics_of(chosen), NO_POLICY, settings.registry).make(),
        "capture.dead_letters": check_dead_letters,
        "capture.position_store": lambda: open_store(chosen.position_store.get_secret_value()).close(),
        "capture.sink": make_sink,
    }


def topics_of(settings: CaptureSettings) -> TopicRule:
    """Read which topic each namespace goes to."""
    return TopicRule(
        settings.topic_prefix,
        settings.topic or DEFAULT_TEMPLATE,
        renames_of(settings.transforms),
        ((DDL, settings.ddl_topic),) if settings.ddl_topic else (),
    )


def format_of(
    settings: CaptureSettings, topics: TopicRule, policy: Policy, registry: RegistrySettings | None
) -> FormatOptions:
    """Read how events become records."""
    return FormatOptions(
        settings.format,
        key_field=settings.key_field,
        fields=settings.fields,
        tombstones=settings.tombstones,
        server_name=settings.topic_prefix,
        looks_up=settings.full_document == "updateLookup",
        keeps_unrepresentable=settings.unrepresentable == "keep",
        policy=policy,
        before=_Transforms(settings.transforms, settings.ddl_topic is not None),
        registry=registry_of(registry),
        subject_of=topics.subject,
        stops_when_incompatible=registry is not None and registry.on_incompatible == "stop",
    )


def sink_of(settings: CaptureSettings, topics: TopicRule, dead_letters: DeadLetters, store: PositionStore) -> Sink:
    """Make the sink; it connects in its `setup`."""
    options = SinkOptions(
        topics=topics,
        partitions=settings.partitions,
        is_json=settings.format not in ("bson", "avro", "jsonschema"),
        webhook_secret=settings.webhook_secret.get_secret_value() if settings.webhook_secret else None,
        buffer_bytes=settings.sink_buffer_mb * MEGABYTE,
        seconds_to_deliver=margin_of(settings.lease_seconds),
    )
    exactly_once = (store, settings.name) if settings.delivery == "exactly-once" else None
    return open_sink(settings.sink.get_secret_value(), dead_letters, options, exactly_once=exactly_once)


def selection_of(settings: CaptureSettings) -> Selection:
    """Read which events are wanted."""
    pipeline = read_pipeline(settings.pipeline, "capture.pipeline")
    return Selection(
        Namespaces.parse(settings.namespaces),
        Scope(settings.scope),
        tuple(pipeline),
        settings.full_document,
        settings.full_document_before_change,
        Slice.parse(settings.slice),
        heartbeat=_heartbeat_of(settings, pipeline),
        expanded=settings.ddl_topic is not None,
    )


def _heartbeat_of(settings: CaptureSettings, pipeline: Sequence[Any]) -> str | None:
    """Give the collection of the marks; a stream that might not show them would look as if it had lost them."""
    if not settings.heartbeat_seconds:
        return None
    if pipeline or settings.scope != Scope.CLUSTER.value:
        raise SettingsError(
            "heartbeats need a stream of cluster scope without a pipeline of your own, which might hide them",
            hint="Set capture.heartbeat_seconds to 0, or remove capture.pipeline and capture.scope.",
        )
    return settings.heartbeat_collection


@dataclass(frozen=True, slots=True)
class _Transforms:
    """Puts what the settings ask for before a format."""

    given: tuple[TransformSettings, ...]
    copies_ddl: bool

    def __call__(self, inner: Format) -> Format:
        return transformed(inner, self.given, copies_ddl=self.copies_ddl)


def registry_of(settings: RegistrySettings | None) -> SchemaRegistry | None:
    """Give the schema registry, if there is one."""
    if settings is None or settings.url is None:
        return None
    return SchemaRegistry(settings.url.get_secret_value(), settings.compatibility)
