"""Every setting of tailrace, typed, in one place.

Three sources, later ones override earlier ones: the file `tailrace.toml` (or the one named by `--config` or
`TAILRACE_CONFIG`), environment variables (`TAILRACE_MONGODB__URI` is `uri` in the section `[mongodb]`), and
command-line flags. An unknown key is an error, wherever it is. Secrets appear in no log, message or `repr`
(`masking.py`), and each can be read from a file: `uri_file` instead of `uri`, and so can every setting that may hold
one, such as `spark.config_file`, a file of TOML.

Relative paths in the file, and default paths, are relative to the folder of the file; those in variables and flags to
the working folder. In a unit of systemd with a `StateDirectory` default paths are relative to that one: the folder of
the file is read-only there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from tailrace.errors import SettingsError
from tailrace.masking import masked as masked
from tailrace.masking import shown
from tailrace.settings_source import (
    file_keys,
    forget_files,
    is_service_link,
    located,
    located_defaults,
    read_toml,
    renewed_secrets,
    with_secrets_of_files,
)
from tailrace.settings_types import (
    CONTRACTS,
    HEAP,
    HOST_AND_PORT,
    IDENTIFIER,
    MASTER,
    NAMESPACE,
    STREAM_NAME,
    http_address,
    http_addresses,
    mongodb_uris,
    one_of,
    pattern_in_words,
    plain_reason,
    refuse_placeholder,
    type_name,
    usable,
)

DEFAULT_FILE = Path("tailrace.toml")
ENVIRONMENT_PREFIX = "TAILRACE_"
_OUTSIDE_THE_MODEL = {"TAILRACE_CONFIG", "TAILRACE_CACHE", "TAILRACE_KERNEL"}


class Section(BaseModel):
    """A section of the file: immutable, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        return usable(value)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return ((name, shown(value, name or "")) for name, value in super().__repr_args__())


class MongodbSettings(Section):
    """The MongoDB deployment to read."""

    uri: SecretStr = Field(SecretStr("mongodb://127.0.0.1:27017/"), description="URI of the replica set.")
    timeout_seconds: float = Field(10.0, gt=0, description="How long to search for a server before giving up.")
    family: str = Field(
        "auto",
        pattern="^(auto|mongodb|documentdb|cosmosdb)$",
        description="Kind of server; auto detects it from the host name and buildInfo.",
    )
    retention_hours: float = Field(3.0, gt=0, le=168, description="How long Amazon DocumentDB keeps changes.")
    soft_delete_field: str = Field("deleted", description="Field that marks a deleted document on Cosmos DB.")


class LogSettings(Section):
    """Logging."""

    level: str = Field("info", pattern="^(debug|info|warning|error)$", description="Lowest level to log.")
    json_lines: bool | None = Field(
        None, description="JSON lines instead of text; unset means JSON unless stderr is a terminal."
    )


class TransformSettings(Section):
    """A transform of events or topics; transforms are applied in the order given."""

    kind: str = Field(
        pattern="^(rename-topic|route|filter|flatten|add-fields)$",
        description="rename-topic, route, filter, flatten or add-fields.",
    )
    pattern: str | None = Field(None, description="rename-topic: a regular expression that is searched in names.")
    replacement: str | None = Field(None, description="rename-topic: what stands in its place; \\1 is a group.")
    field: str | None = Field(None, description="route: the field whose value is appended to the topic.")
    match: str | None = Field(None, description="filter: a query over the event, as Extended JSON.")
    separator: str = Field("_", min_length=1, description="flatten: what stands between the names.")
    fields: str | None = Field(None, description="add-fields: a JSON object of names and expressions over the event.")


