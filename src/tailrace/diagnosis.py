"""Whether a capture can run as it is configured: extras, connections, privileges, topics and the oplog window.

What `tailrace doctor` shows, and what to send along with a question. Every check says what it found and what to do.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pymongo import MongoClient

from tailrace import __version__
from tailrace.deployment import Deployment, Kind, missing_namespaces
from tailrace.errors import AuditUnavailable, MissingExtra, OplogUnreadable, SettingsError, TailraceError
from tailrace.extras import EXTRA_OF, require_client
from tailrace.masking import masked, shown
from tailrace.settings import Settings
from tailrace.spark_settings import check_feature_dead_letters, check_spark

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_OLDEST = (4, 2)
_SHORT_WINDOW_HOURS = 24.0
_SECONDS_TO_ANSWER = 5.0


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it."""

    check: str
    level: Level
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """Give it as plain values."""
        return asdict(self)


def examine(settings: Settings, explain: Callable[[BaseException], TailraceError | None]) -> Iterator[Finding]:
    """Make all checks, one after the other; what a library raises is explained by `explain`."""
    yield Finding(
        "version", Level.OK, f"tailrace {__version__}, Python {platform.python_version()}, {platform.system()}"
    )
    yield from _extras(settings)
    yield from _settings(settings, explain)
    yield from _mongodb(settings, explain)
    yield from _guarded("position store", lambda: _store(settings), explain)
    yield from _guarded("sink", lambda: _sink(settings), explain)
    if settings.capture.format in ("avro", "jsonschema"):
        yield from _guarded("registry", lambda: _registry(settings), explain)


def _guarded(
    check: str, run: Callable[[], Iterator[Finding]], explain: Callable[[BaseException], TailraceError | None]
) -> Iterator[Finding]:
    try:
        yield from run()
    except MissingExtra:
        yield Finding(check, Level.SKIPPED, "not checked: an extra is missing, see above")
    except Exception as error:
        known = explain(error)
        if known is None and isinstance(error, ValueError):
            known = SettingsError(f"{check}: {error}", hint="Its client does not accept this URL.")
        if known is None:
            raise
        yield Finding(check, Level.FAILED, f"{known.code}: {masked(known.message)}", known.hint)


def _extras(settings: Settings) -> Iterator[Finding]:
    lacking = {extra for module, extra in EXTRA_OF.items() if find_spec(module) is None}
    installed = sorted(set(EXTRA_OF.values()) - lacking)
    yield Finding("extras", Level.OK, f"installed: {', '.join(installed) or 'none'}")
    for key, url in _urls(settings).items():
        try:
            require_client(url, f"{key} = {masked(url)}")
        except MissingExtra as error:
            yield Finding("extras", Level.FAILED, error.message, error.hint)


def _urls(settings: Settings) -> dict[str, str]:
    """Give the settings whose URLs decide which client libraries are needed."""
    urls = {
        "capture.sink": settings.capture.sink,
        "capture.position_store": settings.capture.position_store,
        "audit.log": settings.audit.log,
    }
    return {key: url.get_secret_value() for key, url in urls.items() if url is not None}


def _settings(settings: Settings, explain: Callable[[BaseException], TailraceError | None]) -> Iterator[Finding]:
    """Make what needs no server, as the producer would; the position store and the sink have checks of their own.

    What an extra is missing for, the check of the extras has said.
    """
    from tailrace.capture.producer.parts import checks_of

    checks = {
        **checks_of(settings),
        "audit.log": lambda: _audit(settings),
        "monitor.metrics_address": lambda: _listen(settings),
        "spark": lambda: check_spark(settings.spark),
    }
    if "dead_letters" in settings.features.model_fields_set:
        checks["features.dead_letters"] = lambda: check_feature_dead_letters(settings)
    failed = False
    for key, check in checks.items():
        if key in ("capture.position_store", "capture.sink"):
            continue
        for finding in _guarded("settings", partial(_made, check), explain):
            if finding.level is Level.FAILED:
                failed = True
                yield finding
    if not failed:
        yield Finding("settings", Level.OK, "valid")


def _made(make: Callable[[], object]) -> Iterator[Finding]:
    """Find nothing, unless it cannot be made."""
    make()
    yield from ()


def _audit(settings: Settings) -> None:
    """Raise what would keep entries from being written; a broker is not asked, and no file is made."""
    from tailrace.audit import open_audit

    open_audit(settings).close()
    url = settings.audit.log.get_secret_value() if settings.audit.log else ""
    if url.startswith("file:") and (folder := _unwritable(url)) is not None:
        raise AuditUnavailable(f"{folder} may not be written")


