"""How capture talks to Kafka: topics, limits, and what the errors of the client library mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from tailrace.capture.kafka_address import KafkaAddress as KafkaAddress
from tailrace.errors import NotAuthorized, SinkUnavailable
from tailrace.retry import RetryPolicy, retried

SECONDS_TO_ANSWER = 10.0
SECONDS_TO_ELECT = 30.0
"""A broker that died is missed after nine seconds (`broker.session.timeout.ms`); only then another one leads."""
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError._BAD_MSG,
}


# A broker answers like this for some moments after a topic was made or a leader moved.
_LEADER_UNKNOWN = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,  # what a request to the leaders of partitions says when there is none yet
}
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_DEFAULT_LIMIT = 1_048_588
_Result = TypeVar("_Result")


def code_of(error: KafkaException | KafkaError) -> int:
    """Give the number of an error."""
    return int(_inner(error).code())


def is_fenced(error: KafkaException | KafkaError) -> bool:
    """Whether another producer with the same transactional id has taken over."""
    return code_of(error) in _FENCED


def is_refused(error: KafkaException | KafkaError) -> bool:
    """Whether this record would be refused again, however often it is sent."""
    return code_of(error) in _REFUSED


def is_about_the_group(error: KafkaException | KafkaError) -> bool:
    """Whether a reader may go on: the library asks for the coordinator of its group, though nothing is kept in it."""
    return code_of(error) == KafkaError.GROUP_AUTHORIZATION_FAILED


def describe(error: KafkaException | KafkaError) -> str:
    """Give the name and text of an error."""
    inner = _inner(error)
    return f"{inner.name()}: {inner.str()}"


def unavailable(
    address: KafkaAddress, error: KafkaException | KafkaError, needed: str = ""
) -> SinkUnavailable | NotAuthorized:
    """Give the error of ours for one of the client library; `needed` is the ACL that the call takes."""
    return not_authorized(address, error, needed) or SinkUnavailable(
        f"Kafka at {address.servers}: {describe(error)}", kafka_code=code_of(error)
    )


def not_authorized(address: KafkaAddress, error: KafkaException | KafkaError, needed: str = "") -> NotAuthorized | None:
    """Give the error of ours where an ACL is missing, which trying again does not mend."""
    if code_of(error) not in _FORBIDDEN:
        return None
    return lacking(address, needed or "an ACL", describe(error))


def lacking(address: KafkaAddress, needed: str, why: str) -> NotAuthorized:
    """Give the error that names an ACL which is missing."""
    return NotAuthorized(
        f"the user of Kafka at {address.servers} lacks {needed}: {why}",
        hint="Grant it with kafka-acls.sh; the security page has the ACLs per verb.",
    )


def is_fatal(code: object) -> bool:
    """Whether a producer cannot go on, for a reason that the code does not show.

    A broker gives no producer id to somebody who may write to no topic at all, which the library calls fatal.
    """
    return code in (KafkaError._FATAL, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def may_write(admin: AdminClient, topic: str) -> bool:
    """Ask the broker whether the user may write to a topic; one that does not answer has not refused it."""
    future = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=SECONDS_TO_ANSWER
    )[topic]
    try:
        return AclOperation.WRITE in (future.result(timeout=2 * SECONDS_TO_ANSWER).authorized_operations or ())
    except KafkaException as error:
        return code_of(error) not in _FORBIDDEN


def _inner(error: KafkaException | KafkaError) -> KafkaError:
    return error.args[0] if isinstance(error, KafkaException) else error


def once_leader_known(call: Callable[[], _Result]) -> _Result:
    """Make the call, again and again while the broker still settles a new topic or a new leader."""
    return retried(
        call,
        RetryPolicy(first=0.05, longest=0.5, budget=SECONDS_TO_ELECT),
        is_passing=lambda error: isinstance(error, KafkaException) and code_of(error) in _LEADER_UNKNOWN,
    )


def bounds_of(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Give where a partition begins and ends, as the broker says now.

    A topic is listed before each of its partitions has a leader that knows it is one, so a new topic is asked again.
    """
    asked = TopicPartition(topic, partition)
    return once_leader_known(lambda: consumer.get_watermark_offsets(asked, timeout=SECONDS_TO_ANSWER))


def ensure_topic(admin: AdminClient, topic: str, partitions: int, config: Mapping[str, str]) -> bool:
    """Make a topic unless it is there; give whether it was made. Replication is the broker's default.

    It is looked for first, because those who may write to a topic are not always allowed to make one.
    """
    if topic in admin.list_topics(timeout=SECONDS_TO_ANSWER).topics:
        return False
    new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config))
    future = admin.create_topics([new], operation_timeout=SECONDS_TO_ANSWER, request_timeout=SECONDS_TO_ANSWER)[topic]
    try:
        future.result(timeout=2 * SECONDS_TO_ANSWER)
    except KafkaException as error:
        if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


class TopicLimits:
    """How large the records of topics may be, as the broker says."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def of(self, topic: str) -> int:
        """Give the topic's `max.message.bytes`, which is a limit for batches after compression.

        Whoever may not read the settings of topics gets Kafka's default.
        """

        def ask() -> int:
            resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
            future = self._admin.describe_configs([resource], request_timeout=SECONDS_TO_ANSWER)[resource]
            return int(future.result(timeout=2 * SECONDS_TO_ANSWER)["max.message.bytes"].value)

        try:
            return once_leader_known(ask)
        except KafkaException as error:
            if code_of(error) not in _FORBIDDEN:
                raise
            return _DEFAULT_LIMIT
