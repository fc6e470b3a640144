"""BSON as bytes: walk, slice and splice without decoding; and Extended JSON, its spelling as text.

Belongs here: what is true of any BSON document or value. Does not: what is true of change events only (`event`).
`from tailrace import raw` gives the functions of `bson_bytes`; Extended JSON is `raw.extended_json`.
"""

from tailrace.raw.bson_bytes import *  # noqa: F403
from tailrace.raw.documents import cut_documents as cut_documents
from tailrace.raw.documents import documents_in as documents_in
from tailrace.raw.documents import documents_with as documents_with