def _listen(settings: Settings) -> None:
    """Listen where the metrics are to be had, at any port: the one of the settings may be a running producer's."""
    from tailrace.monitor.endpoint import serve_endpoint

    if settings.monitor.metrics_port is not None:
        with serve_endpoint(0, settings.monitor.metrics_address):
            pass


def _mongodb(settings: Settings, explain: Callable[[BaseException], TailraceError | None]) -> Iterator[Finding]:
    """Check the server, then what needs one; without it the rest says nothing."""
    failed = False
    for finding in _guarded("mongodb", lambda: _server(settings), explain):
        failed |= finding.level is Level.FAILED
        yield finding
    if failed:
        yield Finding("privileges", Level.SKIPPED, "no server to ask")
        return
    yield from _guarded("privileges", lambda: _privileges(settings), explain)
    yield from _guarded("namespaces", lambda: _namespaces(settings), explain)
    yield from _guarded("oplog window", lambda: _window(settings), explain)


@contextmanager
def _client(settings: Settings) -> Iterator[MongoClient[dict[str, Any]]]:
    timeout = int(min(settings.mongodb.timeout_seconds, _SECONDS_TO_ANSWER) * 1000)
    with MongoClient[dict[str, Any]](
        settings.mongodb.uri.get_secret_value(), serverSelectionTimeoutMS=timeout
    ) as client:
        yield client


def _server(settings: Settings) -> Iterator[Finding]:
    at = str(shown(settings.mongodb.uri, "uri"))
    with _client(settings) as client:
        deployment = Deployment.of(client)
        deployment.require_change_streams(at)
        named = f"{deployment.kind} {deployment.replica_set or ''}".strip()
        yield Finding("mongodb", Level.OK, f"{named}, MongoDB {deployment.version} at {at}")
        version = tuple(int(part) for part in deployment.version.split(".")[:2])
        if version < _OLDEST:
            yield Finding("mongodb", Level.FAILED, "servers before 4.2 are not supported", "Upgrade MongoDB.")
        if settings.capture.source == "oplog" and deployment.kind is not Kind.MONGOS:
            deployment.require_oplog(client, at)


def _privileges(settings: Settings) -> Iterator[Finding]:
    """Try what the capture does with the server; the oplog itself is tried by the check of its window."""
    from tailrace.capture.producer.parts import selection_of
    from tailrace.capture.source.source import ChangeStreamSource, captured_collections

    selection, may = selection_of(settings.capture), []
    with _client(settings) as client:
        if settings.capture.source == "change-stream":
            ChangeStreamSource(client, selection).now()
            may.append("open the change stream")
        if "configsvr" not in client.admin.command("isMaster"):
            captured_collections(client, selection)
            may.append("list the collections")
    found = f"the user may {' and '.join(may)}" if may else "those of the oplog are seen below"
    yield Finding("privileges", Level.OK, found)


def _namespaces(settings: Settings) -> Iterator[Finding]:
    with _client(settings) as client:
        missing = missing_namespaces(client, settings.capture.namespaces)
    if missing:
        advice = "Check the spelling; it is captured as soon as somebody writes to it."
        yield Finding("namespaces", Level.WARNING, f"{', '.join(missing)} does not exist", advice)
        return
    chosen = ", ".join(settings.capture.namespaces) or "everything"
    yield Finding("namespaces", Level.OK, f"captured: {chosen}")


def _window(settings: Settings) -> Iterator[Finding]:
    """Read the window of each oplog; a change stream goes without, but nobody is warned before its history is lost."""
    try:
        yield from _windows(settings)
    except OplogUnreadable as error:
        if settings.capture.source == "oplog":
            raise
        advice = "Grant `read` on `local`: without it nobody is warned before history is lost."
        yield Finding("oplog window", Level.WARNING, masked(error.message), advice)


def _windows(settings: Settings) -> Iterator[Finding]:
    from tailrace.monitor import shard_readers

    with shard_readers([settings.mongodb.uri.get_secret_value()], _SECONDS_TO_ANSWER) as readers:
        for reader in readers:
            oplog = reader.read()
            hours = oplog.window_seconds / 3600
            found = f"{oplog.shard}: the oplog holds {hours:,.1f} h, {'full' if oplog.full else 'still filling up'}"
            if oplog.full and hours < _SHORT_WINDOW_HOURS:
                advice = "A consumer that is away for longer loses history: enlarge it with replSetResizeOplog."
                yield Finding("oplog window", Level.WARNING, found, advice)
            else:
                yield Finding("oplog window", Level.OK, found)


