"""One shard's log: where entries come from, and what is inside them.

Here belong sources of entries (`source.py`, `tail.py`), typed views over entries (`entry.py`), updates
(`update_diff.py`) and transactions (`transactions.py`). What a change stream makes of them is the engine's.
"""
