"""Spark's Kafka source logs in by a certificate and by tokens of an endpoint, with the producer's own URL.

`make access` runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

from kafka_security import KafkaSecurity, in_pkcs8
from tailrace.errors import SettingsError
from tailrace.spark.from_kafka import kafka_records
from tailrace.spark.kafka_options import kafka_options
from tailrace.stand import Kafka
from tailrace.stand.node import ThrowAwayCA
from token_endpoint import TokenEndpoint


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("spark")
def test_topics_are_read_by_a_certificate_and_by_a_token(spark: Any, tmp_path: Path) -> None:
    certificates = ThrowAwayCA.make(tmp_path)
    own = tmp_path / "own.pem"
    own.write_bytes(in_pkcs8(certificates.client_certificate_key_file.read_bytes()))
    with TokenEndpoint.serve({"client": "secret"}) as tokens:
        security = KafkaSecurity(certificates, "client", "unused", jwks_url=tokens.jwks_url)
        with Kafka.start(security=security) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            for number in range(20):
                producer.produce("t", b"{}", str(number))
            assert producer.flush(60) == 0
            by_certificate = {"security.protocol": "SSL", "ssl.certificate.location": own, "ssl.key.location": own}
            by_token = {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "client", "sasl.oauthbearer.client.secret": "secret",
                "sasl.oauthbearer.token.endpoint.url": tokens.url,
            }  # fmt: skip
            for servers, options in ((broker.mutual_servers, by_certificate), (broker.secured_servers, by_token)):
                url = f"kafka://{servers}?{urlencode({**options, 'ssl.ca.location': certificates.ca_file})}"
                assert kafka_records(spark, url, "t", format="json", stream=False).count() == 20
            assert tokens.given


def test_a_key_that_java_cannot_read_is_named(tmp_path: Path) -> None:
    own = ThrowAwayCA.make(tmp_path).client_certificate_key_file
    with pytest.raises(SettingsError, match=r"ssl\.key") as refused:
        kafka_options(f"kafka://h:1?{urlencode({'ssl.certificate.location': own, 'ssl.key.location': own})}")
    assert "pkcs8" in (refused.value.hint or "")
