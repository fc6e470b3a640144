"""From the settings to the parts of a capture, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace.capture.formats import decoder_of
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.positions import Position, open_store, this_process
from tailrace.capture.positions.side_cell import SideCell
from tailrace.capture.producer.control import FirstStep, ProducerOptions
from tailrace.capture.producer.delivery import Hook, no_hook
from tailrace.capture.producer.parts import MEGABYTE, format_of, selection_of, sink_of, topics_of
from tailrace.capture.producer.producer import Producer
from tailrace.capture.recovery.inventory import KeyInventory, LocalInventory, NoInventory, TopicInventory
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.recovery.verify import Comparison, Verification
from tailrace.capture.sinks import Sink, open_dead_letters
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import ClusterAccess, EventSource, Selection, make_source
from tailrace.errors import DeploymentUnsuitable, NotAuthorized, SettingsError, TailraceError
from tailrace.families import Family, family_of, refuse_engine
from tailrace.logs import get_logger
from tailrace.monitor.metrics import ProofMetrics
from tailrace.owned.closeable import Closeable
from tailrace.policy import NO_POLICY, Policy
from tailrace.policy.configured import policy_of
from tailrace.proof import TrustLedger
from tailrace.retry import RetryPolicy
from tailrace.settings import CaptureSettings, EngineSettings, MongodbSettings, RegistrySettings, Settings
from tailrace.telemetry import NO_TRACING, Tracing

_log = get_logger("tailrace.capture")


class Capture(Closeable):
    """The parts that one set of settings asks for; closed together."""

    def __init__(
        self,
        settings: CaptureSettings,
        client: MongoClient[Any],
        uri: str,
        policy: Policy = NO_POLICY,
        engine: EngineSettings | None = None,
        server: MongodbSettings | None = None,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._engine = engine or EngineSettings()
        self._proof_metrics = ProofMetrics(settings.name)
        self._opened = ExitStack()
        cluster = ClusterAccess(uri, settings.shards, settings.order)
        self.topics = topics_of(settings)
        self._format = format_of(settings, self.topics, policy, registry)
        server = server or MongodbSettings()
        chosen = replace(selection_of(settings), family=server.family, soft_delete_field=server.soft_delete_field)
        self.source = self._source(client, chosen, cluster)
        self.store = self._opened.enter_context(open_store(settings.position_store.get_secret_value()))
        self._sink_url = settings.sink.get_secret_value()
        self.kafka = KafkaAddress.parse(self._sink_url) if self._sink_url.startswith("kafka:") else None
        self.dead_letters = self._opened.enter_context(
            open_dead_letters(settings.dead_letters, self._sink_url, self.topics)
        )

    @classmethod
    def open(cls, settings: Settings, client: MongoClient[Any]) -> Capture:
        """Put the parts together; servers other than MongoDB are asked when they are needed."""
        policy = policy_of(settings, selection_of(settings.capture).pipeline)
        server, uri = settings.mongodb, settings.mongodb.uri.get_secret_value()
        return cls(settings.capture, client, uri, policy, settings.engine, server, settings.registry)

    def close(self) -> None:
        """Close the store and the dead letters."""
        self._opened.close()

    def producer(
        self,
        *,
        stop_when_idle: bool = False,
        first_step: FirstStep = FirstStep.GO_ON,
        hook: Hook = no_hook,
        tracing: Tracing = NO_TRACING,
    ) -> Producer:
        """Make the producer."""
        chosen = self._settings
        options = ProducerOptions(
            name=chosen.name,
            start=chosen.start,
            recover=chosen.recover,
            buffer_bytes=chosen.buffer_mb * MEGABYTE,
            commit_interval=chosen.commit_interval_seconds,
            lease_seconds=chosen.lease_seconds,
            heartbeat_seconds=chosen.heartbeat_seconds,
            snapshot_workers=chosen.snapshot_workers,
            snapshot_documents_per_second=chosen.snapshot_documents_per_second,
            chunk_bytes=int(chosen.snapshot_chunk_mb * MEGABYTE),
            first_step=first_step,
            stop_when_idle=stop_when_idle,
            backoff=RetryPolicy(budget=chosen.retry_seconds),
            policy=self._policy,
            tracing=tracing,
        )
        return Producer(
            self.source,
            self.store,
            replace(self._format, sample_ratio=tracing.sampler.ratio).make(),
            self._make_sink,
            self._dead_letter,
            self.inventory(),
            options,
            hook=hook,
        )

    def _dead_letter(self, event: bytes, error: TailraceError) -> None:
        self.dead_letters.add(self._policy.event_or_stripped(event), error)

    def recovery(self) -> Recovery:
        """Make the recovery alone, for a dry run."""
        return Recovery(self.source, self.store.cells, self._settings.name, self.inventory())

    def inventory(self) -> KeyInventory:
        """Choose where the captured keys are known from: a file that was asked for, or the topics."""
        chosen, is_followed = self._settings, self.source.selection.namespaces.contains_name
        if chosen.inventory is None and self.topics.renames:
            return NoInventory()  # which topics are ours cannot be known from their names
        if chosen.inventory is not None:
            return LocalInventory(Path(chosen.inventory), is_followed)
        if self.kafka is not None:
            return TopicInventory(self.kafka, self.topic_names, decoder_of(chosen.format), is_followed)
        return NoInventory()

    def topic_names(self) -> list[str]:
        """Give the topics of this stream that exist."""
        from tailrace.capture.recovery.topic_reader import topics_like

        return topics_like(self.readable_sink(), self.topics.pattern)

    def _topics_to_read(self) -> list[str]:
        """Give the topics of this stream; none at all is no proof of anything. A broker hides what is not allowed."""
        found = self.topic_names()
        if not found:
            raise NotAuthorized(
                f"no topic like {self.topics.pattern} is there, or the user lacks Read on the topics of the stream",
                hint="Check capture.topic_prefix, and grant the ACL; the security page has the ACLs per verb.",
            )
        return found

    def verify(
        self,
        at: Timestamp,
        *,
        topics: Sequence[str] | None = None,
        collections: Sequence[str] | None = None,
        show: Callable[[int], None] = lambda _: None,
    ) -> list[Comparison]:
        """Compare collections with their state in the topics at a time."""
        if self.topics.renames or any(one.kind in ("flatten", "add-fields") for one in self._settings.transforms):
            raise SettingsError(
                "topics that are renamed, and documents that are transformed, cannot be compared with the collections",
                hint="Verify a stream without capture.transforms of the kinds rename-topic, flatten and add-fields.",
            )
        decoder, is_followed = decoder_of(self._settings.format), self.source.selection.namespaces.contains_name
        verification = Verification(self.source.documents(), decoder, at, self._policy, is_followed)
        try:
            verification.read(self.readable_sink(), list(topics) if topics else self._topics_to_read(), show)
            return [verification.compare(name) for name in collections or verification.namespaces()]
        finally:
            verification.close()

    def begin_at(self, position: Position, *, reason: str) -> None:
        """Set the position of a stream that nobody runs."""
        lease = self.store.acquire(self._settings.name, this_process(), reason=reason)
        self.store.release(self.store.save(position, lease, reason=reason))

    def readable_sink(self) -> KafkaAddress:
        """Give the sink if it can be read back, which only Kafka can."""
        if self.kafka is None:
            raise SettingsError("the sink is not Kafka: it cannot be read back", hint="Set capture.sink to kafka://...")
        return self.kafka

    def _source(self, client: MongoClient[Any], selection: Selection, cluster: ClusterAccess) -> EventSource:
        if self._settings.source == "oplog" and selection.expanded:
            raise SettingsError(
                "capture.ddl_topic needs the server's own change streams", hint="Set capture.source to change-stream."
            )
        family = family_of(client, selection.family)
        if family is Family.MONGODB:
            _refuse_time_series(client, selection.namespaces)
        if self._settings.source != "oplog":
            _check_family(family, self._settings)
            return make_source(self._settings.source, client, selection)
        refuse_engine(family)
        from tailrace.capture.source.proving import ProofOptions, ProvingSource, Side

        options = ProofOptions(self._engine.matches, self._engine.sample_one_in)
        return ProvingSource(
            client,
            selection,
            cluster,
            self._make_ledger,
            options,
            on_side=lambda side: self._proof_metrics.serves(side is Side.ENGINE),
        )

    def _make_ledger(self, server: str, presumes: bool) -> TrustLedger:
        """Keep what is known of the engine beside the stream's position, and the evidence with the dead letters."""
        cell = SideCell(self.store.cells, "engine", self._settings.name)
        return TrustLedger(
            server,
            self._engine.matches,
            presumes=presumes,
            saved=cell.read(),
            save=lambda ledger: cell.update(lambda _: ledger),
            on_difference=self.dead_letters.add_difference,
            on_note=lambda ledger: self._proof_metrics.show(ledger.counts(), ledger.by_trust()),
            policy=self._policy,
        )

    def _make_sink(self) -> Sink:
        return sink_of(self._settings, self.topics, self.dead_letters, self.store)