class CaptureSettings(Section):
    """What to capture, where to deliver it, and how."""

    name: str = Field("default", pattern=STREAM_NAME, description="Name of the stream in the position store.")
    source: str = Field("change-stream", pattern="^(change-stream|oplog)$", description="Where events come from.")
    shards: dict[str, str] = Field({}, description="Shard URIs by name, for source oplog; unset means discover them.")
    _are_uris = field_validator("shards")(mongodb_uris)
    order: str = Field(
        "strict", pattern="^(strict|per-key)$", description="Order of events across shards (source oplog)."
    )
    namespaces: tuple[str, ...] = Field(
        (), description="What to capture: db.collection, db or /regex/; empty means all."
    )
    scope: str = Field(
        "cluster", pattern="^(cluster|database|collection)$", description="Scope of the server's change stream."
    )
    pipeline: str = Field("[]", description="Aggregation stages applied by the server, as Extended JSON.")
    full_document: str | None = Field(
        None,
        pattern="^(default|updateLookup|whenAvailable|required)$",
        description="When updates include the whole document.",
    )
    full_document_before_change: str | None = Field(
        None,
        pattern="^(off|whenAvailable|required)$",
        description="When events include the document before the change.",
    )
    slice: str = Field("1/1", description="Share of the documents that this process handles, such as 2/4.")
    start: str = Field("snapshot", pattern="^(snapshot|now)$", description="Where a stream without a position starts.")
    recover: bool = Field(True, description="Recover lost history automatically instead of stopping with the gap open.")
    sink: SecretStr = Field(
        SecretStr("kafka://127.0.0.1:9092"),
        description="Destination: kafka://, file:, stdout:, http(s)://, redis:// or module:Class.",
    )
    delivery: str = Field("at-least-once", pattern="^(at-least-once|exactly-once)$", description="Delivery guarantee.")
    format: str = Field(
        "json", description="json, canonical, bson, flat, debezium, cloudevents, avro, jsonschema or module:function."
    )
    fields: tuple[str, ...] = Field((), description="Fields for the format flat.")
    key_field: str | None = Field(
        None, description="Document field to use as the record key instead of the documentKey."
    )
    tombstones: bool | None = Field(None, description="Whether a tombstone follows each delete.")
    topic_prefix: str = Field("tailrace", description="Topics are named {prefix}.{db}.{collection}.")
    topic: str | None = Field(None, description="One topic for everything.")
    transforms: tuple[TransformSettings, ...] = Field(
        (), description="Transforms of events and topics, applied in order."
    )
    ddl_topic: str | None = Field(
        None, description="Topic for create, drop, rename, createIndexes, modify, shardCollection and the like."
    )
    partitions: int = Field(6, gt=0, description="Partitions of topics that tailrace creates.")
    position_store: SecretStr = Field(
        SecretStr("file:.tailrace/positions"), description="file:, postgresql://, mongodb://, kafka:// or redis://."
    )
    unrepresentable: str = Field(
        "refuse",
        pattern="^(refuse|keep)$",
        description="Events that the format cannot fully represent: dead-letter them, or keep them with a header.",
    )
    dead_letters: str = Field("topic", description="Destination of rejected records: topic, file:folder, or stop.")
    webhook_secret: SecretStr | None = Field(None, description="Key that signs the requests of a webhook sink (HMAC).")
    inventory: str | None = Field(None, description="File of captured keys, for sinks that cannot be read back.")
    buffer_mb: int = Field(32, gt=0, description="Size of the read-ahead buffer.")
    sink_buffer_mb: int = Field(64, gt=0, description="Limit for unacknowledged records in the sink.")
    commit_interval_seconds: float = Field(0.1, ge=0, description="Minimum time between two saves of the position.")
    heartbeat_seconds: float = Field(0, ge=0, description="Interval of heartbeats written to the source; 0 means none.")
    heartbeat_collection: str = Field(
        "tailrace.heartbeats", pattern=NAMESPACE, description="Collection for heartbeats, which are not delivered."
    )
    lease_seconds: float = Field(
        30.0, gt=1, description="Lease time-to-live: a process that does not renew it loses its stream."
    )
    snapshot_workers: int = Field(2, gt=0, description="Chunks read in parallel.")
    snapshot_chunk_mb: float = Field(8.0, gt=0, description="Approximate size of a snapshot chunk.")
    snapshot_documents_per_second: float = Field(0, ge=0, description="Rate limit for snapshots; 0 means none.")
    retry_seconds: float = Field(600.0, gt=0, description="Retry budget: how long to retry during an outage.")


