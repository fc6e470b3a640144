"""One shared oplog tail per shard, and any number of subscribers, each with its own scope, options and position.

Here belong the tail's ring, the channels in which events are made once for all subscribers that ask for the same, and
the way of a subscriber from a position in the past into a channel. How events are made is the engine's; merging
several shards is the router's; sockets are the gateway's.
"""

from tailrace.hub.batch import Batch
from tailrace.hub.channel_reader import ChannelReader
from tailrace.hub.cluster import ClusterHub
from tailrace.hub.cluster_subscription import ClusterSubscription
from tailrace.hub.event_log import EventLog
from tailrace.hub.hub import Hub, HubCounts
from tailrace.hub.merged import MergedSubscription
from tailrace.hub.per_key import PerKeySubscription
from tailrace.hub.subscription import Subscription
from tailrace.token.shard_positions import read_positions

__all__ = [
    "Batch",
    "ChannelReader",
    "ClusterHub",
    "ClusterSubscription",
    "EventLog",
    "Hub",
    "HubCounts",
    "MergedSubscription",
    "PerKeySubscription",
    "Subscription",
    "read_positions",
]