def _store(settings: Settings) -> Iterator[Finding]:
    from tailrace.capture.positions import open_store

    url = settings.capture.position_store.get_secret_value()
    if url.startswith("file:") and (folder := _unwritable(url)):
        yield Finding("position store", Level.FAILED, f"{folder} may not be written", "Let this user write there.")
        return
    with open_store(url) as store:
        names, holder = store.names(), store.holder(settings.capture.name)
    known = f"{len(names)} stream{'s' * (len(names) != 1)}" if names else "no streams yet"
    lease_note = f"; {settings.capture.name} is run by {holder.owner}" if holder else ""
    yield Finding("position store", Level.OK, f"{shown(settings.capture.position_store, 'store')}: {known}{lease_note}")


def _sink(settings: Settings) -> Iterator[Finding]:
    from tailrace.capture.producer.parts import checks_of

    url = settings.capture.sink.get_secret_value()
    at, scheme = shown(settings.capture.sink, "sink"), url.partition(":")[0]
    require_client(url, f"capture.sink = {at}")
    if scheme == "kafka":
        yield from _kafka(settings, url)
    elif scheme in ("redis", "rediss"):
        import redis

        from tailrace.capture.sinks.open import redis_parts

        with redis.Redis.from_url(redis_parts(url)[0], socket_timeout=_SECONDS_TO_ANSWER) as client:
            client.ping()
        yield Finding("sink", Level.OK, f"{at} answers")
    elif scheme == "file" and (folder := _unwritable(url)):
        yield Finding("sink", Level.FAILED, f"{folder} may not be written", "Let this user write there.")
    else:
        checks_of(settings)["capture.sink"]()
        if scheme == "file":
            yield Finding("sink", Level.OK, f"{at}: may be written")
        else:
            yield Finding("sink", Level.SKIPPED, f"{at} is only known when records are sent")


def _registry(settings: Settings) -> Iterator[Finding]:
    from tailrace.capture.producer.parts import registry_of

    registry = registry_of(settings.registry)
    if registry is not None:  # the check of the settings has said so
        registry.check()
        yield Finding("registry", Level.OK, f"{shown(settings.registry.url, 'url')} answers")


def _unwritable(url: str) -> Path | None:
    """Give the folder that keeps a file from being written, if one does."""
    folder = Path(unquote(url.removeprefix("file:").removeprefix("//"))).absolute().parent
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return None if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else there


def _kafka(settings: Settings, url: str) -> Iterator[Finding]:
    from confluent_kafka.admin import AdminClient

    from tailrace.capture.kafka_address import KafkaAddress
    from tailrace.capture.sinks.topics import DEFAULT_TEMPLATE, TopicRule

    address = KafkaAddress.parse(url)
    admin = AdminClient(address.config())
    topics = admin.list_topics(timeout=_SECONDS_TO_ANSWER)
    rule = TopicRule(settings.capture.topic_prefix, settings.capture.topic or DEFAULT_TEMPLATE)
    ours = [name for name in topics.topics if name.startswith(rule.prefix)]
    brokers = f"{len(topics.brokers)} broker{'s' if len(topics.brokers) > 1 else ''}"
    known = f"{len(ours)} topic{'s' * (len(ours) != 1)} with the prefix {rule.prefix}"
    yield Finding("sink", Level.OK, f"Kafka at {address.servers}: {brokers}, {known}")
    roots = [rule.topic(name) for name in settings.capture.namespaces]
    captured = [name for name in ours if any(name == root or name.startswith(f"{root}.") for root in roots)]
    if settings.capture.inventory is None and (forgetting := _forgetting(admin, captured)):
        found = f"{', '.join(forgetting[:3])}{' ...' * (len(forgetting) > 3)}: old records are deleted by retention"
        advice = "Recovery needs the last record of each key: set cleanup.policy=compact, or retention.ms=-1."
        yield Finding("topics", Level.WARNING, found, advice)


def _forgetting(admin: AdminClient, topics: Sequence[str]) -> list[str]:
    """Give the topics whose records are deleted by age or size; those whose settings may not be read are left out."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    found = []
    for resource, future in (admin.describe_configs(asked) if asked else {}).items():
        try:
            config = future.result(timeout=_SECONDS_TO_ANSWER)
        except KafkaException:
            continue
        keeps = all(config[name].value == "-1" for name in ("retention.ms", "retention.bytes"))
        if "delete" in config["cleanup.policy"].value and not keeps:
            found.append(resource.name)
    return found
