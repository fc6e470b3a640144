"""From the settings to the parts of a capture, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from bson import json_util
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace.capture.formats import FormatOptions, decoder_of
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import Position, open_store, this_process
from tailrace.capture.positions.leader import margin_of
from tailrace.capture.producer.delivery import Hook, no_hook
from tailrace.capture.producer.options import FirstStep, ProducerOptions
from tailrace.capture.producer.producer import Producer
from tailrace.capture.recovery.inventory import KeyInventory, LocalInventory, NoInventory, TopicInventory
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.recovery.topic_reader import topics_like
from tailrace.capture.recovery.verify import Comparison, Verification
from tailrace.capture.sinks import Sink, SinkOptions, open_dead_letters, open_sink
from tailrace.capture.sinks.topics import DEFAULT_TEMPLATE, TopicRule
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.slices import Slice
from tailrace.capture.source.source import ClusterAccess, EventSource, Scope, Selection, make_source
from tailrace.errors import SettingsError
from tailrace.retry import RetryPolicy
from tailrace.settings import CaptureSettings, Settings

_MEGABYTE = 2**20


class Capture:
    """The parts that one set of settings asks for; closed together."""

    def __init__(self, settings: CaptureSettings, client: MongoClient[Any], uri: str) -> None:
        self._settings = settings
        self._opened = ExitStack()
        cluster = ClusterAccess(uri, settings.shards, settings.order)
        self._format = FormatOptions(
            settings.format,
            key_field=settings.key_field,
            fields=settings.fields,
            tombstones=settings.tombstones,
            server_name=settings.topic_prefix,
            looks_up=settings.full_document == "updateLookup",
            keeps_unrepresentable=settings.unrepresentable == "keep",
        )
        self.source = _source_of(settings.source, client, selection_of(settings), cluster, self._format)
        self.store = self._opened.enter_context(open_store(settings.position_store.get_secret_value()))
        self.topics = TopicRule(settings.topic_prefix, settings.topic or DEFAULT_TEMPLATE)
        self._sink_url = settings.sink.get_secret_value()
        self.kafka = KafkaAddress.parse(self._sink_url) if self._sink_url.startswith("kafka:") else None
        self.dead_letters = self._opened.enter_context(
            open_dead_letters(settings.dead_letters, self._sink_url, self.topics)
        )

    @classmethod
    def open(cls, settings: Settings, client: MongoClient[Any]) -> Capture:
        """Put the parts together; servers other than MongoDB are asked when they are needed."""
        return cls(settings.capture, client, settings.mongodb.uri.get_secret_value())

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def producer(
        self,
        *,
        stop_when_idle: bool = False,
        first_step: FirstStep = FirstStep.GO_ON,
        hook: Hook = no_hook,
    ) -> Producer:
        """Make the producer."""
        chosen = self._settings
        options = ProducerOptions(
            name=chosen.name,
            start=chosen.start,
            recover=chosen.recover,
            buffer_bytes=chosen.buffer_mb * _MEGABYTE,
            commit_interval=chosen.commit_interval_seconds,
            lease_seconds=chosen.lease_seconds,
            heartbeat_seconds=chosen.heartbeat_seconds,
            snapshot_workers=chosen.snapshot_workers,
            snapshot_documents_per_second=chosen.snapshot_documents_per_second,
            chunk_bytes=int(chosen.snapshot_chunk_mb * _MEGABYTE),
            first_step=first_step,
            stop_when_idle=stop_when_idle,
            backoff=RetryPolicy(budget=chosen.retry_seconds),
        )
        return Producer(
            self.source,
            self.store,
            self._format.make(),
            self._make_sink,
            self.dead_letters.add,
            self.inventory(),
            options,
            hook=hook,
        )

    def recovery(self) -> Recovery:
        """Make the recovery alone, for a look at what it would do."""
        return Recovery(self.source, self.store.cells, self._settings.name, self.inventory())

    def inventory(self) -> KeyInventory:
        """Choose where the captured keys are known from: a file that was asked for, or the topics."""
        chosen = self._settings
        if chosen.inventory is not None:
            return LocalInventory(Path(chosen.inventory))
        if self.kafka is not None:
            return TopicInventory(self.kafka, self.topic_names, decoder_of(chosen.format))
        return NoInventory()

    def topic_names(self) -> list[str]:
        """Give the topics of this stream that exist."""
        return topics_like(self._kafka(), self.topics.pattern)

    def verify(
        self,
        at: Timestamp,
        *,
        topics: Sequence[str] | None = None,
        collections: Sequence[str] | None = None,
        show: Callable[[int], None] = lambda _: None,
    ) -> list[Comparison]:
        """Compare collections with what the topics tell of them at a time."""
        verification = Verification(self.source.documents(), decoder_of(self._settings.format), at)
        try:
            verification.read(self._kafka(), list(topics) if topics else self.topic_names(), show)
            return [verification.compare(name) for name in collections or verification.namespaces()]
        finally:
            verification.close()

    def begin_at(self, position: Position, *, reason: str) -> None:
        """Set the position of a stream that nobody runs."""
        lease = self.store.acquire(self._settings.name, this_process(), reason=reason)
        self.store.release(self.store.save(position, lease, reason=reason))

    def _kafka(self) -> KafkaAddress:
        if self.kafka is None:
            raise SettingsError("the sink is not Kafka: it cannot be read back", hint="Set capture.sink to kafka://...")
        return self.kafka

    def _make_sink(self) -> Sink:
        chosen = self._settings
        options = SinkOptions(
            topics=self.topics,
            partitions=chosen.partitions,
            is_json=chosen.format != "bson",
            webhook_secret=chosen.webhook_secret.get_secret_value() if chosen.webhook_secret else None,
            buffer_bytes=chosen.sink_buffer_mb * _MEGABYTE,
            seconds_to_deliver=margin_of(chosen.lease_seconds),
        )
        exactly_once = (self.store, chosen.name) if chosen.delivery == "exactly-once" else None
        return open_sink(self._sink_url, self.dead_letters, options, exactly_once=exactly_once)


def _source_of(
    kind: str, client: MongoClient[Any], selection: Selection, cluster: ClusterAccess, format: FormatOptions
) -> EventSource:
    if kind != "oplog":
        return make_source(kind, client, selection)
    from tailrace.capture.source.catch_up import CatchingUpSource

    return CatchingUpSource(client, selection, cluster, None if format.is_users_function else format)


def selection_of(settings: CaptureSettings) -> Selection:
    """Read which events are wanted."""
    try:
        pipeline = json_util.loads(settings.pipeline)
    except ValueError as error:
        raise SettingsError(f"capture.pipeline is not JSON: {error}", hint="Write a list of stages.") from None
    if not isinstance(pipeline, list) or not all(isinstance(stage, dict) for stage in pipeline):
        raise SettingsError("capture.pipeline is not a list of stages", hint='Write for example [{"$match": {...}}].')
    return Selection(
        Namespaces.parse(settings.namespaces),
        Scope(settings.scope),
        tuple(pipeline),
        settings.full_document,
        settings.full_document_before_change,
        Slice.parse(settings.slice),
        heartbeat=_heartbeat_of(settings, pipeline),
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