class PolicyRuleSettings(Section):
    """A rule for some fields of some collections."""

    namespaces: tuple[str, ...] = Field(("*",), description="Collections it is about: db.collection, * for any text.")
    fields: tuple[str, ...] = Field(min_length=1, description="Paths: customer.email, items.*.note, **.ssn.")
    action: str = Field(
        pattern="^(drop|mask|hash|truncate|only)$",
        description="drop, mask (keeps the type), hash (HMAC-SHA-256), truncate, or only: no other fields are kept.",
    )
    length: int | None = Field(None, ge=0, description="How much truncate leaves: characters, or bytes of a binary.")


class PolicySettings(Section):
    """Which fields leave the process, and in what form."""

    key: SecretStr | None = Field(
        None, description="Key for the hashes, at least 16 bytes; preferably in policy.key_file."
    )
    rules: tuple[PolicyRuleSettings, ...] = Field(
        (), description="Which fields of which collections to drop, mask, hash or truncate."
    )


class RegistrySettings(Section):
    """Schema registry for the formats avro and jsonschema, with Confluent's API."""

    url: SecretStr | None = Field(None, description="http(s)://user:password@host:port with the path of the API.")
    compatibility: str = Field(
        "BACKWARD",
        pattern="^(NONE|BACKWARD|BACKWARD_TRANSITIVE|FORWARD|FORWARD_TRANSITIVE|FULL|FULL_TRANSITIVE)$",
        description="Compatibility level for subjects that tailrace creates.",
    )
    on_incompatible: str = Field(
        "dead-letter", pattern="^(dead-letter|stop)$", description="What to do with documents whose schema is rejected."
    )


class AuditSettings(Section):
    """Log of what people do: positions set, recoveries, pauses, changed policies."""

    log: SecretStr | None = Field(
        None, description="file:path or kafka://host:9092/topic; unset means only the process's log."
    )


class TelemetrySettings(Section):
    """Where OpenTelemetry gets traces of sampled events, and the metrics that Prometheus may read."""

    endpoint: SecretStr | None = Field(
        None, description="OTLP over HTTP, such as http://collector:4318; none exports nothing."
    )
    sample_ratio: float = Field(
        0.001, ge=0, le=1, description="Share of the events that are traced, the same ones in every process."
    )
    service_name: str = Field("tailrace", min_length=1, description="service.name of what is exported.")

    _is_address = field_validator("endpoint")(http_address)


class EngineSettings(Section):
    """How the engine proves itself against the server's own stream."""

    matches: int = Field(
        100, gt=0, description="Identical events before a kind is trusted, on server releases never compared."
    )
    sample_one_in: int = Field(
        1_000, ge=0, description="Compare one in this many events, on every server; 0 means none."
    )
    folder: Path = Field(
        Path(".tailrace/engine"), description="Where a gateway keeps its results and the evidence of differences."
    )


class MonitorSettings(Section):
    """When to warn about a stream, and where to send alerts."""

    warn_ratio: float = Field(0.5, gt=0, le=1, description="Warn when this share of the oplog is after a position.")
    critical_ratio: float = Field(0.75, gt=0, le=1, description="Same, for critical.")
    warn_forecast_seconds: float = Field(
        14_400, ge=0, description="Warn when history is forecast to be lost within this time."
    )
    critical_forecast_seconds: float = Field(3_600, ge=0, description="Same, for critical.")
    behind_seconds: float = Field(30.0, gt=0, description="A stream whose position is older than this is behind.")
    stalled_seconds: float = Field(
        60.0, gt=0, description="A stream that is behind and has not moved for this long is stalled."
    )
    every_seconds: float = Field(10.0, gt=0, description="Interval between polls of the oplog.")
    repeat_seconds: float = Field(3_600, gt=0, description="Interval at which an ongoing alert is sent again.")
    webhook_url: SecretStr | None = Field(None, description="URL to post alerts to, as JSON.")
    webhook_timeout_seconds: float = Field(5.0, gt=0, description="Timeout of a webhook request.")
    webhook_attempts: int = Field(3, ge=1, description="Attempts to post an alert before giving up for now.")
    metrics_address: str = Field("127.0.0.1", description="Address of the Prometheus endpoint.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of a producer's endpoint; unset means no endpoint."
    )
    control_token: SecretStr | None = Field(
        None, min_length=16, description="Bearer token for pause, resume, snapshot and recover; unset disables them."
    )

    _is_address = field_validator("webhook_url")(http_address)
    _is_own_token = field_validator("control_token")(refuse_placeholder)

    @model_validator(mode="after")
    def _critical_comes_after_warning(self) -> Self:
        if self.critical_ratio < self.warn_ratio:
            raise ValueError("critical_ratio must not be below warn_ratio")
        if self.critical_forecast_seconds > self.warn_forecast_seconds:
            raise ValueError("critical_forecast_seconds must not be above warn_forecast_seconds")
        return self


