"""Commands on cursors over pymongo's connections: what the oplog's tail and the driver stand on.

Here belong the commands and their replies, whose documents stay bytes, and how they are sent: `private` by what pymongo
uses itself, or `public`, slower, on a release that has changed that. What the commands are for is not known here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.client import private as chosen
else:
    try:
        from tailrace.client import private as chosen
    except ImportError:
        from tailrace.client import public as chosen

AsyncRawCursor = chosen.AsyncRawCursor
CursorConnection = chosen.CursorConnection
RawCursor = chosen.RawCursor
end_session = chosen.end_session
is_time_limited = chosen.is_time_limited
open_async_cursor = chosen.open_async_cursor
open_cursor = chosen.open_cursor
start_session = chosen.start_session
time_limit = chosen.time_limit

__all__ = [
    "AsyncRawCursor",
    "CursorConnection",
    "RawCursor",
    "end_session",
    "is_time_limited",
    "open_async_cursor",
    "open_cursor",
    "start_session",
    "time_limit",
]
