"""Every setting of tailrace, typed, in one place.

Three sources, from the weakest to the strongest: the file `tailrace.toml` (or the one that `--config` or
`TAILRACE_CONFIG` names), environment variables (`TAILRACE_MONGODB__URI` is `uri` in the section `[mongodb]`), and
command-line flags. A key that nobody knows is an error, wherever it stands. Secrets show up in no log, message or
`repr` (`masking.py`), and each can be read from a file of its own: `uri_file` instead of `uri`, and so can every
setting that may hold one, such as `spark.config_file`, a file of TOML.

Relative paths in the file, and those that are defaults, begin at the folder of the file; those in variables and flags
at the working folder.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from tailrace.errors import SettingsError
from tailrace.masking import masked as masked
from tailrace.masking import shown
from tailrace.settings_source import file_keys, located, located_defaults, with_secrets_of_files
from tailrace.settings_types import (
    IDENTIFIER,
    STREAM_NAME,
    http_addresses,
    pattern_in_words,
    plain_reason,
    refuse_placeholder,
    type_name,
)

DEFAULT_FILE = Path("tailrace.toml")
ENVIRONMENT_PREFIX = "TAILRACE_"
_OUTSIDE_THE_MODEL = {"TAILRACE_CONFIG", "TAILRACE_CACHE", "TAILRACE_KERNEL"}


class Section(BaseModel):
    """A section of the file: immutable, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return ((name, shown(value, name or "")) for name, value in super().__repr_args__())


class MongodbSettings(Section):
    """Where the documents and their oplog are."""

    uri: SecretStr = Field(SecretStr("mongodb://127.0.0.1:27017/"), description="URI of the replica set.")
    timeout_seconds: float = Field(10.0, gt=0, description="How long to look for a server before giving up.")
    family: str = Field(
        "auto",
        pattern="^(auto|mongodb|documentdb|cosmosdb)$",
        description="Whose server it is; auto goes by the host's name and what the server says of itself.",
    )
    retention_hours: float = Field(3.0, gt=0, le=168, description="For how long Amazon DocumentDB keeps changes.")
    soft_delete_field: str = Field("deleted", description="On Cosmos DB: the field that marks a deleted document.")


class LogSettings(Section):
    """What goes to the log."""

    level: str = Field("info", pattern="^(debug|info|warning|error)$", description="The least level shown.")
    json_lines: bool | None = Field(
        None, description="One JSON object a line instead of text; none is JSON where stderr is no terminal."
    )


