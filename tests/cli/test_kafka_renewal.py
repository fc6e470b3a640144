"""A producer that logs in to Kafka by a certificate goes on with the next one; `make access` runs it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pymongo.database import Database

from capture.sinks.test_kafka_secured import allow
from cli.test_renewal import command, ended, replace
from kafka_security import KafkaSecurity
from tailrace.owned import GuardedProcess
from tailrace.stand import Kafka, ReplicaSet
from tailrace.stand.node import ThrowAwayCA
from waiting import SECONDS, wait_until


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_certificate_for_kafka_is_renewed_without_a_restart(
    mongodb: ReplicaSet, database: Database[Any], tmp_path: Path
) -> None:
    """The first certificate's user loses its rights then, so what arrives later came by the second one."""
    certificates = ThrowAwayCA.make(tmp_path)
    own, log, file = tmp_path / "own.pem", tmp_path / "log", tmp_path / "tailrace.toml"
    shutil.copy(certificates.client_certificate_key_file, own)
    with Kafka.start(security=KafkaSecurity(certificates, "root", "unused")) as broker:
        allow(broker, "client", ("TOPIC", "", "PREFIXED", "ALL"))
        options = {
            "security.protocol": "SSL", "ssl.ca.location": certificates.ca_file,
            "ssl.certificate.location": own, "ssl.key.location": own,
        }  # fmt: skip
        file.write_text(
            f'[mongodb]\nuri = "{mongodb.uri}"\n[capture]\nname = "certified"\ntopic_prefix = "certified"\n'
            f'sink = "kafka://{broker.mutual_servers}?{urlencode(options)}"\nstart = "now"\n'
            f'namespaces = ["{database.name}.a"]\nposition_store = "file:{tmp_path}/positions"\n'
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

        arrived: list[bytes] = []
        reader = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "any",
                "topic.metadata.refresh.interval.ms": 1000,
                "auto.offset.reset": "earliest",
            }
        )
        reader.subscribe([f"^certified[.]{database.name}[.]a$"])

        def arrives(mark: str) -> bool:
            database.a.insert_one({"mark": mark})
            arrived.extend(each.value() or b"" for each in reader.consume(100, 1) if each.error() is None)
            return any(mark.encode() in each for each in arrived)

        with log.open("w") as errors, ended(GuardedProcess(command(file, "produce"), stderr=errors)) as process:
            wait_until(lambda: arrives("first"))
            allow(broker, "other", ("TOPIC", "", "PREFIXED", "ALL"))
            replace(own, certificates.other_client_certificate_key_file.read_text())
            wait_until(lambda: log.read_text().count('"starting"') == 2)
            of_client = AclBindingFilter(
                ResourceType.ANY, None, ResourcePatternType.ANY, "User:client", None, AclOperation.ANY,
                AclPermissionType.ANY,
            )  # fmt: skip
            assert admin.delete_acls([of_client])[of_client].result(SECONDS)
            wait_until(lambda: arrives("second"))
            assert process.poll() is None
        reader.close()
