"""Where the events of a capture come from: the server's own change streams, or the engine on the oplog.

`source` is the interface and the change stream; `oplog` and `cluster` read one log or those of all shards; `reader`
reads ahead, bounded in bytes.
"""
