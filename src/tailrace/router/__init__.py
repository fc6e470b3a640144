"""What mongos does for change streams: the streams of many shards become one, in cluster-time order.

Here belong the merge and the knowledge of which shards there are. Making the events of one shard is the
engine's work; serving them to clients is the gateway's.
"""

from tailrace.router.merge import Hold, Merge, Order
from tailrace.router.topology import Shard, ShardClock, config_uri, read_shards

__all__ = ["Hold", "Merge", "Order", "Shard", "ShardClock", "config_uri", "read_shards"]
