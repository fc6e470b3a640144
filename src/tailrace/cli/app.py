"""The `tailrace` program: its verbs, its errors and its exit codes."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tailrace import __version__
from tailrace.cli import (
    check,
    dashboard,
    demo,
    engine,
    features,
    gaps,
    lookup,
    position,
    produce,
    recover,
    schema,
    serve,
    settings,
    snapshot,
    sql,
    stand,
    token,
    up,
    verify,
    warehouse,
    watch,
)
from tailrace.cli.session import session
from tailrace.errors import Outcome, TailraceError
from tailrace.settings import masked

HELP = """Change data capture for MongoDB, from the oplog to the lakehouse.

Start with [bold]tailrace demo[/bold]: it fetches and starts what it needs and shows live change events.
A name in parentheses behind a flag is the setting that the flag stands for.

Exit codes: 0 done; 1 a problem that the verb was asked to look for (a difference, a warning); 2 the same, critical;
64 wrong flags or settings; 69 a server does not answer, try again; 70 an error; 75 history is lost, run the recovery;
130 stopped by Ctrl-C.
"""

EXIT_USAGE = 64
EXIT_UNAVAILABLE = 69
EXIT_ERROR = 70
EXIT_HISTORY_LOST = 75
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(check.check)
app.command("dashboard")(dashboard.dashboard)
app.command("demo")(demo.demo)
app.command("features", help=features.HELP)(features.features)
app.command("gaps")(gaps.gaps)
app.command("lookup")(lookup.lookup)
app.command("produce")(produce.produce)
app.command("recover")(recover.recover)
app.command("serve")(serve.serve)
app.command("settings")(settings.settings)
app.command("sql")(sql.sql)
app.command("up", help=up.HELP)(up.up)
app.command("verify")(verify.verify)
app.command("watch")(watch.watch)
app.command("snapshot")(snapshot.snapshot)
app.add_typer(engine.app, name="engine")
app.add_typer(position.app, name="position")
app.add_typer(schema.app, name="schema")
app.add_typer(stand.app, name="stand")
app.add_typer(token.app, name="token")
app.add_typer(warehouse.app, name="warehouse")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _before_each_verb(
    config: Annotated[Path | None, typer.Option(help="Settings file; default tailrace.toml.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    session.config = config
    session.debug = debug


def main() -> None:
    """Run the program and end the process with the documented exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors become one line on stderr."""
    session.reset()
    try:
        code = app(arguments, prog_name="tailrace", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        if not error.format_message().strip():  # no arguments: the help is shown already
            return 0
        usage = getattr(getattr(error, "ctx", None), "command_path", None) or "tailrace"
        _complain("usage", error.format_message(), f"Run `{usage} --help`.")
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output went away: nothing to complain about
        return 0
    except TailraceError as error:
        if session.debug:
            traceback.print_exc()
        _complain(error.code, error.message, error.hint)
        return exit_code_of(error)
    except Exception as error:
        if session.debug:
            traceback.print_exc()
        _complain("unexpected", f"{type(error).__name__}: {error}", "Run it again with --debug and report it.")
        return EXIT_ERROR


def exit_code_of(error: TailraceError) -> int:
    """The exit code that tells a script what to do about the error."""
    if error.code == "settings-invalid":
        return EXIT_USAGE
    by_outcome = {
        Outcome.RETRY: EXIT_UNAVAILABLE,
        Outcome.RESUME: EXIT_UNAVAILABLE,
        Outcome.RECOVER: EXIT_HISTORY_LOST,
    }
    return by_outcome.get(error.outcome, EXIT_ERROR)


def _complain(code: str, message: str, hint: str) -> None:
    line = masked(f"error[{code}]: {message}").rstrip().rstrip(".")
    print(f"{line}. {hint}" if hint else line, file=sys.stderr)


if __name__ == "__main__":
    main()