class GatewaySettings(Section):
    """Serving change streams to MongoDB drivers."""

    address: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(27117, ge=0, le=65535, description="Port to listen on; 0 means any free port.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of its metrics, on monitor.metrics_address; unset means no endpoint."
    )
    watch_only: bool = Field(False, description="Refuse everything but change streams.")
    allow_open: bool = Field(False, description="Listen beyond loopback even if the upstream has no authentication.")
    test_commands: bool = Field(False, description="Let clients configure the fail point failCommand.")
    present: str = Field(
        "mongos",
        pattern="^(mongos|replica-set)$",
        description="How it presents itself to drivers: mongos or replica-set.",
    )
    advertise: str | None = Field(
        None,
        pattern=HOST_AND_PORT,
        description="HOST:PORT given to replica-set drivers; unset means the address they connected to.",
    )
    certificate: Path | None = Field(None, description="PEM file with certificate and key, for TLS.")
    max_connections: int = Field(20_000, gt=0, description="Maximum number of clients.")
    message_seconds: float = Field(30.0, gt=0, description="How long a client may take to send a message.")
    cursor_timeout_seconds: float = Field(600.0, gt=0, description="Idle cursors are closed after this time.")
    stage_seconds: float = Field(2.0, gt=0, description="CPU time that a stream's stages may take per event.")
    privilege_seconds: float = Field(
        0.0, ge=0, description="How long a user's privileges are cached; 0 asks the upstream at each getMore."
    )
    client_ca: Path | None = Field(
        None, description="PEM file of authorities; clients must present a certificate from one of them."
    )
    message_mb: int = Field(48, gt=0, le=48, description="Largest client message, also after decompression.")
    login_message_kb: int = Field(64, ge=16, description="Largest message before a client has authenticated.")
    receive_mb: int = Field(
        256,
        ge=64,
        description="Limit for all clients' unanswered messages, for decompressed ones, and for replies to compress.",
    )
    connections_per_address: int = Field(0, ge=0, description="Connections per address; 0 means no limit.")
    accepts_per_second: float = Field(
        500.0,
        ge=0,
        description="New connections per address and second, after a burst of ten times as many; 0 means no limit.",
    )
    connections_per_user: int = Field(0, ge=0, description="Connections per user; 0 means no limit.")
    streams_per_user: int = Field(
        0, ge=0, description="Streams per user, or per address without users; 0 means no limit."
    )
    login_attempts: int = Field(10, ge=0, description="Failed logins before the next one is delayed; 0 means no limit.")
    idle_seconds: float = Field(0.0, ge=0, description="Idle clients are disconnected after this time; 0 means never.")
    access_log: bool = Field(True, description="Log who opens and closes which stream, and from where.")
    shards: dict[str, str] = Field({}, description="Shard URIs by name; unset means discover them.")
    _are_uris = field_validator("shards")(mongodb_uris)
    order: str = Field("strict", pattern="^(strict|per-key)$", description="Order of events across shards.")
    ring_mb: int = Field(64, gt=0, description="Recent oplog entries buffered for subscribers, per shard.")
    channels_mb: int = Field(128, gt=0, description="Buffer for slow subscribers, per shard.")


class SparkSettings(Section):
    """The Spark session of the jobs."""

    master: str = Field(
        "local[*,4]",
        pattern=MASTER,
        description="Spark master URL, with the number of attempts per task; sc:// is a Spark Connect server.",
    )
    app_name: str = Field("tailrace", description="Application name in Spark's UI and logs.")
    driver_memory: str = Field("1g", pattern=HEAP, description="Heap of the driver's JVM, such as 512m or 2g.")
    jars: tuple[Path, ...] = Field((), description="Connector jars; unset means download them when needed.")
    config: dict[str, str] = Field({}, description="Any Spark configuration property.")
    log_level: str = Field("warn", pattern="^(debug|info|warn|error|off)$", description="Lowest level that Spark logs.")
    checkpoints: str = Field("checkpoints", description="Folder or URL for the checkpoints of the jobs.")


