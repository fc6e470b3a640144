"""The watchers of a real gateway, as the dashboard's collector sees them."""

from __future__ import annotations

from pathlib import Path

from pymongo import MongoClient

from dashboard_site import free_port, running, write_settings
from tailrace.dashboard.collector import Collector
from tailrace.settings import Settings
from tailrace.stand import ReplicaSet
from waiting import wait_until as until


def test_watchers_of_a_gateway_are_counted(mongodb: ReplicaSet, tmp_path: Path) -> None:
    metrics = free_port()
    file = write_settings(
        tmp_path,
        mongodb={"uri": mongodb.uri},
        capture={"sink": f"file:{tmp_path / 'out'}", "position_store": f"file:{tmp_path / 'positions'}"},
        dashboard={"producers": [], "gateways": [f"http://127.0.0.1:{metrics}/metrics"]},
    )
    with running("serve", file, "--port", "0", "--metrics-port", str(metrics)) as process:
        assert process.stdout is not None
        uri = process.stdout.readline().split(" at ")[1].strip()
        collector = Collector(Settings.load(file))
        collector.start()
        try:
            with (
                MongoClient(uri, serverSelectionTimeoutMS=20_000) as client,
                client.watched.c.watch(),
                client.watched.c.watch(),
            ):
                gateway = until(lambda: (g := collector.state.gateways[0]).watchers == 2 and g, "the watchers")
                assert gateway.condition.colour == "green"
                assert gateway.connections >= 1
                assert gateway.shards[0].cursors == 1
                until(lambda: "gateway" in [box.id for box in collector.state.flow.boxes], "the box")
        finally:
            collector.close()