class TransformSettings(Section):
    """A change to events or topics on their way; transforms run in the order in which they stand."""

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
    """Which stream goes where, and how."""

    name: str = Field("default", pattern=STREAM_NAME, description="Name of the stream; its position is kept under it.")
    source: str = Field("change-stream", pattern="^(change-stream|oplog)$", description="How events are read.")
    shards: dict[str, str] = Field({}, description="URIs of shards by name, for oplog; none means they are found.")
    order: str = Field("strict", pattern="^(strict|per-key)$", description="How events of shards are ordered (oplog).")
    namespaces: tuple[str, ...] = Field((), description="What is captured: db.collection, db or /regex/; none is all.")
    scope: str = Field(
        "cluster", pattern="^(cluster|database|collection)$", description="What the server's stream covers."
    )
    pipeline: str = Field("[]", description="Stages that the server applies to events, as Extended JSON.")
    full_document: str | None = Field(
        None,
        pattern="^(default|updateLookup|whenAvailable|required)$",
        description="Which updates carry their document.",
    )
    full_document_before_change: str | None = Field(
        None, pattern="^(off|whenAvailable|required)$", description="Which events carry the document before them."
    )
    slice: str = Field("1/1", description="Which part of the documents this process takes, such as 2/4.")
    start: str = Field("snapshot", pattern="^(snapshot|now)$", description="Where a stream without a position begins.")
    recover: bool = Field(True, description="Recover lost history at once, instead of stopping with the gap open.")
    sink: SecretStr = Field(
        SecretStr("kafka://127.0.0.1:9092"),
        description="Where records go: kafka://, file:, stdout:, http(s)://, redis:// or module:Class.",
    )
    delivery: str = Field(
        "at-least-once", pattern="^(at-least-once|exactly-once)$", description="The guarantee of delivery."
    )
    format: str = Field(
        "json", description="json, canonical, bson, flat, debezium, cloudevents, avro, jsonschema or module:function."
    )
    fields: tuple[str, ...] = Field((), description="The fields of the format flat.")
    key_field: str | None = Field(None, description="Field of the document that keys records; else the documentKey.")
    tombstones: bool | None = Field(None, description="Whether a delete is followed by a tombstone.")
    topic_prefix: str = Field("tailrace", description="Topics are called {prefix}.{db}.{collection}.")
    topic: str | None = Field(None, description="One topic for everything.")
    transforms: tuple[TransformSettings, ...] = Field((), description="Changes to events and topics, in their order.")
    ddl_topic: str | None = Field(
        None, description="Topic for create, drop, rename, createIndexes, modify, shardCollection and the like."
    )
    partitions: int = Field(6, gt=0, description="Partitions of topics that are made.")
    position_store: SecretStr = Field(
        SecretStr("file:.tailrace/positions"), description="file:, postgresql://, mongodb://, kafka:// or redis://."
    )
    unrepresentable: str = Field(
        "refuse",
        pattern="^(refuse|keep)$",
        description="Events that the format cannot carry whole: refuse to the dead letters, or keep with a header.",
    )
    dead_letters: str = Field("topic", description="Where refused records go: topic, file:folder, or stop.")
    webhook_secret: SecretStr | None = Field(None, description="Signs the posts of a webhook sink (HMAC).")
    inventory: str | None = Field(None, description="File of captured keys, for sinks that cannot be read back.")
    buffer_mb: int = Field(32, gt=0, description="Size of the read-ahead buffer.")
    sink_buffer_mb: int = Field(64, gt=0, description="How much a sink holds that is not acknowledged.")
    commit_interval_seconds: float = Field(0.1, ge=0, description="Least time between two saves of the position.")
    heartbeat_seconds: float = Field(
        0, ge=0, description="Heartbeat interval, for heartbeats in the source; 0 is never."
    )
    heartbeat_collection: str = Field(
        "tailrace.heartbeats", pattern=r"^[^.]+\..+", description="Where marks are written; they are not delivered."
    )
    lease_seconds: float = Field(30.0, gt=1, description="Lease time-to-live: a silent process loses its stream.")
    snapshot_workers: int = Field(2, gt=0, description="Chunks that are read at once.")
    snapshot_chunk_mb: float = Field(8.0, gt=0, description="About how much of a collection is read at once.")
    snapshot_documents_per_second: float = Field(0, ge=0, description="Limit for reading snapshots; 0 is none.")
    retry_seconds: float = Field(600.0, gt=0, description="Retry budget: for how long an outage is retried.")


class PolicyRuleSettings(Section):
    """What happens to some fields of some collections."""

    namespaces: tuple[str, ...] = Field(("*",), description="Collections it is about: db.collection, * for any text.")
    fields: tuple[str, ...] = Field(min_length=1, description="Paths: customer.email, items.*.note, **.ssn.")
    action: str = Field(
        pattern="^(drop|mask|hash|truncate|only)$",
        description="drop, mask (keeps the type), hash (HMAC-SHA-256), truncate, or only: no other fields are kept.",
    )
    length: int | None = Field(None, ge=0, description="How much truncate leaves: characters, or bytes of a binary.")


class PolicySettings(Section):
    """Which fields leave the process, and in what shape."""

    key: SecretStr | None = Field(None, description="Key of the hashes, at least 16 bytes; best in policy.key_file.")
    rules: tuple[PolicyRuleSettings, ...] = Field((), description="What happens to which fields of which collections.")


class RegistrySettings(Section):
    """The schema registry of the formats avro and jsonschema; it speaks Confluent's API."""

    url: SecretStr | None = Field(None, description="http(s)://user:password@host:port, with the path of its API.")
    compatibility: str = Field(
        "BACKWARD",
        pattern="^(NONE|BACKWARD|BACKWARD_TRANSITIVE|FORWARD|FORWARD_TRANSITIVE|FULL|FULL_TRANSITIVE)$",
        description="What the registry demands of a new schema of a subject that is made here.",
    )
    on_incompatible: str = Field(
        "dead-letter", pattern="^(dead-letter|stop)$", description="What happens to documents that it refuses."
    )


class AuditSettings(Section):
    """Where it is written down what people do: positions set, recoveries, pauses, changed policies."""

    log: SecretStr | None = Field(
        None, description="file:path or kafka://host:9092/topic; none is the log of the process alone."
    )