class FeaturesSettings(Section):
    """The features job."""

    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379"),
        description="Redis that stores the features; redis+cluster:// for a Redis Cluster.",
    )
    kafka_servers: str = Field(
        "127.0.0.1:9092", description="Kafka brokers: host:port,... or kafka:// as for capture.sink."
    )
    fail_on_data_loss: bool = Field(True, description="Stop if the topics no longer contain the next records.")
    source: str = Field("change-stream", pattern="^(change-stream|oplog)$", description="How to read MongoDB directly.")
    dead_letters: str = Field("dead-letters", description="Folder or URL for records that cannot be read.")


class WarehouseSettings(Section):
    """The tables of the collections, in Iceberg or Delta Lake."""

    format: str = Field("iceberg", pattern="^(iceberg|delta)$", description="Table format; delta needs a folder.")
    folder: str = Field("warehouse", description="Folder or URL of the tables, unless catalog_config names another.")
    catalog: str = Field("lake", pattern=IDENTIFIER, description="Name of the Spark catalog.")
    catalog_config: dict[str, str] = Field(
        {}, description="Catalog properties (type, uri, warehouse, ...); unset means a catalog in the folder."
    )
    kafka_servers: str = Field(
        "127.0.0.1:9092", description="Kafka brokers: host:port,... or kafka:// as for capture.sink."
    )
    fail_on_data_loss: bool = Field(True, description="Stop if the topics no longer contain the next records.")
    source: str = Field("change-stream", pattern="^(change-stream|oplog)$", description="How to read MongoDB directly.")
    contract: str = Field("evolve", pattern=CONTRACTS, description="How tables handle schema drift.")
    contracts: dict[str, str] = Field({}, description="Contracts of single collections, by db.collection.")
    declared: dict[str, str] = Field({}, description="Columns by db.collection, such as 'amount double, at date'.")
    columns: dict[str, dict[str, str]] = Field(
        {}, description="The only columns of a db.collection: { total = 'amount.value decimal', status = 'string' }."
    )
    excluded: dict[str, str] = Field(
        {}, description="Fields by db.collection that its mirror leaves out, such as 'card, user.phone'."
    )
    on_drift: str = Field(
        "stop",
        pattern="^(stop|dead-letter)$",
        description="What a strict table does with a document that does not fit.",
    )
    deletes: str = Field(
        "delete",
        pattern="^(delete|mark)$",
        description="Whether deleted documents are removed from the mirror or marked.",
    )
    ends: str = Field(
        "follow", pattern="^(keep|follow|drop)$", description="What drop, rename and dropDatabase do to a mirror."
    )
    events_per_batch: int = Field(100_000, gt=0, description="Most events in a micro-batch.")
    every_seconds: float = Field(5.0, ge=0, description="Minimum time between the starts of two micro-batches.")
    driver_events: int = Field(
        5_000, ge=0, description="Batches up to this size are written by the driver of a local master; 0 means never."
    )
    max_columns: int = Field(400, gt=0, description="Most columns per collection; further fields stay in _rest.")
    max_levels: int = Field(32, gt=0, le=48, description="Fields nested deeper than this stay in _rest.")
    rewrite_rows: int = Field(5_000_000, ge=0, description="Mirrors up to this size are rewritten to widen a column.")
    format_version: int = Field(
        3, ge=2, le=3, description="Iceberg format version of new tables: 3 has deletion vectors, 2 has more readers."
    )
    maintain_batches: int = Field(50, ge=0, description="Compact and expire every this many batches; 0 means never.")
    compaction_share: float = Field(
        0.2, ge=0, le=1, description="Share of one core for compacting, in the background, what the driver wrote."
    )
    keep_hours: float = Field(1.0, ge=0, description="How long to keep snapshots; every commit rewrites their list.")

    _are_contracts = field_validator("contracts")(one_of(CONTRACTS))

    @model_validator(mode="after")
    def _variants_need_version_3(self) -> Self:
        if (
            self.format == "iceberg"
            and self.format_version < 3
            and "variant" in (self.contract, *self.contracts.values())
        ):
            raise ValueError("the contract variant needs format_version 3, or format delta")
        return self

    @model_validator(mode="after")
    def _delta_is_in_a_folder(self) -> Self:
        of_iceberg = [name for name in ("catalog_config", "format_version") if name in self.model_fields_set]
        if self.format == "delta" and any(getattr(self, name) for name in of_iceberg):
            raise ValueError(
                f"{' and '.join(of_iceberg)} is for format iceberg: tables in delta are in the folder alone"
            )
        return self


