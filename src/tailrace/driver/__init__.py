"""The Change Streams specification on top of pymongo's connections: `watch()`, synchronous and asynchronous.

`resume.py` is the specification as pure logic, `rules.py` says which errors are resumed, the shells
`stream.py` and `async_stream.py` do the I/O through `client`. Decoding oplogs,
 storing positions and writing to sinks do not belong here.
"""

from tailrace.driver.async_stream import AsyncChangeStream
from tailrace.driver.commands import Batch
from tailrace.driver.options import WatchOptions
from tailrace.driver.rules import ResumeRules
from tailrace.driver.stream import ChangeStream
from tailrace.driver.watching import watch
from tailrace.event import token_of

__all__ = ["AsyncChangeStream", "Batch", "ChangeStream", "ResumeRules", "WatchOptions", "token_of", "watch"]
