"""Events out of MongoDB and into other systems, so that none is lost: producer, positions, formats, sinks, recovery.

Belongs here: delivering a stream durably and mending it when history was lost. Does not: how a stream is read (the
driver, the engine and the router know) and how delivered records are worked on (the Spark jobs).
"""

from tailrace.capture.record import Record

__all__ = ["Record"]
