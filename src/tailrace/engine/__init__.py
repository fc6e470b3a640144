"""What mongod does for a change stream: oplog entries become events, one stage per file.

Here belong the stages, the options and refusals of `$changeStream`, the order of the stages (`assembly.py`) and the
stream that runs them (`stream.py`). Sockets, clocks and threads do not: the oplog and the images are passed in; only
`live.py` connects them to a replica set. The user's own stages are compiled in `expression/`.
"""

from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event
from tailrace.engine.images import ImageStore
from tailrace.engine.options import parse_command
from tailrace.engine.stream import EngineStream, open_stream

__all__ = ["Dialect", "EngineStream", "Event", "ImageStore", "open_stream", "parse_command"]