class EngineSettings(Section):
    """How the engine proves itself beside a server's own stream."""

    matches: int = Field(
        100, gt=0, description="Identical events of a kind before it comes from the engine, on a server never compared."
    )
    sample_one_in: int = Field(
        1_000, ge=0, description="One in so many events goes on being compared, on every server; 0 is none."
    )
    folder: Path = Field(
        Path(".tailrace/engine"), description="Where a gateway keeps what was proved, and the evidence of differences."
    )


class MonitorSettings(Section):
    """When to warn about a stream, and whom."""

    warn_ratio: float = Field(0.5, gt=0, le=1, description="Warn when this share of the oplog lies after a position.")
    critical_ratio: float = Field(0.75, gt=0, le=1, description="The same, critical.")
    warn_forecast_seconds: float = Field(14_400, ge=0, description="Warn when history would be lost within this time.")
    critical_forecast_seconds: float = Field(3_600, ge=0, description="The same, critical.")
    behind_seconds: float = Field(30.0, gt=0, description="A position older than this is behind.")
    stalled_seconds: float = Field(60.0, gt=0, description="One that is behind and still for this long is stalled.")
    every_seconds: float = Field(10.0, gt=0, description="Time between two looks at the oplog.")
    repeat_seconds: float = Field(3_600, gt=0, description="A lasting alert is sent again after this time.")
    webhook_url: SecretStr | None = Field(None, description="Alerts are posted there as JSON.")
    webhook_timeout_seconds: float = Field(5.0, gt=0, description="How long one post may take.")
    webhook_attempts: int = Field(3, ge=1, description="How often one alert is posted before giving up for now.")
    metrics_address: str = Field("127.0.0.1", description="Address of the Prometheus endpoint.")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="A producer's port; none means no endpoint.")
    control_token: SecretStr | None = Field(
        None, min_length=16, description="Who knows it may pause, resume, snapshot and recover; none is nobody."
    )

    _is_own_token = field_validator("control_token")(refuse_placeholder)

    @model_validator(mode="after")
    def _critical_comes_after_warning(self) -> Self:
        if self.critical_ratio < self.warn_ratio:
            raise ValueError("critical_ratio must not be below warn_ratio")
        if self.critical_forecast_seconds > self.warn_forecast_seconds:
            raise ValueError("critical_forecast_seconds must not be above warn_forecast_seconds")
        return self


class GatewaySettings(Section):
    """Where and how drivers are served."""

    address: str = Field("127.0.0.1", description="Address to listen at.")
    port: int = Field(27117, ge=0, le=65535, description="Port to listen at; 0 is a free one.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of its own metrics, at monitor.metrics_address; none means no endpoint."
    )
    watch_only: bool = Field(False, description="Refuse everything but change streams.")
    allow_open: bool = Field(False, description="Listen beyond loopback although the upstream lets everybody in.")
    test_commands: bool = Field(False, description="Let clients configure the fail point failCommand.")
    present: str = Field(
        "mongos", pattern="^(mongos|replica-set)$", description="As whom it speaks to drivers: mongos, or replica-set."
    )
    advertise: str | None = Field(
        None,
        pattern=r"^(\[[^\]]+\]|[^:\s]+):\d+$",
        description="HOST:PORT that drivers of a replica set are told; without, where they have connected to.",
    )
    certificate: Path | None = Field(None, description="PEM file with certificate and key, for TLS.")
    max_connections: int = Field(20_000, gt=0, description="Clients beyond this are refused.")
    message_seconds: float = Field(30.0, gt=0, description="How long a client may take to send one message.")
    cursor_timeout_seconds: float = Field(600.0, gt=0, description="Cursors nobody asks for are closed after this.")
    stage_seconds: float = Field(
        2.0, gt=0, description="Processor time that a stream's own stages may take for one event."
    )
    privilege_seconds: float = Field(
        0.0, ge=0, description="How old the upstream's word on a user's privileges may be; 0 asks at each getMore."
    )
    client_ca: Path | None = Field(None, description="PEM file of authorities whose certificates clients must show.")
    message_mb: int = Field(48, gt=0, le=48, description="Largest message of a client, also when it is unpacked.")
    login_message_kb: int = Field(64, ge=16, description="The same before a client has authenticated.")
    receive_mb: int = Field(
        256, ge=64, description="Unanswered messages of all clients, unpacked ones, and replies to pack, each."
    )
    connections_per_address: int = Field(0, ge=0, description="Connections of one address; 0 is no limit.")
    accepts_per_second: float = Field(
        500.0, ge=0, description="New connections of one address, after ten times as many at once; 0 is no limit."
    )
    connections_per_user: int = Field(0, ge=0, description="Connections of one user; 0 is no limit.")
    streams_per_user: int = Field(0, ge=0, description="Streams of a user, or of an address without users; 0 is all.")
    login_attempts: int = Field(10, ge=0, description="Failed logins before the next has to wait; 0 is no limit.")
    idle_seconds: float = Field(0.0, ge=0, description="Clients that say nothing so long are dropped; 0 is never.")
    access_log: bool = Field(True, description="Log who opens and closes which stream, from where.")
    shards: dict[str, str] = Field({}, description="URIs of shards by name; none means that they are found.")
    order: str = Field("strict", pattern="^(strict|per-key)$", description="How events of shards are ordered.")
    ring_mb: int = Field(64, gt=0, description="How much of the newest oplog is held for subscribers, per shard.")
    channels_mb: int = Field(128, gt=0, description="How much all channels of a shard hold for slow subscribers.")


