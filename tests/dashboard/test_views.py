"""What was observed is what is shown: gateways, shards, tables, drift, forecasts and the picture, state by state."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
from bson import Timestamp

from tailrace.capture.positions import Counts, Position
from tailrace.dashboard.sources import Reading
from tailrace.dashboard.sources.features import FeaturesProgress
from tailrace.dashboard.sources.metrics_text import Metrics, Rates
from tailrace.dashboard.sources.positions import PositionsReading, StoredStream
from tailrace.dashboard.sources.producers import ProducerReading
from tailrace.dashboard.values import Colour, Stream
from tailrace.dashboard.view.flow import Parts, flow_of
from tailrace.dashboard.view.job_view import (
    TOKEN_PROPERTY,
    drift_of,
    feature_sets_of,
    gateways_of,
    newest_time,
    tables_of,
)
from tailrace.dashboard.view.observed import Observed
from tailrace.dashboard.view.stream_view import shards_of, streams_of, windows_of
from tailrace.features.declaration import parse_definition
from tailrace.monitor import Consumer, Observer, Oplog, Report, Thresholds
from tailrace.policy.configured import policy_of
from tailrace.settings import Settings
from tailrace.token import ResumeToken, TokenData
from tailrace.warehouse import Column, Drift, Snapshot, TableKind, TableState

NOW = 1_700_010_000.0
FRAUD = Path(__file__).parents[2] / "examples" / "fraud_signals" / "features.toml"
GATEWAY = """# TYPE tailrace_gateway_connections gauge
tailrace_gateway_connections{listener="127.0.0.1:27117"} 9
# TYPE tailrace_hub_subscribers gauge
tailrace_hub_subscribers{shard="s0"} 7
tailrace_hub_subscribers{shard="s1"} 7
# TYPE tailrace_hub_channels gauge
tailrace_hub_channels{shard="s0"} 2
# TYPE tailrace_hub_lag_seconds gauge
tailrace_hub_lag_seconds{shard="s0",namespace="shop.orders"} 1
tailrace_hub_lag_seconds{shard="s1",namespace="shop.orders"} 45
# TYPE tailrace_merge_blocked_seconds gauge
tailrace_merge_blocked_seconds{shard="s0"} 0
tailrace_merge_blocked_seconds{shard="s1"} 12
# TYPE tailrace_shard_stalled_seconds gauge
tailrace_shard_stalled_seconds{shard="s1"} 3
"""


def good(value: Any) -> Reading[Any]:
    return Reading(value, None, NOW, 0.01, NOW)


def bad(problem: str) -> Reading[Any]:
    return Reading(None, problem, NOW, 0.01)


def observed(**readings: Any) -> Observed:
    empty: dict[str, Any] = {
        "oplog": good([]),
        "positions": good(PositionsReading([], [])),
        "producers": {},
        "topics": None,
        "changes": None,
        "features": good([]),
        "tables": good([]),
        "gateways": {},
        "dead_letters": [],
    }
    return Observed(NOW, **(empty | readings))


def reports(**ages: int) -> list[Report]:
    """A stream's location on shards, so many seconds behind the end of each."""
    observer = Observer([], list)
    end = int(NOW)
    found = []
    for shard, age in ages.items():
        oplog = Oplog(shard, Timestamp(end - 3_600, 1), Timestamp(end, 1), 500_000, 1_000_000)
        found.append(observer.judge(Consumer("orders", Timestamp(end - age, 1), saved_at=NOW - age), oplog, NOW))
    return found


def parts_of(*streams: Stream) -> Parts:
    return Parts(streams, [], [], [], [], None, None, None)


def stored(writer: str | None, age: int = 5) -> PositionsReading:
    position = Position(None, Timestamp(int(NOW) - age, 1), counts=Counts(events=7, bytes=70, batches=3))
    return PositionsReading([StoredStream(Consumer("orders", position.cluster_time), position, writer)], [])


def test_watchers_are_those_of_a_shard_not_the_sum_over_shards() -> None:
    (gateway,) = gateways_of(observed(gateways={"http://g": good(Metrics.parse(GATEWAY))}), Rates())
    assert (gateway.watchers, gateway.connections, gateway.listener) == (7, 9, "127.0.0.1:27117")
    assert [(lag.shard, lag.seconds) for lag in gateway.lags] == [("s1", 45), ("s0", 1)]
    assert gateway.condition.colour is Colour.RED
    assert gateway.shards[0].channels == 2


