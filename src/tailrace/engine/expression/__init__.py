"""The user's stages after `$changeStream`, compiled once to Python callables that run on BSON bytes.

Here belongs what `$match`, `$project`, `$addFields`/`$set`, `$unset`, `$replaceRoot`/`$replaceWith` and
`$redact` mean: values and their order, paths, query operators, aggregation expressions, and the server's
errors for a pipeline it would refuse. What a change event is, where it comes from and how it is resumed
does not belong here.

The interface, for the engine's `user stages`:

    pipeline = compile_pipeline(stages, server_version="6.0.5", now=..., cluster_time=...)
    pipeline(event_bytes)              # -> bytes, or None when a stage filtered the event out
    pipeline.is_identity               # no user stage changes or filters anything
    pipeline.splits_large_events       # the last stage is $changeStreamSplitLargeEvent (not run here)
    pipeline.fields                    # top-level fields the stages read, None when all of them
    pipeline.header_filter             # None, or callable(operation_type, database, collection) -> bool
    pipeline.partial_filter(names)     # None, or callable(partial_event_bytes) -> bool

`header_filter` and `partial_filter` are the part of the leading `$match` stages that depends on the given
fields alone: False means that the event can be dropped before it is built. They are necessary conditions,
never sufficient ones: an event that passes still goes through the pipeline.
"""

from tailrace.engine.expression.pipeline import Pipeline, compile_pipeline

__all__ = ["Pipeline", "compile_pipeline"]