class SparkSettings(Section):
    """The Spark session of the jobs."""

    master: str = Field("local[*,4]", description="Where Spark runs, and how often it tries a task.")
    app_name: str = Field("tailrace", description="Name of the application in Spark's pages and logs.")
    driver_memory: str = Field("1g", description="Heap of the JVM that is started here.")
    jars: tuple[Path, ...] = Field((), description="Connector jars; none means that they are fetched when needed.")
    config: dict[str, str] = Field({}, description="Any setting of Spark, by its own name.")
    log_level: str = Field("warn", pattern="^(debug|info|warn|error|off)$", description="The least level Spark shows.")
    checkpoints: str = Field("checkpoints", description="Folder or URL where jobs keep their positions.")


class FeaturesSettings(Section):
    """The features job."""

    redis_url: SecretStr = Field(SecretStr("redis://127.0.0.1:6379"), description="The Redis that holds the features.")
    kafka_servers: str = Field(
        "127.0.0.1:9092", description="The brokers of the topics: host:port,... or kafka:// as for capture.sink."
    )
    fail_on_data_loss: bool = Field(True, description="Stop when topics no longer have what comes next.")
    source: str = Field("change-stream", pattern="^(change-stream|oplog)$", description="How MongoDB is read directly.")
    dead_letters: str = Field("dead-letters", description="Folder or URL where records go that cannot be read.")


class WarehouseSettings(Section):
    """The tables of the collections, in Iceberg."""

    folder: str = Field("warehouse", description="Folder or URL of the tables, where catalog_config names no other.")
    catalog: str = Field("lake", pattern=IDENTIFIER, description="Name of the catalog in Spark.")
    catalog_config: dict[str, str] = Field(
        {}, description="Any property of the catalog (type, uri, warehouse, ...); none is a folder catalog."
    )
    kafka_servers: str = Field(
        "127.0.0.1:9092", description="The brokers of the topics: host:port,... or kafka:// as for capture.sink."
    )
    fail_on_data_loss: bool = Field(True, description="Stop when topics no longer have what comes next.")
    source: str = Field("change-stream", pattern="^(change-stream|oplog)$", description="How MongoDB is read directly.")
    contract: str = Field("evolve", pattern="^(evolve|json|strict)$", description="What drift does to a table.")
    contracts: dict[str, str] = Field({}, description="Other contracts for some collections, by db.collection.")
    declared: dict[str, str] = Field({}, description="Columns by db.collection, such as 'amount double, at date'.")
    on_drift: str = Field(
        "stop", pattern="^(stop|dead-letter)$", description="What strict does with a document that does not fit."
    )
    deletes: str = Field("delete", pattern="^(delete|mark)$", description="Whether deleted documents leave the mirror.")
    ends: str = Field(
        "follow", pattern="^(keep|follow|drop)$", description="What drop, rename and dropDatabase do to a mirror."
    )
    events_per_batch: int = Field(100_000, gt=0, description="Where a micro-batch ends.")
    every_seconds: float = Field(5.0, ge=0, description="Least time from one micro-batch to the next.")
    max_columns: int = Field(400, gt=0, description="Fields beyond this many of a collection stay in _rest.")
    max_levels: int = Field(32, gt=0, le=48, description="Fields nested deeper than this stay in _rest.")
    rewrite_rows: int = Field(5_000_000, ge=0, description="Mirrors up to this size are rewritten to widen a column.")
    format_version: int = Field(3, ge=2, le=3, description="Of new tables: 3 has deletion vectors, 2 more readers.")
    maintain_batches: int = Field(50, ge=0, description="Compact and expire after so many batches; 0 is never.")
    keep_hours: float = Field(1.0, ge=0, description="How long snapshots are kept: each commit writes their list anew.")