def test_the_shard_that_others_wait_for_holds_the_merge() -> None:
    shards = {s.name: s for s in shards_of(observed(gateways={"http://g": good(Metrics.parse(GATEWAY))}), [])}
    assert {name: shard.blocks_merge for name, shard in shards.items()} == {"s0": False, "s1": True}
    assert (shards["s1"].blocking_seconds, shards["s1"].stalled_seconds) == (12, 3)


def test_of_a_capture_the_shard_with_the_lowest_mark_holds_the_merge() -> None:
    shards = shards_of(observed(oplog=good(reports(s0=1, s1=40, s2=2))), [])
    assert {shard.name: shard.blocks_merge for shard in shards} == {"s0": False, "s1": True, "s2": False}
    assert not any(shard.blocks_merge for shard in shards_of(observed(oplog=good(reports(s0=1, s1=2))), []))


def test_everybody_has_a_place_in_the_oplog() -> None:
    (window,) = windows_of(
        observed(oplog=good(reports(s0=360))), Thresholds(), {"features fraud": NOW - 36.0}, {"s0": 720.0}
    )
    placed = {marker.name: (marker.kind, round(marker.ratio, 3)) for marker in window.markers}
    assert placed == {
        "orders": ("stream", 0.95),
        "features fraud": ("job", 0.995),
        "slowest watcher": ("watcher", 0.9),
    }
    assert (window.free_ratio, window.half_ratio, window.critical_ratio) == (0.5, 0.5, 0.25)


def test_a_stream_that_nobody_runs_is_stopped_however_fresh_its_position_is() -> None:
    """It said "live" beside "nobody runs this stream", and the box of its sink that capture delivers to it."""
    (orphan,) = streams_of(observed(oplog=good(reports(s0=5)), positions=good(stored(None))), Rates())
    assert (orphan.state, orphan.condition.colour) == ("stopped", Colour.AMBER)
    assert orphan.condition.reason.startswith("stopped: nobody runs this stream")
    boxes = {box.id: box for box in flow_of(observed(), parts_of(orphan), Settings()).boxes}
    assert boxes["sink"].condition.colour is Colour.GREY
    assert "nothing delivers to it" in boxes["sink"].condition.reason
    assert [fact.value for fact in boxes["capture"].facts] == ["stopped", "5 s"]
    (old,) = streams_of(observed(oplog=good(reports(s0=500)), positions=good(stored(None, age=500))), Rates())
    assert (old.state, old.condition.colour) == ("stopped", Colour.RED)
    (alone,) = streams_of(observed(oplog=bad("away"), positions=good(stored(None))), Rates())
    assert alone.state == "stopped"
    (held,) = streams_of(observed(oplog=good(reports(s0=5)), positions=good(stored("a/1/2"))), Rates())
    assert held.condition.colour is Colour.GREEN
    assert (held.events, held.writer) == (7, "a/1/2")


def test_a_sink_that_takes_nothing_is_not_said_to_be_delivered_to() -> None:
    proof = "no server answers at https://hook.example; for 40 s nothing was read"
    for state, colour, reason in (
        ("live", Colour.GREEN, "capture delivers to it"),
        ("behind", Colour.AMBER, f"orders is behind: {proof}"),
        ("paused", Colour.GREY, "it cannot be looked into, and nothing delivers to it"),
        ("stalled", Colour.GREY, "it cannot be looked into, and nothing delivers to it"),
    ):
        reported = ProducerReading("http://p", {"name": "orders", "state": state, "proof": proof}, Metrics())
        (stream,) = streams_of(observed(producers={"http://p": good(reported)}), Rates())
        box = {box.id: box for box in flow_of(observed(), parts_of(stream), Settings()).boxes}["sink"]
        assert (box.condition.colour, box.condition.reason) == (colour, reason)


def test_features_are_not_up_to_date_when_their_redis_is_away() -> None:
    definition = parse_definition(tomllib.loads(FRAUD.read_text()))
    progress = FeaturesProgress(definition, 7, int(NOW), NOW, None)
    (there,) = feature_sets_of(observed(features=good([progress])), Settings().monitor, {})
    assert there.condition.colour is Colour.GREEN
    silent = Reading([progress], "no Redis answers", NOW, 0.01, NOW - 60)
    (away,) = feature_sets_of(observed(features=silent), Settings().monitor, {})
    assert (away.condition.colour, away.condition.reason) == (Colour.RED, "no Redis answers")


