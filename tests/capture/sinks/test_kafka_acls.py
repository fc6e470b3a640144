"""The ACLs per verb, as the security page lists them, on a real broker: they are enough, and none can be left out.

`make access` tries them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from pymongo.database import Database
from pyspark.errors import StreamingQueryException

from docs.pages import read
from kafka_security import KafkaSecurity
from spark_queries import run_to_end
from tailrace.cli.app import run
from tailrace.errors import NotAuthorized
from tailrace.spark.failures import permanent_error
from tailrace.spark.from_kafka import kafka_records
from tailrace.stand import Kafka, ReplicaSet
from tailrace.stand.node import ThrowAwayCA
from waiting import SECONDS

USERS = {f"user{number}": f"secret{number}" for number in range(30)}
Acl = tuple[str, str, str]
"""The operation, the kind of resource and the prefix of its name."""
KINDS = {"topics": ResourceType.TOPIC, "groups": ResourceType.GROUP, "transactional ids": ResourceType.TRANSACTIONAL_ID}
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
_unused = iter(USERS)


def url_of_root(broker: Kafka) -> str:
    """The listener without logins, which may do everything."""
    return f"kafka://{broker.bootstrap_servers}"


def _run(command: str, file: Path, root: str) -> int:
    """Do what a row is about; what has to be there before is made by somebody who may."""
    verb = re.findall(r"`tailrace (\w+)", command)[0]
    words = ["--config", str(file), verb]
    if verb == "produce":
        return run([*words, "--until-idle"])
    assert run(["--config", str(file), "produce", "--until-idle", "--sink", root]) == 0
    if verb == "recover":
        return run([*words, "--anyway"])
    return run(words)


def rows() -> Iterator[Any]:
    """Give each row of the page: its words, and the operations on resources."""
    table = read("security.md").split("| command | operations |\n|---|---|\n")[1].split("\n\n")[0]
    for line in table.splitlines():
        command, operations = line.strip("| ").split(" | ")
        acls = re.findall(r"`(\w+)` on ([a-z ]+) `([^`]+)`", operations)
        yield pytest.param(command, acls, id=re.sub(r"[`|]", "", command))


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> KafkaSecurity:
    return KafkaSecurity(ThrowAwayCA.make(tmp_path_factory.mktemp("certificates")), "root", "everything", USERS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, security: KafkaSecurity) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("kafka-acls")
    with Kafka.start({"auto.create.topics.enable": "false"}, security=security, folder=folder) as broker:
        yield broker


def user_with(broker: Kafka, acls: list[Acl], prefix: str) -> str:
    """Give a user these operations; `tailrace` in the names of topics stands for the test's own prefix."""
    user = next(_unused)
    made = [
        AclBinding(
            KINDS[kind], name.replace("tailrace", prefix) if kind == "topics" else name, ResourcePatternType.PREFIXED,
            f"User:{user}", "*", AclOperation[operation.upper()], AclPermissionType.ALLOW,
        )
        for operation, kind, name in acls
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in (admin.create_acls(made) if made else {}).values():
        future.result(SECONDS)
    return user


JOBS, VERBS = ([row for row in rows() if ("--topics" in row.values[0]) is is_job] for is_job in (True, False))


@pytest.mark.parametrize(("command", "acls"), VERBS)
def test_the_operations_are_enough_and_none_can_be_left_out(
    broker: Kafka,
    security: KafkaSecurity,
    mongodb: ReplicaSet,
    database: Database[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    acls: list[Acl],
) -> None:
    database.orders.insert_one({"_id": 1})
    cases: list[Acl | None] = [None, *acls]
    for number, left_out in enumerate(cases):
        prefix = f"{database.name}x{number}"
        if "makes" not in command:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            names = (f"{prefix}.{database.name}.orders", f"{prefix}-positions")
            for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
                future.result(SECONDS)
        user = user_with(broker, [acl for acl in acls if acl != left_out], prefix)
        ca = quote(str(security.certificates.ca_file), safe="")
        url = f"kafka://{user}:{USERS[user]}@{broker.secured_servers}"
        exactly_once = "exactly-once" in command
        store = f"{url}/{prefix}-positions?ssl.ca.location={ca}" if exactly_once else f"file:{tmp_path}/{prefix}"
        file = tmp_path / f"{prefix}.toml"
        file.write_text(
            f'[mongodb]\nuri = "{mongodb.uri}"\n[capture]\nname = "{prefix}"\ntopic_prefix = "{prefix}"\n'
            f'sink = "{url}?ssl.ca.location={ca}"\nposition_store = "{store}"\n'
            f'namespaces = ["{database.name}.orders"]\ndelivery = "{"exactly" if exactly_once else "at-least"}-once"\n'
        )
        ended = _run(command, file, url_of_root(broker))
        printed = "".join(capsys.readouterr())
        if left_out is None:
            assert ended == 0, printed
            continue
        operation, kind, name = left_out
        assert ended != 0, f"{operation} on {kind} {name} is not needed"
        assert "lacks" in printed, printed
        lacking = printed.partition("lacks ")[2]
        assert operation in lacking, printed
        assert kind.removesuffix("s") in lacking, printed


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(("command", "acls"), JOBS)
def test_a_job_reads_topics_with_its_operations_and_with_none_less(
    broker: Kafka, security: KafkaSecurity, spark: Any, tmp_path: Path, command: str, acls: list[Acl]
) -> None:
    """As both jobs read them; by what `supervise` makes of a failure, they end and name what is missing."""
    topic = "jobs.orders"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"{}")
    assert producer.flush(60) == 0

    def read_with(granted: list[Acl], checkpoint: Path) -> list[int]:
        user, ca = user_with(broker, granted, "jobs"), quote(str(security.certificates.ca_file), safe="")
        url = f"kafka://{user}:{USERS[user]}@{broker.secured_servers}?ssl.ca.location={ca}"
        counts: list[int] = []
        records = kafka_records(spark, url, topic, format="json")
        run_to_end(records, lambda batch, _: counts.append(batch.count()), checkpoint)
        return counts

    assert read_with(acls, tmp_path / "all") == [1]
    for number, left_out in enumerate(acls):
        with pytest.raises(StreamingQueryException) as failure:
            read_with([acl for acl in acls if acl != left_out], tmp_path / str(number))
        error = permanent_error(failure.value)
        assert isinstance(error, NotAuthorized), failure.value
        assert f"lacks {left_out[0]} on the topics" in error.message
