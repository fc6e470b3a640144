"""The mirror of a collection: events folded to the newest state of each document, and merged into its table.

Belongs here: what becomes of a document's row, and of all rows when their collection ends. Does not: the order in which
a batch is written, and how a table does it.
"""
