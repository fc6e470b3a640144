"""One shared oplog tail per shard, and any number of subscribers, each with its own scope, options and position.

Here belong the tail's ring, the channels in which events are made once for all subscribers that ask for the same, and
the way of a subscriber from a position in the past into a channel. How events are made is the engine's; merging
several shards is the cluster's; sockets are the gateway's.
"""

from tailrace.hub.batch import Batch
from tailrace.hub.event_log import EventLog
from tailrace.hub.hub import Hub
from tailrace.hub.subscription import Subscription

__all__ = ["Batch", "EventLog", "Hub", "Subscription"]
