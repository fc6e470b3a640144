"""Tables: what they are called, what they say about themselves, and how each format reads and writes them.

`states`, `delta_log`, `folders`, `catalogs` and `data` read without Spark; `format` is what the job asks of a format,
and `iceberg` and `delta` are the two there are. Does not belong here: what rows mean, and when they are written.
"""
