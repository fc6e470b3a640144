"""Where records go: Kafka, JSON lines, webhooks, Redis, or a user's own class.

Belongs here: delivering records in order and saying what is acknowledged. Does not: what a record holds (formats) and
when the position moves (the producer).
"""

from tailrace.capture.sinks.open import SinkOptions, open_dead_letters, open_sink
from tailrace.capture.sinks.sink import Sink, TransactionalSink
from tailrace.capture.sinks.worker import WorkerSink

__all__ = ["Sink", "SinkOptions", "TransactionalSink", "WorkerSink", "open_dead_letters", "open_sink"]
