"""How an event is written: json, canonical, bson, flat, debezium, or a user's own function.

Belongs here: turning the bytes of one event into the key, value and headers of records. Does not: where records go
(sinks) and which topic they go to (topics).
"""

from tailrace.capture.formats.format import Format

__all__ = ["Format"]
