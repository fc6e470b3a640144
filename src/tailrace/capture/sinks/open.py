"""From the settings to a sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tailrace.capture.dead_letters.dead_letters import (
    TOPIC,
    DeadLetters,
    FileDeadLetters,
    NoDeadLetters,
    TopicDeadLetters,
)
from tailrace.capture.plugins import load_object
from tailrace.capture.positions.store import PositionStore
from tailrace.capture.sinks.sink import DEFAULT_BUFFER_BYTES, Sink
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import SettingsError
from tailrace.extras import require_client
from tailrace.settings import masked


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of sinks beside their URL; each takes those it has."""

    topics: TopicRule = field(default_factory=TopicRule)
    partitions: int = 6
    is_json: bool = True
    """Whether the format writes JSON."""
    webhook_secret: str | None = None
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    seconds_to_deliver: float = 0.0
    """When Kafka's library gives a record up that no broker has taken; 0 is never."""


def open_sink(
    url: str, dead_letters: DeadLetters, options: SinkOptions, *, exactly_once: tuple[PositionStore, str] | None = None
) -> Sink:
    """Make the sink at a URL; nobody is asked for anything before its `setup`.

    kafka://host:9092, file:events.jsonl, stdout:, http(s)://host/path, redis://host/0?key=user:{user_id}, or
    `module:Class?name=value` for a class of your own. `exactly_once` is the store of the positions and the name of the
    stream.
    """
    scheme = urlsplit(url).scheme
    if exactly_once is not None and scheme != "kafka":
        raise SettingsError("exactly-once delivery is for Kafka", hint="Set capture.delivery to at-least-once.")
    require_client(url, f"the sink {masked(url)}")
    if scheme == "kafka":
        return _kafka(url, dead_letters, options, exactly_once)
    if scheme in ("file", "stdout"):
        from tailrace.capture.sinks.json_lines import JsonLinesSink

        path = Path(unquote(url.removeprefix("file:").removeprefix("//"))) if scheme == "file" else None
        return JsonLinesSink(path, is_json=options.is_json)
    if scheme in ("http", "https"):
        from tailrace.capture.sinks.webhook import WebhookSink

        return WebhookSink(
            url, dead_letters, secret=options.webhook_secret, is_json=options.is_json, buffer_bytes=options.buffer_bytes
        )
    if scheme in ("redis", "rediss"):
        return _redis(url, dead_letters, options)
    return _users_own(url)


def open_dead_letters(setting: str, sink_url: str, topics: TopicRule) -> DeadLetters:
    """Make what `capture.dead_letters` says: `topic`, `file:folder` or `stop`.

    `topic` without Kafka as sink is the file in the folder `dead-letters`.
    """
    if setting == "stop":
        return NoDeadLetters()
    if setting == "topic" and urlsplit(sink_url).scheme == "kafka":
        from tailrace.capture.kafka_address import KafkaAddress

        return TopicDeadLetters(KafkaAddress.parse(sink_url), f"{topics.prefix}.{TOPIC}")
    if setting == "topic":
        return FileDeadLetters(Path(TOPIC))
    if setting.startswith("file:"):
        return FileDeadLetters(Path(unquote(setting.removeprefix("file:").removeprefix("//"))))
    raise SettingsError(f"there are no dead letters called {setting!r}", hint="Use topic, file:folder or stop.")


def _kafka(
    url: str, dead_letters: DeadLetters, options: SinkOptions, exactly_once: tuple[PositionStore, str] | None
) -> Sink:
    from tailrace.capture.kafka_address import KafkaAddress

    address = KafkaAddress.parse(url)
    how: dict[str, Any] = {"partitions": options.partitions, "buffer_bytes": options.buffer_bytes}
    if exactly_once is not None:
        from tailrace.capture.sinks.kafka_exactly_once import KafkaTransactionSink

        return KafkaTransactionSink(address, options.topics, dead_letters, *exactly_once, **how)
    from tailrace.capture.sinks.kafka import KafkaSink

    return KafkaSink(address, options.topics, dead_letters, **how, seconds_to_deliver=options.seconds_to_deliver)


def _redis(url: str, dead_letters: DeadLetters, options: SinkOptions) -> Sink:
    from tailrace.capture.sinks.redis_cache import DEFAULT_TEMPLATE, RedisCacheSink

    plain, template = redis_parts(url)
    return RedisCacheSink(plain, template or DEFAULT_TEMPLATE, dead_letters, buffer_bytes=options.buffer_bytes)


def redis_parts(url: str) -> tuple[str, str | None]:
    """Divide the URL of a Redis sink into what the client library takes, such as `ssl_ca_certs`, and the keys' form."""
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    template = options.pop("key", None)
    return f"{address}?{urlencode(options)}" if options else address, template


def _users_own(url: str) -> Sink:
    name, _, query = url.partition("?")
    if ":" not in name or "//" in name:
        raise SettingsError(
            f"no sink is known for {masked(url)!r}",
            hint="Use kafka://, file:, stdout:, http(s)://, redis:// or module:Class.",
        )
    try:
        sink = load_object(name)(**dict(parse_qsl(query)))
    except TypeError as error:  # methods that are not written, or arguments that it does not take
        hint = "Write the methods of tailrace.capture.sinks.Sink; what stands behind ? goes to its constructor as text."
        raise SettingsError(f"the sink {name} cannot be made: {error}", hint=hint) from error
    if not isinstance(sink, Sink):
        raise SettingsError(f"{name} is not a Sink", hint="Derive it from tailrace.capture.sinks.Sink.")
    return sink
