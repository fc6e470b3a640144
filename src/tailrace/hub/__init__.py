"""One shared oplog tail per shard, and any number of subscribers, each with its own scope, options and position.

Here belong the tail's ring, the channels in which events are made once for all subscribers that ask for the same, and
the way of a subscriber from a position in the past into a channel. How events are made is the engine's; merging
several shards is the router's; sockets are the gateway's.
"""

from tailrace.hub.cluster import ClusterHub
from tailrace.hub.hub import AnyChannel, Hub, HubCounts
from tailrace.hub.merged import MergedSubscription
from tailrace.hub.per_key import PerKeySubscription
from tailrace.hub.subscription import Batch, Subscription
from tailrace.token.shard_positions import read_positions

__all__ = [
    "AnyChannel",
    "Batch",
    "ClusterHub",
    "Hub",
    "HubCounts",
    "MergedSubscription",
    "PerKeySubscription",
    "Subscription",
    "read_positions",
]
