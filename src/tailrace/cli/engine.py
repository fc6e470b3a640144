"""`tailrace engine replay`: run recordings of real servers through the engine, and show every difference."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.engine.replay import StreamResult

app = typer.Typer(help="The engine that makes change events of the oplog.", no_args_is_help=True)


@app.command()
def replay(
    recordings: Annotated[
        list[Path], typer.Argument(help="Files .jsonl or .jsonl.gz; an .extra file is read with its main file.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print counts per stream and operation type.")] = False,
) -> None:
    """Replay every stream of the recordings; exit code 1 when the engine disagrees with a server anywhere.

    Counted are the lines of the recordings: events, batches with their tokens, errors, and what resuming gave.
    """
    from tailrace.engine.recording import group_files, read_recording
    from tailrace.engine.replay import replay as replay_streams

    results = []
    for files in group_files(recordings):
        for result in replay_streams(read_recording(files)):
            results.append(result)
            if not as_json:
                for difference in result.differences:
                    typer.echo(str(difference))
    typer.echo(json.dumps(_report(results), indent=2) if as_json else _summary(results))
    if any(result.differences for result in results):
        raise typer.Exit(1)


def _summary(results: list[StreamResult]) -> str:
    skipped = sum((result.skipped for result in results), Counter[str]())
    reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(skipped.items()))
    return (
        f"{sum(result.identical for result in results)} identical, "
        f"{sum(len(result.differences) for result in results)} different, "
        f"{skipped.total()} skipped" + (f" ({reasons})" if reasons else "")
    )


def _report(results: list[StreamResult]) -> dict[str, object]:
    types = sum((result.operation_types for result in results), Counter[str]())
    return {
        "identical": sum(result.identical for result in results),
        "different": sum(len(result.differences) for result in results),
        "skipped": dict(sum((result.skipped for result in results), Counter[str]())),
        "operation_types": dict(sorted(types.items())),
        "streams": [
            {
                "recording": result.recording,
                "stream": result.stream,
                "identical": result.identical,
                "different": len(result.differences),
                "skipped": dict(result.skipped),
                "operation_types": dict(sorted(result.operation_types.items())),
                "differences": [
                    {"what": found.what, "server": found.server, "engine": found.engine} for found in result.differences
                ],
            }
            for result in results
        ],
    }
