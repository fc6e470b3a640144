"""`tailrace engine`: replay recordings of real servers, or prove the engine beside a live one."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.session import connected, session

if TYPE_CHECKING:
    from pymongo import MongoClient

    from tailrace.capture.source.source import ClusterAccess
    from tailrace.engine.replay import StreamResult

_SOCKET_MS = 20_000

app = typer.Typer(help="The engine that turns oplog entries into change events.", no_args_is_help=True)


@app.command()
def replay(
    recordings: Annotated[
        list[Path], typer.Argument(help="Files .jsonl or .jsonl.gz; an .extra file is read with its main file.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print counts per stream and operation type.")] = False,
) -> None:
    """Replay recorded streams through the engine; exit code 1 if it differs from the server anywhere.

    It counts lines of the recordings: events, batches with their tokens, errors, and the results of resuming.
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


@app.command()
def prove(
    uri: Annotated[str | None, typer.Option(help="A replica set, or a mongos (mongodb.uri).")] = None,
    minutes: Annotated[float, typer.Option(help="How long to compare.", min=0.01)] = 5.0,
    full_document: Annotated[str | None, typer.Option(help="updateLookup, whenAvailable or required.")] = None,
    full_document_before_change: Annotated[str | None, typer.Option(help="whenAvailable or required.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every kind, and both sides of each difference.")
    ] = False,
) -> None:
    """Compare the engine's events with the server's own for live writes; exit code 1 on a difference.

    Reads the whole deployment twice: by its own change stream, and by the engine from its oplog. It changes nothing,
    and needs the role `read` on the database `local` as well as the right to watch the cluster. The report can be
    attached to an issue; with --json it contains the documents of events that differ, after the field
    policy.

    On a cluster, each shard's events are compared with the shard's own stream; how a mongos merges them is not.
    """
    from tailrace.capture.source.oplog import OplogSource
    from tailrace.capture.source.source import ClusterAccess, ComparableSource, Selection, Start
    from tailrace.owned import run_together
    from tailrace.policy.configured import policy_of
    from tailrace.proof import Trial, TrustLedger, build_name, report

    settings = session.settings(mongodb__uri=uri)
    selection = Selection(full_document=full_document, full_document_before_change=full_document_before_change)
    with connected(settings, socketTimeoutMS=_SOCKET_MS) as client, ExitStack() as opened:
        access = ClusterAccess(settings.mongodb.uri.get_secret_value())
        ledger = TrustLedger(build_name(client.server_info()), settings.engine.matches, policy=policy_of(settings))
        trials = [
            Trial(
                ComparableSource(each, selection).open,
                OplogSource(each, selection, unproved=True).open,
                Start,
                ledger,
                looks_up=full_document == "updateLookup",
            )
            for each in _oplogs(client, access, opened)
        ]
        began = time.monotonic()
        failed = run_together([partial(trial.run, minutes * 60) for trial in trials], name="trial")
        seconds = time.monotonic() - began
    if failed:
        raise failed[0]
    failures = sum(trial.failures for trial in trials)
    found = report.as_json(ledger, seconds=seconds, failures=failures)
    typer.echo(json.dumps(found, indent=2) if as_json else report.as_text(found))
    if found["different"] or failures:
        raise typer.Exit(1)


def _oplogs(client: MongoClient[Any], access: ClusterAccess, opened: ExitStack) -> list[MongoClient[Any]]:
    """Give a client for each oplog there is: that of a replica set, or those of a cluster's shards."""
    from pymongo import MongoClient

    from tailrace.capture.source.cluster import shard_uris
    from tailrace.capture.source.oplog import OplogSource
    from tailrace.capture.source.source import Selection

    if not OplogSource(client, Selection(), access).is_cluster:
        return [client]
    uris = shard_uris(client, access).values()
    return [opened.enter_context(MongoClient[Any](uri, socketTimeoutMS=_SOCKET_MS)) for uri in uris]


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
