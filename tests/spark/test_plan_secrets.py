"""Secrets of a connection: no plan and no message of Spark shows them.

The queries here run nothing, so they need no broker.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from pyspark.errors import AnalysisException

from tailrace.spark import from_kafka
from tailrace.spark.redaction import SESSION, hide_secrets

pytestmark = pytest.mark.xdist_group("spark")
MARK = "MARKEDsecret"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"
KEY = f"-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----"
CONNECTIONS = {
    "PLAIN": f"kafka://user:{MARK}%22%5C@127.0.0.1:1",
    "SCRAM": f"kafka://user:{MARK}@127.0.0.1:1?sasl.mechanism=SCRAM-SHA-512",
    "OAUTHBEARER": "kafka://127.0.0.1:1?security.protocol=SASL_SSL&sasl.mechanism=OAUTHBEARER"
    f"&sasl.oauthbearer.client.id=me&sasl.oauthbearer.client.secret={MARK}",
    "mTLS": "kafka://127.0.0.1:1?security.protocol=SSL"
    f"&ssl.certificate.pem={quote(CERTIFICATE)}&ssl.key.pem={quote(KEY)}&ssl.key.password={MARK}",
    "trust store": f"kafka://127.0.0.1:1?security.protocol=SSL&ssl.truststore.password={MARK}",
}


def plan_forms(frame: Any) -> dict[str, str]:
    """Everything that Spark tells of a plan that has not run."""
    execution = frame._jdf.queryExecution()
    explained = frame.sparkSession._jvm.PythonSQLUtils.explainString
    forms = {mode: explained(execution, mode) for mode in ("simple", "extended", "codegen", "cost", "formatted")}
    for name in ("logical", "analyzed"):
        plan = getattr(execution, name)()
        forms |= {name: plan.toString(), f"{name} JSON": plan.toJSON(), f"{name} tree": plan.numberedTreeString()}
    with pytest.raises(AnalysisException) as refused:
        frame.select("no_such_column")
    return {**forms, "message": str(refused.value)}


@pytest.fixture
def foreign_session(spark) -> Any:
    """A session of somebody else, with Spark's own idea of what is a secret."""
    session = spark.newSession()
    for name in SESSION:
        session.conf.set(name, "(?i)url")
    return session


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_no_plan_of_topics_shows_a_secret(foreign_session, connection):
    frame = from_kafka(foreign_session, CONNECTIONS[connection], "t")
    forms = plan_forms(frame)
    assert "kafka.bootstrap.servers=127.0.0.1:1" in forms["extended"], "what is no secret is shown"
    assert {form for form, text in forms.items() if MARK in text} == set()


def test_what_a_session_hides_already_stays_hidden(foreign_session):
    foreign_session.conf.set("spark.sql.redaction.options.regex", "theirs")
    for _ in range(2):
        hide_secrets(foreign_session)
    pattern = foreign_session.conf.get("spark.sql.redaction.options.regex")
    assert pattern.split("|")[0] == "theirs"
    assert pattern.count("jaas") == 1
