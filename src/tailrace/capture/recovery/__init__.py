"""After history was lost: the ledger of gaps, what was captured before, and the proof that both sides are equal again.

`recovery` closes a gap by a snapshot and the deletes that `inventory` finds; `verify` compares topic and collection.
"""