class DashboardSettings(Section):
    """The live page: where it listens, who may see it, and what it looks at beside the other sections."""

    address: str = Field("127.0.0.1", description="Address to listen at; beyond loopback a token is needed.")
    port: int = Field(8480, ge=0, le=65535, description="Port to listen at; 0 is a free one.")
    token: SecretStr | None = Field(
        None, min_length=16, description="Who knows it may act, and look from beyond loopback."
    )
    certificate: Path | None = Field(None, description="PEM file with the certificate, for TLS.")
    key: Path | None = Field(None, description="PEM file with its key, where that is a file of its own.")
    behind_proxy: bool = Field(False, description="A proxy on the way does TLS; the token is then always asked for.")
    producers: tuple[str, ...] = Field(("http://127.0.0.1:9464",), description="Endpoints of producers.")
    control_token: SecretStr | None = Field(None, description="monitor.control_token of those producers, for actions.")
    gateways: tuple[str, ...] = Field((), description="Metrics endpoints of gateways.")
    feature_sets: tuple[str, ...] = Field((), description="Names of feature definitions; none looks for them in Redis.")
    events_mb: int = Field(16, gt=0, description="How much of the newest events is held for the page.")
    client_kb: int = Field(2_048, ge=64, description="How much may wait for one browser before it is dropped.")
    max_clients: int = Field(64, gt=0, description="Browsers beyond this are refused.")

    _are_own_tokens = field_validator("token", "control_token")(refuse_placeholder)
    _are_addresses = field_validator("producers", "gateways")(http_addresses)


class UpSettings(Section):
    """`tailrace up`, which starts everything on one machine."""

    folder: Path = Field(Path(".tailrace/up"), description="Run folder: logs, and the state of what is started there.")
    features: tuple[str, ...] = Field((), description="Definitions whose features are kept: TOML files or module:name.")


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
                f"the setting {_key_of(field_name, str(value))}, as a variable, is no JSON: {error}",
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
    engine: EngineSettings = EngineSettings()
    monitor: MonitorSettings = MonitorSettings()
    gateway: GatewaySettings = GatewaySettings()
    spark: SparkSettings = SparkSettings()
    features: FeaturesSettings = FeaturesSettings()
    warehouse: WarehouseSettings = WarehouseSettings()
    dashboard: DashboardSettings = DashboardSettings()
    up: UpSettings = UpSettings()

    @classmethod
    def load(cls, file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
        """Read the file and the environment and lay the flags (`{"mongodb.uri": ...}`) over both.

        A flag that is None was not given. A file that was named must exist; the default one may be missing.
        """
        environment = with_secrets_of_files(cls, _Environment(cls)(), Path())
        _refuse_unknown_variables()
        given = _nested({key: value for key, value in (flags or {}).items() if value is not None})
        read, folder = _read_file(file)
        merged = _merge(_merge(read, environment), given)
        merged, defaults = located_defaults(cls, merged, folder) if folder != Path.cwd() else (merged, [])
        try:
            loaded = cls.model_validate(merged)
        except ValidationError as error:
            raise SettingsError(_first_problem(error)) from None
        for section, name in defaults:
            getattr(loaded, section).model_fields_set.discard(name)  # it was only moved to where it begins
        return loaded

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
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", hint="Check --config.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}", hint="Correct the line it names.") from None
    folder = path.resolve().parent
    values = with_secrets_of_files(Settings, values, folder)
    return (values if folder == Path.cwd() else located(values, folder)), folder


def _refuse_unknown_variables() -> None:
    """A misspelt variable would otherwise do nothing, silently."""
    keys = [*(key for key, *_ in describe()), *(f"{key}_file" for key in file_keys(Settings))]
    known = {ENVIRONMENT_PREFIX + key.upper().replace(".", "__") for key in keys} | _OUTSIDE_THE_MODEL
    sections = {ENVIRONMENT_PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known | sections:
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
