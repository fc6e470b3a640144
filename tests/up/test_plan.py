"""What is started follows from what the settings say, and from nothing else."""

from __future__ import annotations

import os
import tomllib

import pytest

from tailrace.errors import SettingsError
from tailrace.settings import Settings
from tailrace.up.folder import as_toml
from tailrace.up.plan import Addresses, Plan

HERE = Addresses("mongodb://here/", "here:9", "redis://here:6", 9464, 8480)


def plan(text: str, tmp_path, **options) -> Plan:
    file = tmp_path / "tailrace.toml"
    file.write_text(text)
    return Plan(Settings.load(file), **options)


def test_without_settings_every_server_is_started_and_all_state_is_in_the_run_folder(tmp_path):
    made = plan("", tmp_path)
    assert made.servers == ("mongodb", "kafka", "redis")
    effective = made.effective(tmp_path, HERE)
    assert effective["mongodb.uri"] == "mongodb://here/"
    assert effective["capture.sink"] == "kafka://here:9"
    assert effective["features.kafka_servers"] == "here:9"
    assert effective["features.redis_url"] == "redis://here:6"
    for key in ("capture.position_store", "spark.checkpoints", "features.dead_letters", "warehouse.folder"):
        assert str(tmp_path) in str(effective[key])


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("[mongodb]\nuri = 'mongodb://127.0.0.1:27017/'", ("kafka", "redis")),
        ("[capture]\nsink = 'kafka://a:1,b:2'", ("mongodb", "redis")),
        ("[features]\nkafka_servers = 'a:1'", ("mongodb", "redis")),
        ("[features]\nredis_url = 'redis://a'", ("mongodb", "kafka")),
        ("[mongodb]\nuri = 'x'\n[capture]\nsink = 'kafka://a:1'\n[features]\nredis_url = 'redis://a'", ()),
    ],
)
def test_a_server_that_is_named_is_not_started_even_by_its_default_address(tmp_path, text, servers):
    assert plan(text, tmp_path).servers == servers


def test_a_variable_names_a_server_as_well_as_the_file(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "TAILRACE_FEATURES__REDIS_URL", "redis://a")
    assert plan("", tmp_path).servers == ("mongodb", "kafka")


def test_what_is_given_is_left_alone_and_fills_in_for_what_is_not(tmp_path):
    made = plan("[capture]\nsink = 'kafka://a:1,b:2'\nformat = 'json'\n[spark]\nmaster = 'local[1]'", tmp_path)
    effective = made.effective(tmp_path, Addresses("mongodb://here/", None, "redis://here:6", 1, 2))
    assert effective["features.kafka_servers"] == effective["warehouse.kafka_servers"] == "a:1,b:2"
    assert not {"capture.sink", "capture.format", "spark.master"} & effective.keys()
    from_jobs = plan("[features]\nkafka_servers = 'a:1'", tmp_path)
    assert from_jobs.effective(tmp_path, Addresses("mongodb://here/"))["capture.sink"] == "kafka://a:1"


def test_on_ones_own_servers_state_stays_where_the_settings_have_it(tmp_path):
    own = "[mongodb]\nuri = 'x'\n[capture]\nsink = 'kafka://a:1'\n[features]\nredis_url = 'redis://a'"
    effective = plan(own, tmp_path).effective(tmp_path, Addresses(metrics_port=1, dashboard_port=2))
    assert not {"capture.position_store", "spark.checkpoints", "warehouse.folder"} & effective.keys()


def test_the_dashboard_may_control_the_producer(tmp_path):
    effective = plan("", tmp_path).effective(tmp_path, HERE)
    assert effective["dashboard.control_token"] == effective["monitor.control_token"]
    assert effective["dashboard.producers"] == ("http://127.0.0.1:9464",)
    again = plan("[monitor]\nmetrics_port = 77\ncontrol_token = 'sixteen-letters-x'", tmp_path).effective(
        tmp_path, HERE
    )
    assert again["dashboard.control_token"] == "sixteen-letters-x"
    assert again["dashboard.producers"] == ("http://127.0.0.1:77",)


def test_the_demo_brings_its_features_and_its_collection(tmp_path):
    demo = plan("", tmp_path, demo=True)
    assert [definition.name for definition in demo.definitions] == ["fraud"]
    assert demo.effective(tmp_path, HERE)["capture.namespaces"] == ("shop.transactions",)
    assert plan("", tmp_path).definitions == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[capture]\nsink = 'file:x.jsonl'", "capture.sink is not Kafka"),
        ("[up]\nfeatures = ['none.toml']", "cannot read .*none.toml"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(tmp_path, text, complaint):
    with pytest.raises(SettingsError, match=complaint):
        plan(text, tmp_path)


def test_the_written_settings_are_the_settings(tmp_path):
    made = plan("[mongodb]\nuri = 'mongodb://u:se\"cret@h/'\n[capture]\nnamespaces = ['a.b', 'c']", tmp_path)
    flags = made.effective(tmp_path, Addresses(None, "here:9", "redis://here:6", 1, 2))
    settings = Settings.load(tmp_path / "tailrace.toml", flags)
    written = as_toml(settings)
    assert tomllib.loads(written)["capture"]["namespaces"] == ["a.b", "c"]
    (tmp_path / "written.toml").write_text(written)
    assert Settings.load(tmp_path / "written.toml") == settings
