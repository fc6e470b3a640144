"""Names of topics."""

from __future__ import annotations

import pytest

from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import SettingsError


@pytest.mark.parametrize(
    ("rule", "namespace", "topic"),
    [
        (TopicRule("cdc"), "shop.orders", "cdc.shop.orders"),
        (TopicRule("cdc"), "shop.orders.archive", "cdc.shop.orders.archive"),
        (TopicRule("cdc"), "shop", "cdc.shop"),
        (TopicRule("cdc"), "", "cdc"),
        (TopicRule("cdc"), "shop.a b$", "cdc.shop.a_20b_24"),
        (TopicRule("cdc", "everything"), "shop.orders", "everything"),
        (TopicRule("cdc", "{db}-{coll}-v1"), "shop.orders", "shop-orders-v1"),
    ],
)
def test_the_topic_of_a_namespace(rule: TopicRule, namespace: str, topic: str) -> None:
    assert rule.topic(namespace) == topic


@pytest.mark.parametrize("template", ["{table}", "{", "{0}"])
def test_a_template_with_other_fields_is_refused(template: str) -> None:
    with pytest.raises(SettingsError):
        TopicRule("cdc", template)


@pytest.mark.parametrize("namespace", ["shop." + "x" * 300, ""])
def test_a_name_that_kafka_forbids_is_refused(namespace: str) -> None:
    with pytest.raises(SettingsError):
        TopicRule("", "{db}.{coll}").topic(namespace)
