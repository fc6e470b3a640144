"""Settings come from the file, the environment and flags, in this order, and never show a password."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from tailrace.errors import SettingsError
from tailrace.masking import masked
from tailrace.masking import shown as shown_value
from tailrace.settings import Settings, describe
from tailrace.settings_source import PATHS


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_without_anything_the_defaults_hold():
    assert Settings.load().mongodb.timeout_seconds == 10


def test_the_environment_beats_the_file_and_flags_beat_both(tmp_path, monkeypatch):
    (tmp_path / "tailrace.toml").write_text("[mongodb]\ntimeout_seconds = 1\n[log]\nlevel = 'debug'\n")
    assert Settings.load().mongodb.timeout_seconds == 1
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "2")
    assert Settings.load().mongodb.timeout_seconds == 2
    loaded = Settings.load(flags={"mongodb.timeout_seconds": 3, "log.level": None})
    assert (loaded.mongodb.timeout_seconds, loaded.log.level) == (3, "debug")


def test_another_file_is_named_by_flag_or_environment(tmp_path, monkeypatch):
    other = tmp_path / "other.toml"
    other.write_text("[log]\nlevel = 'error'\n")
    assert Settings.load(other).log.level == "error"
    monkeypatch.setenv("TAILRACE_CONFIG", str(other))
    assert Settings.load().log.level == "error"
    with pytest.raises(SettingsError, match="cannot read"):
        Settings.load(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[mongodb]\nurl = 'x'", "unknown settings key mongodb.url"),
        ("[mogodb]\nuri = 'x'", "unknown settings key mogodb"),
        ("[mongodb]\ntimeout_seconds = 0", "mongodb.timeout_seconds"),
        ("[mongodb", "not TOML"),
    ],
)
def test_a_bad_file_is_refused_by_the_key_it_names(tmp_path, text, complaint):
    (tmp_path / "tailrace.toml").write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        Settings.load()


@pytest.mark.parametrize("text", ["shop.orders,crm", " shop.orders , crm ", '["shop.orders", "crm"]'])
def test_a_list_in_a_variable_needs_no_json(monkeypatch, text):
    monkeypatch.setenv("TAILRACE_CAPTURE__NAMESPACES", text)
    assert Settings.load().capture.namespaces == ("shop.orders", "crm")


@pytest.mark.parametrize("name", ["TAILRACE_CAPTURE__NAMESPACES", "TAILRACE_CAPTURE"])
@pytest.mark.parametrize("text", ["[shop", "{", "[1, 2", '{"a": 1}', "x"])
def test_a_bad_list_or_section_in_a_variable_is_refused(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    if (name, text) == ("TAILRACE_CAPTURE__NAMESPACES", "x"):
        assert Settings.load().capture.namespaces == ("x",)
        return
    with pytest.raises(SettingsError):
        Settings.load()


def test_a_misspelt_variable_is_refused(monkeypatch):
    monkeypatch.setenv("TAILRACE_MONGODB__URL", "mongodb://x/")
    with pytest.raises(SettingsError, match="TAILRACE_MONGODB__URL"):
        Settings.load()


def test_variables_that_kubernetes_makes_for_services_are_not_ours(monkeypatch):
    """Every pod of a namespace gets them for the Services there, of which some are called tailrace-..."""
    links = {
        "TAILRACE_SERVICE_HOST": "10.0.0.7",
        "TAILRACE_GATEWAY_SERVICE_HOST": "10.0.0.7",
        "TAILRACE_GATEWAY_SERVICE_PORT": "27117",
        "TAILRACE_GATEWAY_SERVICE_PORT_MONGODB": "27117",
        "TAILRACE_GATEWAY_PORT": "tcp://10.0.0.7:27117",
        "TAILRACE_GATEWAY_PORT_27117_TCP": "tcp://10.0.0.7:27117",
        "TAILRACE_GATEWAY_PORT_27117_TCP_PROTO": "tcp",
        "TAILRACE_GATEWAY_PORT_27117_TCP_PORT": "27117",
        "TAILRACE_GATEWAY_PORT_27117_TCP_ADDR": "10.0.0.7",
    }
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == Settings()
    monkeypatch.setenv("TAILRACE_GATEWAY_PORT", "27117")
    with pytest.raises(SettingsError, match="unknown settings variable TAILRACE_GATEWAY_PORT"):
        Settings.load()


def test_no_password_is_shown(monkeypatch):
    monkeypatch.setenv("TAILRACE_MONGODB__URI", "mongodb://ann:hunter2@host/")
    assert "hunter2" not in repr(Settings.load())
    assert "hunter2" not in str(Settings.load().model_dump())


def test_a_bad_value_is_not_repeated_in_the_error(monkeypatch):
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "hunter2")
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    assert "hunter2" not in str(caught.value)


@example(user="pwd", password="0")
@given(user=st.from_regex(r"[a-z]{1,8}", fullmatch=True), password=st.from_regex(r"[^@\s]{1,12}", fullmatch=True))
def test_masking_takes_the_password_and_leaves_the_rest(user, password):
    shown = masked(f"cannot reach mongodb://{user}:{password}@host:27017/?tls=true now")
    assert shown == f"cannot reach mongodb://{user}:***@host:27017/?tls=true now"


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("https://hooks.example/services/T1/hunter2", "https://hooks.example/***"),
        ("https://hooks.example?key=hunter2", "https://hooks.example/***"),
        ("http://ann:hunter2@hooks.example", "http://ann:***@hooks.example"),
        ("mongodb://ann:hunter2@host/shop?tls=true", "mongodb://ann:***@host/shop?tls=true"),
        ("file:.tailrace/positions", "file:.tailrace/positions"),
    ],
)
def test_the_path_of_a_web_address_is_a_secret_too(secret, shown):
    assert shown_value(SecretStr(secret)) == shown


def test_every_setting_has_a_meaning():
    for key, kind, _, meaning in describe():
        assert kind, key
        assert meaning, key


def test_relative_paths_of_a_file_begin_at_its_folder(tmp_path, monkeypatch):
    """The same settings used from another folder took a new snapshot: they had another position store."""
    folder, elsewhere = tmp_path / "etc (1)", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    file = folder / "tailrace.toml"
    file.write_text(
        "[capture]\nposition_store = 'file:state'\nsink = 'file:out/events.jsonl'\ninventory = 'keys.sqlite'\n"
        "[up]\nfeatures = ['a.toml', 'module:name']\n[spark]\ncheckpoints = 's3://bucket/x'\njars = ['a.jar']\n"
    )
    monkeypatch.chdir(elsewhere)
    loaded = Settings.load(file)
    quoted = str(folder).replace(" ", "%20").replace("(", "%28").replace(")", "%29")
    assert loaded.capture.position_store.get_secret_value() == f"file:{quoted}/state"
    assert loaded.capture.sink.get_secret_value() == f"file:{quoted}/out/events.jsonl"
    assert loaded.capture.dead_letters == f"file:{quoted}/dead-letters"
    assert loaded.capture.inventory == str(folder / "keys.sqlite")
    assert loaded.spark.checkpoints == "s3://bucket/x"
    assert loaded.spark.jars == (folder / "a.jar",)
    assert loaded.up.features == (str(folder / "a.toml"), "module:name")
    assert loaded.warehouse.folder == str(folder / "warehouse"), "a default is one of the file's too"
    assert "folder" not in loaded.warehouse.model_fields_set
    flags = {"capture.position_store": "file:here", "warehouse.folder": "there"}
    typed = Settings.load(file, flags)
    assert (typed.capture.position_store.get_secret_value(), typed.warehouse.folder) == ("file:here", "there")


def test_every_setting_that_is_a_path_begins_at_the_folder_of_the_file():
    fields = {
        f"{section}.{name}": field.annotation
        for section, info in Settings.model_fields.items()
        for name, field in info.annotation.model_fields.items()
    }
    paths = {key for key, kind in fields.items() if Path in (kind, *get_args(kind))}
    assert {"gateway.client_ca", "spark.jars"} <= paths <= set(PATHS)


def test_default_paths_begin_at_the_folder_that_systemd_made_for_a_unit(tmp_path, monkeypatch):
    """The folder of the file is read-only for a unit: one tried for ten minutes to keep positions in /etc/tailrace."""
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "orders.toml"
    file.write_text("[capture]\nsink = 'file:out'\n")
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/state:/elsewhere")
    loaded = Settings.load(file)
    assert loaded.capture.position_store.get_secret_value() == f"file:{tmp_path}/state/.tailrace/positions"
    assert loaded.capture.dead_letters == f"file:{tmp_path}/state/dead-letters"
    assert loaded.engine.folder == tmp_path / "state" / ".tailrace" / "engine"
    assert loaded.capture.sink.get_secret_value() == f"file:{tmp_path}/etc/out"


def test_in_the_folder_of_the_file_nothing_is_moved(tmp_path):
    (tmp_path / "tailrace.toml").write_text("[capture]\nposition_store = 'file:state'\n")
    assert Settings.load().capture.position_store.get_secret_value() == "file:state"
    assert Settings.load().warehouse.folder == "warehouse"


def test_a_secret_is_read_from_a_file(tmp_path, monkeypatch):
    (tmp_path / "uri").write_text("mongodb://ann:hunter2@host/\n")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "tailrace.toml").write_text("[mongodb]\nuri_file = 'uri'\n[monitor]\ncontrol_token_file = 'token'\n")
    loaded = Settings.load()
    assert loaded.mongodb.uri.get_secret_value() == "mongodb://ann:hunter2@host/"
    assert loaded.monitor.control_token.get_secret_value() == "0123456789abcdef"
    (tmp_path / "other").write_text("mongodb://other/")
    monkeypatch.setenv("TAILRACE_MONGODB__URI_FILE", str(tmp_path / "other"))
    assert Settings.load().mongodb.uri.get_secret_value() == "mongodb://other/"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[mongodb]\nuri_file = 'missing'", "mongodb.uri_file: missing cannot be read"),
        ("[mongodb]\nuri_file = 'empty'", "mongodb.uri_file: empty is empty"),
        ("[mongodb]\nuri_file = 'bytes'", "mongodb.uri_file: bytes is no text"),
        ("[mongodb]\nuri_file = 7", "cannot be read"),
        ("[mongodb]\nuri = 'mongodb://x/'\nuri_file = 'empty'", "both given"),
        ("[mongodb]\ntimeout_seconds_file = 'empty'", "unknown settings key mongodb.timeout_seconds_file"),
        ("mongodb = 7", "mongodb"),
    ],
)
def test_a_file_that_holds_no_secret_is_refused(tmp_path, text, complaint):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "tailrace.toml").write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        Settings.load()


def test_a_file_may_be_named_by_a_text(tmp_path):
    (tmp_path / "other.toml").write_text("[capture]\nname = 'orders'\n")
    assert Settings.load(str(tmp_path / "other.toml")).capture.name == "orders"
