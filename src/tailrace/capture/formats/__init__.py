"""How an event is written and read back: json, canonical, bson, flat, debezium, or a user's own function.

Belongs here: turning the bytes of one event into the key, value and headers of records, and records into events; one
file holds both ways of a format. Does not: where records go (sinks) and which topic they go to (topics).
"""

from tailrace.capture.formats.format import Format
from tailrace.capture.formats.made_events import recovered_delete, recovered_rename, snapshot_event
from tailrace.capture.formats.make import FormatOptions, decoder_of, event_decoder_of, make_format

__all__ = [
    "Format",
    "FormatOptions",
    "decoder_of",
    "event_decoder_of",
    "make_format",
    "recovered_delete",
    "recovered_rename",
    "snapshot_event",
]
