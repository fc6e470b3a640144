"""Secrets are known by what they mean, whichever client they are for and wherever they stand."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from tailrace.masking import masked, means_a_secret, shown, shown_url

S = "hunter2"


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret", "ssl.key.pem",
        "sasl.jaas.config", "password", "sslpassword", "tlsCertificateKeyFilePassword", "AWS_SESSION_TOKEN",
        "proxyPassword", "s3.secret-access-key", "fs.s3a.secret.key", "fs.s3a.session.token", "token", "credential",
        "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net", "jdbc.password", "spark.authenticate.secret",
        "header.Authorization", "control_token", "webhook_secret", "apiKey", "api_key", "x-api-key", "accessKey",
        "private.key.passphrase", "sasl%2Epassword", "SASL.PASSWORD", "pwd", "spark.ssl.keyPassword", "pass",
    ],
)  # fmt: skip
def test_names_that_mean_a_secret(name: str) -> None:
    assert means_a_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "linger.ms", "key", "key_field", "ssl.key.location", "ssl.ca.location", "sasl.username", "partition.key",
        "resume_token", "resumeToken", "startAfterToken", "s3.access-key-id", "passfile", "authSource", "replicaSet",
        "message.timeout.ms", "sasl.oauthbearer.token.endpoint.url", "control_token_file", "", "monkey", "bypass",
    ],
)  # fmt: skip
def test_names_that_mean_none(name: str) -> None:
    assert not means_a_secret(name)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"kafka://h:9092/t?linger.ms=5&sasl.password={S}&acks=all", "kafka://h:9092/t?linger.ms=5&sasl.password=***&acks=all"),
        (f"redis://h/0?password={S}", "redis://h/0?password=***"),
        (f"redis://:{S}@h/0?key=user:{{user_id}}", "redis://:***@h/0?key=user:{user_id}"),
        (f"postgresql://u@h/db?sslpassword={S}", "postgresql://u@h/db?sslpassword=***"),
        (
            f"mongodb://u:{S}@h/?authMechanismProperties=SERVICE_NAME:x,AWS_SESSION_TOKEN:{S}",
            "mongodb://u:***@h/?authMechanismProperties=SERVICE_NAME:x,AWS_SESSION_TOKEN:***",
        ),
        (f"package.module:Sink?api_key={S}&table=t", "package.module:Sink?api_key=***&table=t"),
        (f"no {{'sasl.password': '{S} {S}', 'acks': 'all'}}", "no {'sasl.password': '***', 'acks': 'all'}"),
        (f'{{"password": "{S}"}}', '{"password": "***"}'),
        (f'sasl.jaas.config="x required username=\'u\' password={S};"', 'sasl.jaas.config="***"'),
        (f'_id: {{ _data: "8265F0A1B200000007{S.encode().hex() * 3}" }}', '_id: { _data: "8265F0A1B200000007..." }'),
        (f"{{'_data': '8265F0A1B200000007{S.encode().hex() * 3}'}}", "{'_data': '8265F0A1B200000007...'}"),
        ('_id: {_data: "8265F0A1B2000000072B0229296E04"}', '_id: {_data: "8265F0A1B2000000072B0229296E04"}'),
        ("key monitor.control_token: String should", "key monitor.control_token: String should"),
        ("no answer from http://127.0.0.1:9464/state", "no answer from http://127.0.0.1:9464/state"),
    ],
)  # fmt: skip
def test_texts(text: str, seen: str) -> None:
    assert masked(text) == seen
    assert masked(seen) == seen


def test_of_a_web_address_the_host_is_shown() -> None:
    assert shown_url(f"https://hooks.example/services/{S}") == "https://hooks.example/***"


def test_values_of_settings_and_all_that_is_in_them() -> None:
    assert shown(SecretStr(S), "control_token") == "***"
    assert shown(SecretStr(f"with:{S}:colons"), "control_token") == "***"
    assert shown(SecretStr(S)) == "***", "what is no address is a secret as a whole"
    assert shown({"rs0": f"mongodb://u:{S}@h/"}, "shards") == {"rs0": "mongodb://u:***@h/"}
    assert shown({"token": S, "uri": f"https://u:{S}@h", "nested": {"password": [S]}}) == {
        "token": "***",
        "uri": "https://u:***@h",
        "nested": {"password": "***"},
    }
    assert shown((f"http://u:{S}@h",), "producers") == ("http://u:***@h",)
    assert shown(5, "token_seconds") == 5
    assert shown(None, "control_token") is None
