"""Spark's source logs in to a server with TLS by each mechanism, and a job goes on with a secret that is replaced.

`make access` runs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from cli.test_renewal import MARKED, command, ended, grant
from feature_load import transactions_toml
from mongodb_logins import MECHANISMS, TOKEN_FILE, Logins, guarded_server
from spark_queries import wait_until
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.stand import Redis

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.xdist_group("spark")]

_READ = """
import json, sys
from tailrace.cli.spark_session import spark_session
from tailrace.settings import SparkSettings
uris, start = json.loads(sys.argv[1])
with spark_session(SparkSettings(master="local[2]", driver_memory="1g", log_level="error")) as spark:
    for source in ("change-stream", "oplog"):
        for uri in uris:
            options = {"uri": uri, "namespaces": "shop.orders", "source": source, "startAtOperationTime": start}
            print(spark.read.format("tailrace").options(**options, inlineBytes="0").load().count())
"""


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with guarded_server(tmp_path_factory.mktemp("guarded")) as made:
        yield made


def test_the_source_logs_in_by_each_mechanism(logins: Logins) -> None:
    """In a process of its own: what the workers of a session know of the environment is from its start."""
    with logins.server.client() as client:
        now = client.admin.command("ping")["operationTime"]
        client.shop.orders.insert_many([{"_id": 1}, {"_id": 2}])
    given = json.dumps([[logins.uris[each] for each in MECHANISMS], f"{now.time}:{now.inc + 1}"])
    environment = {**os.environ, TOKEN_FILE: str(logins.token_file)}
    done = run_guarded([sys.executable, "-c", _READ, given], env=environment, timeout=600, capture_output=True)
    assert done.stdout.decode().split() == ["2"] * 2 * len(MECHANISMS), done.stderr.decode()[-3000:]
    assert all(proxy.logins for proxy in logins.scripted.values())


def test_a_job_goes_on_with_a_new_secret(logins: Logins, redis_server: Redis, tmp_path: Path) -> None:
    """The user that the job began with is gone then; Spark's session stays."""
    guarded, log, file = logins.server, tmp_path / "log", tmp_path / "tailrace.toml"
    grant(guarded, "job-first", tmp_path / "uri")
    (tmp_path / "spent.toml").write_text(transactions_toml("shop.payments", "spent"))
    file.write_text(
        f'[mongodb]\nuri_file = "uri"\n[features]\nredis_url = "{redis_server.url}"\n'
        f'[spark]\ncheckpoints = "{tmp_path}/checkpoints"\ndriver_memory = "1g"\n'
    )
    words = command(file, "features", str(tmp_path / "spent.toml"), "--backfill")
    with (
        guarded.client() as client,
        redis.Redis.from_url(redis_server.url) as features,
        log.open("w") as errors,
        ended(GuardedProcess(words, stderr=errors)) as process,
    ):

        def arrives(user: str) -> bool:
            client.shop.payments.insert_one({"user": user, "amount": 1, "at": datetime.now(UTC)})
            return any(user.encode() in key for key in features.scan_iter("spent:*"))

        wait_until(lambda: arrives("ann"), seconds=300)
        grant(guarded, "job-second", tmp_path / "uri")
        wait_until(lambda: log.read_text().count("checkpoint") == 2, seconds=120)
        guarded.primary.command({"dropUser": "job-first"})
        wait_until(lambda: arrives("ben"), seconds=300)
        assert process.poll() is None
    assert MARKED not in log.read_text()
