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

from docs.pages import read
from tailrace.cli.app import run
from tailrace.stand import Kafka, KafkaSecurity, ReplicaSet
from tailrace.stand.node import ThrowAwayCA

USERS = {f"user{number}": f"secret{number}" for number in range(30)}
Acl = tuple[str, str, str]
"""The operation, the kind of resource and the prefix of its name."""
KINDS = {"topics": ResourceType.TOPIC, "groups": ResourceType.GROUP, "transactional ids": ResourceType.TRANSACTIONAL_ID}
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
_unused = iter(USERS)


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
        future.result(30)
    return user


@pytest.mark.parametrize(("command", "acls"), list(rows()))
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
                future.result(30)
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
        ended = run(["--config", str(file), "produce", "--until-idle"])
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