def _refuse_time_series(client: MongoClient[Any], chosen: Namespaces) -> None:
    """Refuse time-series collections by name: no change stream has events of what is written to them.

    Only those are listed that the user may see, which needs no privilege of its own.
    """
    for database in sorted(chosen.named_databases or ()):
        found = client[database].list_collections(
            filter={"type": "timeseries"}, nameOnly=True, authorizedCollections=True
        )
        names = [f"{database}.{each['name']}" for each in found if chosen.contains(database, each["name"])]
        if names and names[0] in chosen.collections:
            raise DeploymentUnsuitable(
                f"{names[0]} is a time-series collection, whose changes no change stream tells",
                hint="Leave it out of capture.namespaces, and read it with a batch job.",
            )
        for name in names:
            _log.warning("time_series_collection_left_out", namespace=name, why="no change stream has its events")


def _check_family(family: Family, settings: CaptureSettings) -> None:
    """Refuse a snapshot whose rows would wait for ever: an idle stream of DocumentDB does not say how far it is.

    One of Cosmos DB never does.
    """
    if family is Family.COSMOSDB and settings.start == "snapshot":
        raise DeploymentUnsuitable(
            "the tokens of Azure Cosmos DB for MongoDB hold no time, so a snapshot cannot be put beside its stream",
            hint="Begin without one: capture.start = now.",
        )
    if family is Family.DOCUMENTDB and settings.start == "snapshot" and not settings.heartbeat_seconds:
        raise DeploymentUnsuitable(
            "a snapshot of Amazon DocumentDB needs heartbeats: it gives no post-batch tokens, and rows wait for events",
            hint="Set capture.heartbeat_seconds (10), or begin without a snapshot: capture.start = now.",
        )