class DashboardSettings(Section):
    """The live page: where it listens, who may see it, and what it polls in addition to the other sections."""

    address: str = Field("127.0.0.1", description="Address to listen on; beyond loopback a token is required.")
    port: int = Field(8480, ge=0, le=65535, description="Port to listen on; 0 means any free port.")
    token: SecretStr | None = Field(
        None, min_length=16, description="Bearer token for actions, and for access from beyond loopback."
    )
    certificate: Path | None = Field(None, description="PEM file with the certificate, for TLS.")
    key: Path | None = Field(None, description="PEM file with the key, if it is a separate file.")
    behind_proxy: bool = Field(False, description="A proxy terminates TLS; the token is then always required.")
    producers: tuple[str, ...] = Field(("http://127.0.0.1:9464",), description="Endpoints of producers.")
    control_token: SecretStr | None = Field(None, description="monitor.control_token of those producers, for actions.")
    gateways: tuple[str, ...] = Field((), description="Metrics endpoints of gateways.")
    feature_sets: tuple[str, ...] = Field((), description="Names of feature definitions; unset means look in Redis.")
    events_mb: int = Field(16, gt=0, description="Recent events kept for the page.")
    client_kb: int = Field(2_048, ge=64, description="Most data buffered per browser before it is disconnected.")
    max_clients: int = Field(64, gt=0, description="Maximum number of browsers.")

    _are_own_tokens = field_validator("token", "control_token")(refuse_placeholder)
    _are_addresses = field_validator("producers", "gateways")(http_addresses)


class UpSettings(Section):
    """`tailrace up`, which starts everything on one machine."""

    folder: Path = Field(Path(".tailrace/up"), description="Run folder: logs and state of what is started there.")
    features: tuple[str, ...] = Field((), description="Feature definitions to run: TOML files or module:name.")


class _Environment(EnvSettingsSource):
    """Variables, in which a list is `a,b` or a JSON array."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Read the value of a list, or of a whole section, which is a JSON object."""
        text = str(value).strip()
        if not text.startswith(("[", "{")):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError as error:
            raise SettingsError(
                f"the setting {_key_of(field_name, str(value))}, as a variable, is not JSON: {error}",
                hint='Write a list as a,b or as a JSON array, ["a", "b"].',
            ) from None


