"""Where a tool keeps its position, as an operator sees it: files or a topic, which can be copied, put back and torn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

_SECONDS = 30.0


class StoredPosition(ABC):
    """The bytes of a position. Whoever changes them has ended the tool before."""

    @abstractmethod
    def copy(self) -> Mapping[str, bytes]:
        """Give what is stored now, by name."""

    @abstractmethod
    def put(self, stored: Mapping[str, bytes]) -> None:
        """Let this be what is stored."""

    def tear(self) -> None:
        """Keep the first half of each."""
        self.put({name: value[: len(value) // 2] for name, value in self.copy().items()})


@dataclass(frozen=True, slots=True)
class InFiles(StoredPosition):
    """Files of a folder."""

    folder: Path
    pattern: str

    def copy(self) -> Mapping[str, bytes]:
        """Read the files."""
        return {path.name: path.read_bytes() for path in self.folder.glob(self.pattern)}

    def put(self, stored: Mapping[str, bytes]) -> None:
        """Write the files."""
        for name, value in stored.items():
            (self.folder / name).write_bytes(value)


@dataclass(frozen=True, slots=True)
class InTopic(StoredPosition):
    """The newest record of each key of a compacted topic."""

    servers: str
    topic: str

    def copy(self) -> Mapping[str, bytes]:
        """Read the topic to the end that it has now; a tool that runs writes on."""
        options = {"group.id": f"copy-{self.topic}", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self.servers, "enable.auto.commit": False, **options})
        try:
            parts = consumer.list_topics(self.topic, timeout=_SECONDS).topics[self.topic].partitions
            places = [TopicPartition(self.topic, part, 0) for part in parts]
            ends = {each.partition: consumer.get_watermark_offsets(each, timeout=_SECONDS)[1] for each in places}
            consumer.assign(places)
            newest: dict[str, bytes] = {}
            while ends:
                message = consumer.poll(_SECONDS)
                assert message is not None, f"{self.topic} does not come to its end"
                if message.error() or message.offset() >= ends.get(message.partition(), 0):
                    ends.pop(message.partition(), None)
                elif message.value() is not None:
                    newest[(message.key() or b"").decode()] = message.value()
            return newest
        finally:
            consumer.close()

    def put(self, stored: Mapping[str, bytes]) -> None:
        """Write each as the newest record of its key."""
        producer = Producer({"bootstrap.servers": self.servers})
        for name, value in stored.items():
            producer.produce(self.topic, value, name.encode())
        assert not producer.flush(_SECONDS), f"{self.topic} takes no records"
