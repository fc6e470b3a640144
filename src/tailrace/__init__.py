"""Change data capture for MongoDB, from the oplog to the lakehouse."""

__version__ = "0.1.0"
