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


@pytest.mark.parametrize(
    ("one", "other", "confused"),
    [
        ("shop.a b", "shop.a_20b", True),
        ("shop.a..b", "shop.a.b", True),
        ("shop.ä", "shop.a", False),
        ("shop.orders", "shop.payments", False),
    ],
)
def test_namespaces_that_only_kafka_cannot_tell_apart(one: str, other: str, confused: bool) -> None:
    assert TopicRule("cdc").confuses(one, other) is confused
    assert not TopicRule("cdc", "everything").confuses(one, other), "one topic for everything was asked for"
    assert not TopicRule("cdc", renames=(("shop.*", "all"),)).confuses(one, other)
    assert not TopicRule("cdc", exact=((one, "its-own"),)).confuses(one, other)
