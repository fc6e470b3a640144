"""How a document becomes typed columns: shapes and how they widen, what was agreed about a table, and what drifts.

Belongs here: what follows from documents and settings alone. Does not: tables that exist, and Spark.
"""