def test_a_position_is_shown_without_the_key_of_its_event_where_there_is_a_policy() -> None:
    token = ResumeToken.encode(
        TokenData(Timestamp(int(NOW), 1), uuid=bytes(16), event_identifier=bson.encode({"_id": "someone"}))
    )
    reading = PositionsReading(
        [StoredStream(Consumer("orders", token.cluster_time), Position.behind(token.to_bson()), None)], []
    )
    policy = policy_of(Settings.model_validate({"policy": {"rules": [{"fields": ["name"], "action": "mask"}]}}))
    (plain,) = streams_of(observed(positions=good(reading)), Rates())
    (under_policy,) = streams_of(observed(positions=good(reading)), Rates(), policy)
    assert plain.token == token.hex
    assert under_policy.token == ResumeToken.high_water_mark(token.cluster_time).hex


def test_a_stream_is_unknown_when_neither_its_producer_nor_mongodb_answers() -> None:
    (lost,) = streams_of(observed(oplog=bad("away"), positions=good(stored("a"))), Rates())
    assert (lost.state, lost.condition.colour) == ("unknown", Colour.RED)
    (new,) = streams_of(observed(positions=good(stored("a"))), Rates())
    assert (new.state, new.condition.colour) == ("unknown", Colour.GREY)


def test_a_producers_own_word_counts_and_its_secrets_do_not_show() -> None:
    state = {"name": "orders", "state": "paused", "proof": "asked to", "sink": "http://ann:hunter2@h/", "events": 9}
    reported = ProducerReading("http://p", state, Metrics())
    (stream,) = streams_of(observed(producers={"http://p": good(reported)}), Rates())
    assert (stream.state, stream.condition.colour, stream.events) == ("paused", Colour.AMBER, 9)
    assert stream.sink == "http://ann:***@h/"


def table(*tokens: str | None) -> TableState:
    snapshots = [
        Snapshot(number, datetime.fromtimestamp(NOW - 100 + number, UTC), "append", 10, 0,
                 {} if token is None else {TOKEN_PROPERTY: token})
        for number, token in enumerate(tokens)
    ]  # fmt: skip
    drift = [
        Drift("amount", "promoted", "double", "double", 3, "2023-11-14T22:00:00+00:00", "2023-11-14T23:00:00+00:00")
    ]
    columns = [Column("_id", "string")]
    return TableState("shop.orders", TableKind.MIRROR, "shop.orders", 20, 2, 900, snapshots, columns, drift)


def test_a_table_has_come_to_the_newest_event_that_a_snapshot_names() -> None:
    token = ResumeToken.high_water_mark(Timestamp(int(NOW) - 110, 4)).hex
    one = table(token, None)
    assert newest_time(one) == ((int(NOW) - 110) << 32 | 4, NOW - 100)
    (shown,) = tables_of([one])
    assert (shown.cluster_time, shown.latency_seconds) == (NOW - 110, 10.0)
    assert [snapshot.id for snapshot in shown.snapshots] == ["1", "0"]
    assert newest_time(table(None)) is None


def test_drift_is_said_in_words() -> None:
    (drift,) = drift_of([table(None)])
    assert drift.change == "amount widened its column (double, 3 times)"
    assert drift.at == datetime(2023, 11, 14, 23, tzinfo=UTC).timestamp()


def test_the_picture_of_nothing_is_grey_and_has_no_numbers() -> None:
    parts = Parts([], [], [], [], [], None, None, None)
    away = bad("nobody answers")
    flow = flow_of(
        observed(oplog=away, topics=away, features=away, producers={"http://127.0.0.1:9464": away}), parts, Settings()
    )
    assert {box.condition.colour for box in flow.boxes} == {Colour.GREY}
    assert all(arrow.events_per_second is None and arrow.latency_seconds is None for arrow in flow.arrows)


def test_what_was_asked_for_is_red_when_it_is_away() -> None:
    settings = Settings.model_validate({"mongodb": {"uri": "mongodb://ann:hunter2@db.example/"}})
    parts = Parts([], [], [], [], [], None, None, None)
    box = flow_of(observed(oplog=bad("nobody answers")), parts, settings).boxes[0]
    assert (box.condition.colour, box.location) == (Colour.RED, "db.example")
