"""Records as a reader of their topic meets them, without a broker in between."""

from __future__ import annotations

from tailrace.capture.record import Record
from tailrace.capture.recovery.topic_reader import TopicMessage
from tailrace.fold import moment_of


def message_of(record: Record) -> TopicMessage:
    headers = {name: value.decode() for name, value in record.headers}
    moment = moment_of(record.cluster_time, headers["token"])
    return TopicMessage(record.key or b"", record.value, moment, headers["operationType"], headers.get("to"))
