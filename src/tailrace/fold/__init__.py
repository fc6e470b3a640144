"""What records say about documents, as a function of the set of records: never of the order in which they arrive.

    moments      when a record takes effect: a total order over records of all partitions, topics and shards
    ends         drop, rename and dropDatabase: which collection a record of some moment belongs to now, if any
    documents    one document: its newest image, with the updates that are newer than it
    document_id  which records are about one document

Everything here is pure. `verify`, the inventories, the features and the tables do the reading and writing, and ask here
what follows from it.
"""

from tailrace.fold.documents import BASE, DATA_OPERATIONS, Spelling, fold, id_of, id_of_value, is_superseded
from tailrace.fold.ends import (
    BEHIND_EVENTS,
    END_OPERATIONS,
    HIGH_WATER_MARK,
    KIND_BEGINS,
    End,
    Ends,
    Moment,
    end_of,
    moment_of,
)
from tailrace.fold.update_description import apply_update

__all__ = [
    "BASE",
    "BEHIND_EVENTS",
    "DATA_OPERATIONS",
    "END_OPERATIONS",
    "HIGH_WATER_MARK",
    "KIND_BEGINS",
    "End",
    "Ends",
    "Moment",
    "Spelling",
    "apply_update",
    "end_of",
    "fold",
    "id_of",
    "id_of_value",
    "is_superseded",
    "moment_of",
]
