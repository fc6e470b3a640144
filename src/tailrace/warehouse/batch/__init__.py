"""A micro-batch into all its tables, once: by Spark (`spark_batch`), or a small one by the driver (`driver_batch`).

What the driver knows of the tables that it writes itself belongs here too: their files, their keys, and how small files
become large ones. Does not: what a row is (the mirror), and where batches come from (the job).
"""
