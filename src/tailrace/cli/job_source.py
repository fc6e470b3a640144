"""Where a Spark job reads from, checked before a JVM is started: a mistake shows in a second instead of minutes."""

from __future__ import annotations

import socket

from tailrace.capture.formats import event_decoder_of
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.cli.session import connected
from tailrace.errors import ServerUnreachable, SettingsError
from tailrace.settings import FeaturesSettings, Settings, WarehouseSettings

_SECONDS_TO_ANSWER = 5.0


def check_mongodb(settings: Settings, section: FeaturesSettings | WarehouseSettings) -> None:
    """Raise if MongoDB does not answer, or has no change streams or no oplog where the job needs them."""
    with connected(settings, needs_oplog=section.source == "oplog"):
        pass


def check_topics(servers: str, key: str, format: str) -> None:
    """Raise if jobs do not read the format, or no broker answers at the servers, which `key` names in the settings."""
    event_decoder_of(format)
    address = KafkaAddress.parse(servers) if "://" in servers else KafkaAddress(servers)
    failures = []
    for server in address.servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            raise SettingsError(f"{key}: {server!r} is not host:port", hint="It looks like broker1:9092,broker2:9092.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
        except (OSError, OverflowError) as error:
            failures.append(f"{server.strip()}: {error}")
        else:
            return
    raise ServerUnreachable(
        f"no Kafka broker answers ({key}): {'; '.join(failures)}",
        hint=f"Check {key} and that the broker runs, or start one with `tailrace stand up kafka`.",
    )
