"""Logins by AWS IAM, at a scripted MongoDB server and a scripted Kafka broker: neither is to be had here.

Both check the signatures as AWS documents them; that Atlas, DocumentDB and Amazon MSK accept them is not proved.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import bson
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from aws_signatures import ACCESS_KEY, REGION, SECRET_KEY, is_callers_identity, is_connect_to_msk
from families.test_documentdb import BUILD, HELLO, DocumentDb
from scripted_broker import TOPIC, ScriptedBroker
from scripted_server import Refusal, ScriptedServer
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.cli.app import run
from tailrace.errors import MissingExtra, SettingsError
from tailrace.extras import require_client
from tailrace.spark.kafka_options import kafka_options

_STS = f"sts.{REGION}.amazonaws.com"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of variables, and none of this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


class IamServer(DocumentDb):
    """Lets in who signs as the user whose key it knows, as `MONGODB-AWS` is documented."""

    def __init__(self) -> None:
        super().__init__()
        self.logins = 0
        self._nonce = b""

    def __call__(self, command: dict[str, Any]) -> dict[str, Any]:
        if "saslStart" in command:
            if (command["mechanism"], command["$db"]) != ("MONGODB-AWS", "$external"):
                raise Refusal(18, "Authentication failed.")
            self._nonce = bson.decode(command["payload"])["r"] + os.urandom(32)
            challenge = bson.encode({"s": self._nonce, "h": _STS})
            return {"conversationId": 1, "done": False, "payload": challenge}
        if "saslContinue" in command:
            answer = bson.decode(command["payload"])
            if not is_callers_identity(answer["a"], answer["d"], self._nonce, _STS):
                raise Refusal(18, "Authentication failed.")
            self.logins += 1
            return {"conversationId": 1, "done": True, "payload": b""}
        if not self.logins:
            raise Refusal(13, "command requires authentication")
        return super().__call__(command)


def watch(folder: Path, server: ScriptedServer, user: str = "") -> list[str]:
    uri = server.uri.replace("mongodb://", f"mongodb://{user}") + "&authMechanism=MONGODB-AWS"
    file = folder / "tailrace.toml"
    file.write_text(f'[mongodb]\nuri = "{uri}"\nfamily = "documentdb"\n')
    return ["--config", str(file), "watch", "shop.orders", "--count", "3", "--start-at", "0,1"]


def test_a_verb_logs_in_to_mongodb_by_iam(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = IamServer()
    with ScriptedServer(script, {**HELLO, "saslSupportedMechs": ["MONGODB-AWS"]}, BUILD) as server:
        assert run(watch(tmp_path, server)) == 0, capsys.readouterr().err
    assert len(capsys.readouterr().out.strip().splitlines()) == 3
    assert script.logins


def test_a_signature_that_is_not_accepted_is_an_error_without_the_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another/secret")
    script = IamServer()
    with ScriptedServer(script, HELLO, BUILD) as server:
        assert run(watch(tmp_path, server)) != 0
        printed = "".join(capsys.readouterr())
        assert "Authentication failed" in printed
        assert "error[unexpected]" not in printed
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        assert run(watch(tmp_path, server)) != 0
        printed += "".join(capsys.readouterr())
        assert "credentials could not be obtained" in printed
    assert "error[unexpected]" not in printed
    assert "another/secret" not in printed
    assert not script.logins


def address(broker: ScriptedBroker, region: str = f"&aws.region={REGION}") -> KafkaAddress:
    url = f"kafka://{broker.address}?sasl.mechanism=AWS_MSK_IAM&security.protocol=SASL_PLAINTEXT{region}"
    return KafkaAddress.parse(url)


def test_a_client_logs_in_to_kafka_by_iam() -> None:
    with ScriptedBroker(is_connect_to_msk) as broker:
        topics = AdminClient(address(broker).config()).list_topics(timeout=30).topics
        assert list(topics) == [TOPIC]
        assert broker.tokens


def test_a_broker_that_does_not_accept_the_signature_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another/secret")
    with ScriptedBroker(is_connect_to_msk) as broker:
        admin = AdminClient(address(broker).config())
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)
        assert not broker.tokens


def test_doctor_reaches_the_broker_by_iam(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = IamServer()
    with ScriptedServer(script, HELLO, BUILD) as server, ScriptedBroker(is_connect_to_msk) as broker:
        sink = f"kafka://{broker.address}?sasl.mechanism=AWS_MSK_IAM&security.protocol=SASL_PLAINTEXT"
        words = watch(tmp_path, server)[:2]
        run([*words, "doctor", "--sink", f"{sink}&aws.region={REGION}"])
        printed = "".join(capsys.readouterr())
        assert broker.tokens, printed
        assert run([*words, "doctor", "--sink", sink]) != 0
    assert "aws.region=eu-west-1" in "".join(capsys.readouterr())


def test_the_region_is_that_of_the_brokers_name() -> None:
    url = "kafka://b-1.shop.abc.c2.kafka.eu-north-1.amazonaws.com:9098?sasl.mechanism=AWS_MSK_IAM"
    config = KafkaAddress.parse(url).config()
    assert config["oauth_cb"].args == ("eu-north-1",)
    assert (config["security.protocol"], config["sasl.mechanisms"]) == ("SASL_SSL", "OAUTHBEARER")
    assert "sasl.mechanism" not in config
    with pytest.raises(SettingsError, match="needs a region"):
        KafkaAddress.parse("kafka://broker:9098?sasl.mechanism=AWS_MSK_IAM").config()


def test_spark_has_the_options_of_amazons_own_login() -> None:
    """Its jar is Amazon's, and was never run here."""
    options = kafka_options("kafka://b:9098?sasl.mechanism=AWS_MSK_IAM&aws.region=eu-west-1")
    assert options["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert "kafka.aws.region" not in options


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://h/?authMechanism=MONGODB-AWS",
        "mongodb://h/?AUTHMECHANISM=MONGODB-AWS",
        "kafka://h?sasl.mechanism=AWS_MSK_IAM",
    ],
)
def test_without_the_extra_it_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = __import__("importlib.util").util.find_spec
    aws = ("pymongo_auth_aws", "aws_msk_iam_sasl_signer")
    monkeypatch.setattr("tailrace.extras.find_spec", lambda name: None if name in aws else found(name))
    with pytest.raises(MissingExtra) as refused:
        require_client(url, "mongodb.uri")
    assert "tailrace[aws]" in refused.value.hint