class Settings(BaseSettings):
    """The whole of the settings; one field per section."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    mongodb: MongodbSettings = MongodbSettings()
    log: LogSettings = LogSettings()
    capture: CaptureSettings = CaptureSettings()
    policy: PolicySettings = PolicySettings()
    registry: RegistrySettings = RegistrySettings()
    audit: AuditSettings = AuditSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    engine: EngineSettings = EngineSettings()
    monitor: MonitorSettings = MonitorSettings()
    gateway: GatewaySettings = GatewaySettings()
    spark: SparkSettings = SparkSettings()
    features: FeaturesSettings = FeaturesSettings()
    warehouse: WarehouseSettings = WarehouseSettings()
    dashboard: DashboardSettings = DashboardSettings()
    up: UpSettings = UpSettings()

    @classmethod
    def load(cls, file: Path | str | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
        """Read the file and the environment and lay the flags (`{"mongodb.uri": ...}`) over both.

        A flag that is None was not given. A file that was named must exist; the default one may be missing.
        """
        forget_files()
        environment = with_secrets_of_files(cls, _Environment(cls)(), Path())
        _refuse_unknown_variables()
        given = _nested({key: value for key, value in (flags or {}).items() if value is not None})
        read, folder = _read_file(Path(file) if file else None)
        merged = _merge(_merge(read, environment), given)
        state = _state_folder(folder)
        merged, defaults = located_defaults(cls, merged, state) if state != Path.cwd() else (merged, [])
        try:
            loaded = cls.model_validate(merged)
        except ValidationError as error:
            raise SettingsError(_first_problem(error)) from None
        for section, name in defaults:
            getattr(loaded, section).model_fields_set.discard(name)  # it was only moved to where it begins
        return loaded

    def addresses(self) -> Iterator[str]:
        """Give the texts of all settings that may be addresses, with the secrets and files that these name."""
        for key in file_keys(type(self)):
            section, name = key.split(".")
            value = getattr(getattr(self, section), name)
            for each in value.values() if isinstance(value, Mapping) else [value]:
                if isinstance(each, str | SecretStr):
                    yield each if isinstance(each, str) else each.get_secret_value()

    def renewed(self) -> Settings | None:
        """Give these settings with the secrets whose files have changed; None when none has.

        Raises SettingsError when a new one does not fit; it is not looked at again before it changes once more.
        """
        found = renewed_secrets(lambda key: getattr(getattr(self, key.split(".")[0]), key.split(".")[1]))
        sections: dict[str, Section] = {}
        for key, text in found.items():
            name, field = key.split(".")
            section: Section = sections.get(name) or getattr(self, name)
            try:
                made = type(section).model_validate({**dict(section), field: text})
            except ValidationError as error:
                raise SettingsError(_first_problem(error)) from None
            sections[name] = section.model_copy(update={field: getattr(made, field)})
        return self.model_copy(update=sections) if sections else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values come from `load` alone, so that the order of the sources is written in one place."""
        return (init_settings,)


def describe(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, str, Any, str]]:
    """Every key with its type, default and meaning, for `tailrace settings` and the documentation."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from describe(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", type_name(info), shown(info.default, name), info.description or ""


_file_in_use: list[Path] = []


def file_in_use() -> Path | None:
    """Give the file that this process has read its settings from last: processes that work for it read the same."""
    found = _file_in_use[0] if _file_in_use else _default_file()
    return None if found is None else found.resolve()


def _default_file() -> Path | None:
    if "TAILRACE_CONFIG" in os.environ:
        return Path(os.environ["TAILRACE_CONFIG"])
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _read_file(file: Path | None) -> tuple[dict[str, Any], Path]:
    """Give what is in the file, and the folder that relative paths begin at."""
    path = file or _default_file()
    _file_in_use[:] = [] if path is None else [path.resolve()]
    if path is None:
        return {}, Path.cwd()
    folder = path.resolve().parent
    values = with_secrets_of_files(Settings, read_toml(path, "Check --config."), folder)
    return (values if folder == Path.cwd() else located(values, folder)), folder


def _state_folder(folder: Path) -> Path:
    """Give the folder that default paths begin at: the one that systemd made for a unit, else that of the file."""
    given, _, _ = os.environ.get("STATE_DIRECTORY", "").partition(":")
    return Path(given) if given else folder


def _refuse_unknown_variables() -> None:
    """A misspelt variable would otherwise do nothing, silently."""
    keys = [*(key for key, *_ in describe()), *(f"{key}_file" for key in file_keys(Settings))]
    known = {ENVIRONMENT_PREFIX + key.upper().replace(".", "__") for key in keys} | _OUTSIDE_THE_MODEL
    sections = {ENVIRONMENT_PREFIX + name.upper() for name in Settings.model_fields}
    for name, value in os.environ.items():
        is_ours = name.startswith(ENVIRONMENT_PREFIX) and not is_service_link(name, value)
        if is_ours and name not in known | sections:
            raise SettingsError(f"unknown settings variable {name}")


def _key_of(field: str, value: str) -> str:
    """Give the whole key of a field that a variable sets to a value."""
    for name, given in os.environ.items():
        if name.startswith(ENVIRONMENT_PREFIX) and name.endswith(f"__{field.upper()}") and given == value:
            return name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".").lower()
    return field


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = value
    return result


def _first_problem(error: ValidationError) -> str:
    """One line about the first thing that is wrong, without the value, which may be a secret."""
    first = error.errors(include_input=False, include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown settings key {key}"
    if first["type"] == "string_pattern_mismatch":
        return f"settings key {key}: {pattern_in_words(first['ctx']['pattern'])}"
    return f"settings key {key}: {plain_reason(first['msg'])}"
