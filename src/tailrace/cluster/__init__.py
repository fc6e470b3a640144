"""What mongos does for change streams: the streams of many shards become one, in cluster-time order.

Here belong the merge, which shards there are and where documents are, a hub for each shard and the streams merged from
them. Making the events of one shard is the engine's work, sharing them the hub's; serving clients is the gateway's.
"""

from tailrace.cluster.hub import ClusterHub
from tailrace.cluster.merge import Merge, Order
from tailrace.cluster.subscription import MergedReading
from tailrace.cluster.topology import Shard, ShardClock, config_uri, read_shards

__all__ = ["ClusterHub", "Merge", "MergedReading", "Order", "Shard", "ShardClock", "config_uri", "read_shards"]
