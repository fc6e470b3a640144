"""Sources that nobody named: the page does not call it a problem that they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard_site import free_port, write_settings
from tailrace.dashboard.collector import Collector
from tailrace.dashboard.sources.features import FeaturesSource
from tailrace.settings import Settings
from tailrace.stand import ReplicaSet
from waiting import wait_until as until


@pytest.mark.parametrize(("is_named", "colour"), [(False, "grey"), (True, "red")])
def test_a_redis_that_nobody_named_is_no_problem(
    is_named: bool, colour: str, mongodb: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of sources called it one, while the flow on the same page showed it grey."""
    nobody = f"redis://127.0.0.1:{free_port()}"  # at the default address there may be one
    monkeypatch.setattr("tailrace.dashboard.collector.FeaturesSource", lambda _, names: FeaturesSource(nobody, names))
    file = write_settings(
        tmp_path,
        mongodb={"uri": mongodb.uri},
        capture={"sink": f"file:{tmp_path / 'out'}", "position_store": f"file:{tmp_path / 'positions'}"},
        **({"features": {"redis_url": nobody}} if is_named else {}),
    )
    collector = Collector(Settings.load(file))
    collector.start()
    try:
        redis = until(
            lambda: [each for each in collector.state.sources if each.name == "redis" and each.at is not None],
            "a poll of Redis",
        )
    finally:
        collector.close()
    assert redis[0].condition.colour == colour
