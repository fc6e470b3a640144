"""What records say about documents, as a function of the set of records: never of the order in which they arrive.

    moments      when a record takes effect: a total order over records of all partitions, topics and shards
    ends         drop, rename and dropDatabase: which collection a record of some moment belongs to now, if any
    documents    one document: its newest image, with the updates that are newer than it
    document_id  which records are about one document

Everything here is pure. `verify`, the inventories, the features and the tables do the reading and writing, and ask here
what follows from it.
"""

from tailrace.fold.document_id import id_of, id_of_value
from tailrace.fold.documents import BASE, DATA_OPERATIONS, Fold, Spelling, fold, is_superseded
from tailrace.fold.ends import END_OPERATIONS, End, Ends
from tailrace.fold.moments import Moment, moment_of

__all__ = [
    "BASE",
    "DATA_OPERATIONS",
    "END_OPERATIONS",
    "End",
    "Ends",
    "Fold",
    "Moment",
    "Spelling",
    "fold",
    "id_of",
    "id_of_value",
    "is_superseded",
    "moment_of",
]
