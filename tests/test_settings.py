"""Settings come from the file, the environment and flags, in this order, and never show a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tailrace.errors import SettingsError
from tailrace.settings import Settings, describe, masked, shown_secret


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


def test_a_misspelt_variable_is_refused(monkeypatch):
    monkeypatch.setenv("TAILRACE_MONGODB__URL", "mongodb://x/")
    with pytest.raises(SettingsError, match="TAILRACE_MONGODB__URL"):
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
    assert shown_secret(SecretStr(secret)) == shown


def test_every_setting_has_a_meaning():
    for key, kind, _, meaning in describe():
        assert kind, key
        assert meaning, key
