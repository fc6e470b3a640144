"""A watch that survives its process: `watch(..., store=...)`, `consume()` and `@handler`, for applications in Python.

Belongs here: handing events of a capture to the code of a user, one by one or in batches, in the user's own thread or
event loop; acknowledging them; retries and dead letters. Underneath runs the producer of `capture`, with its lease, its
positions, its answers to errors and its metrics. Does not: how a stream resumes (`driver`), what an error means
(`capture.classifier`).
"""

from tailrace.durable.consuming import Handler, consume, handler
from tailrace.durable.options import DurableOptions
from tailrace.durable.stream import AsyncDurableStream, DurableStream

__all__ = ["AsyncDurableStream", "DurableOptions", "DurableStream", "Handler", "consume", "handler"]
