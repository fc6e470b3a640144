"""`tailrace stand up|status|down`: real local servers in the background."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.flags import AsJson

if TYPE_CHECKING:
    from tailrace.stand.background import StandState

app = typer.Typer(help="Real local servers: MongoDB, Kafka, Redis, PostgreSQL.", no_args_is_help=True)


@app.command()
def up(
    servers: Annotated[
        list[str] | None, typer.Argument(help="mongodb, kafka, redis, postgres; default mongodb.")
    ] = None,
    mongodb_version: Annotated[str, typer.Option(help="4.2.6, 4.4.2, 5.0.4, 6.0.5 or 6.0.27.")] = "6.0.5",
    nodes: Annotated[int, typer.Option(help="Members of the replica set.", min=1, max=7)] = 1,
    as_json: AsJson = False,
) -> None:
    """Download missing servers, start them on loopback, and return once they are ready."""
    from tailrace.stand.background import StandPlan, bring_up

    plan = StandPlan(tuple(servers or ("mongodb",)), mongodb_version, nodes)
    _show(bring_up(plan), as_json)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the running servers with their addresses and logs; exit code 1 if none is running."""
    from tailrace.stand.background import read_state

    state = read_state()
    if state is None:
        typer.echo("[]" if as_json else "no stand is up; start one with `tailrace stand up`")
        raise typer.Exit(1)
    _show(state, as_json)


@app.command()
def settings() -> None:
    """Print settings for these servers as TOML: `tailrace stand settings > tailrace.toml`."""
    from tailrace.errors import StandError
    from tailrace.stand.background import read_state

    state = read_state()
    if state is None:
        raise StandError("no stand is up", hint="Start one with `tailrace stand up`.")
    sections: dict[str, list[str]] = {}
    for server in state.servers:
        section, _, key = server.setting.partition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(server.address)}")
        if server.name == "kafka":
            brokers = json.dumps(server.address.removeprefix("kafka://"))
            for job in ("features", "warehouse"):
                sections.setdefault(job, []).append(f"kafka_servers = {brokers}")
    typer.echo("\n\n".join("\n".join([f"[{section}]", *lines]) for section, lines in sections.items()))


@app.command()
def down() -> None:
    """Stop the servers and delete their data."""
    from tailrace.stand.background import take_down

    typer.echo("the stand is down" if take_down() else "no stand was up")


def _show(state: StandState, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(server) for server in state.servers], indent=2))
        return
    for server in state.servers:
        pids = ", ".join(str(pid) for pid in server.pids)
        typer.echo(
            f"{server.name:<9} {server.address}\n          setting {server.setting}, pid {pids}, log {server.log}"
        )
