"""Where records go: Kafka, JSON lines, webhooks, Redis, or a user's own class.

Belongs here: delivering records in order and saying what is safe. Does not: what a record holds (formats) and when
the position moves (the producer).
"""

from tailrace.capture.sinks.sink import Sink

__all__ = ["Sink"]
