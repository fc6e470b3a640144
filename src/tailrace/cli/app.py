"""The `tailrace` program: its verbs, its errors and its exit codes."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from tailrace import __version__, kernel, server_codes
from tailrace.cli import (
    check,
    dashboard,
    demo,
    doctor,
    engine,
    features,
    gaps,
    init,
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
from tailrace.cli import help as groups
from tailrace.cli.failures import error_for
from tailrace.cli.flags import refuse_huge_numbers
from tailrace.cli.session import session
from tailrace.errors import (
    AuditUnavailable,
    LeaseLost,
    MissingExtra,
    Outcome,
    SettingsError,
    StreamRefused,
    TailraceError,
)
from tailrace.masking import masked
from tailrace.settings_types import plain_reason

HELP = """Change data capture for MongoDB, from the oplog to the lakehouse.

Start with [bold]tailrace demo[/bold]: it downloads and starts what it needs and shows live change events.

A name in parentheses after a flag is the setting that the flag overrides.

Exit codes: 0 success; 1 the command found a problem (a difference, a warning); 2 a critical one; 64 invalid flags or
settings, or an extra is missing; 69 a server does not answer, try again; 70 an unexpected error; 75 history is lost,
recover; 78 something else has to be changed first; 130 stopped by Ctrl-C.
"""

_GLOBAL_SWITCHES = {"--debug", "--verbose", "-v"}
_GLOBAL_VALUES = {"--config", "--log-level"}

EXIT_USAGE = 64
EXIT_UNAVAILABLE = 69
EXIT_ERROR = 70
EXIT_HISTORY_LOST = 75
EXIT_STOP = 78
EXIT_INTERRUPTED = 130

groups.shorten_types()
groups.show_whole_flags()
app = typer.Typer(
    help=groups.flowing(HELP),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", rich_help_panel=groups.TRY)(demo.demo)
app.command("up", help=up.HELP, rich_help_panel=groups.TRY)(up.up)
app.command("watch", rich_help_panel=groups.STREAMS)(watch.watch)
app.command("serve", rich_help_panel=groups.STREAMS)(serve.serve)
app.command("produce", rich_help_panel=groups.CAPTURE)(produce.produce)
app.command("snapshot", rich_help_panel=groups.CAPTURE)(snapshot.snapshot)
app.command("recover", rich_help_panel=groups.CAPTURE)(recover.recover)
app.command("verify", rich_help_panel=groups.CAPTURE)(verify.verify)
app.command("lookup", rich_help_panel=groups.PIPELINES)(lookup.lookup)
app.command("sql", rich_help_panel=groups.PIPELINES)(sql.sql)
app.command("init", rich_help_panel=groups.OPERATE)(init.init)
app.command("doctor", rich_help_panel=groups.OPERATE)(doctor.doctor)
app.command("check", rich_help_panel=groups.OPERATE)(check.check)
app.command("gaps", rich_help_panel=groups.OPERATE)(gaps.gaps)
app.command("dashboard", rich_help_panel=groups.OPERATE)(dashboard.dashboard)
app.command("settings", rich_help_panel=groups.OPERATE)(settings.settings)
app.add_typer(features.app, name="features", rich_help_panel=groups.PIPELINES)
app.add_typer(engine.app, name="engine", rich_help_panel=groups.STREAMS)
app.add_typer(position.app, name="position", rich_help_panel=groups.CAPTURE)
app.add_typer(schema.app, name="schema", rich_help_panel=groups.PIPELINES)
app.add_typer(stand.app, name="stand", rich_help_panel=groups.TRY)
app.add_typer(token.app, name="token", rich_help_panel=groups.STREAMS)
app.add_typer(warehouse.app, name="warehouse", rich_help_panel=groups.PIPELINES)
groups.let_paragraphs_flow(app)
refuse_huge_numbers(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailrace {__version__}, {kernel.description()}")
        raise typer.Exit


@app.callback()
def _before_each_verb(
    config: Annotated[Path | None, typer.Option(help="Settings file; default: tailrace.toml.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    log_level: Annotated[
        str | None, typer.Option(help="Minimum log level: debug, info, warning or error (log.level).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Same as --log-level debug.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    session.config = config
    session.debug = debug
    session.log_level = "debug" if verbose else log_level


def main() -> None:
    """Run the program and end the process with the documented exit code."""
    hide_secrets_of_arguments()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors become one line on stderr."""
    session.reset()
    try:
        code = _command()(globals_first(arguments), prog_name="tailrace", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        if not error.format_message().strip():  # no arguments: the help is shown already
            return 0
        usage = getattr(getattr(error, "ctx", None), "command_path", None) or "tailrace"
        _report_error("usage", plain_reason(error.format_message()), f"Run `{usage} --help`.")
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output went away: that is no error
        return 0
    except Exception as error:
        if session.debug:
            traceback.print_exc()
        known = error_for(error)
        if known is not None:
            _report_error(known.code, known.message, known.hint)
            return exit_code_of(known)
        _report_error("unexpected", f"{type(error).__name__}: {error}", "Run it again with --debug and report it.")
        return EXIT_ERROR


@functools.cache
def _command() -> Callable[..., object]:
    """Make the verbs of their functions once; Typer would for every command line."""
    return get_command(app)


def globals_first(arguments: list[str]) -> list[str]:
    """Let the flags of all verbs stand behind the verb too: bring them to the front."""
    first, rest = [], []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _GLOBAL_SWITCHES or (word.split("=")[0] in _GLOBAL_VALUES and "=" in word):
            first.append(word)
        elif word in _GLOBAL_VALUES:
            first += [word, *itertools.islice(words, 1)]
        else:
            rest.append(word)
    return [*first, *rest]


_BY_OUTCOME = {
    Outcome.RETRY: EXIT_UNAVAILABLE,
    Outcome.RESUME: EXIT_UNAVAILABLE,
    Outcome.RECOVER: EXIT_HISTORY_LOST,
    Outcome.STOP: EXIT_STOP,
}
_MENDED_BY_A_RESTART = (LeaseLost, AuditUnavailable)
"""Errors that end what the process was doing, and not the next start: it waits as a standby, or its broker is back."""


def exit_code_of(error: TailraceError) -> int:
    """The exit code that tells a script, or whoever supervises the process, what to do about the error."""
    if isinstance(error, SettingsError | MissingExtra):
        return EXIT_USAGE
    if isinstance(error, _MENDED_BY_A_RESTART):
        return EXIT_UNAVAILABLE
    if type(error) is StreamRefused and _may_pass(error.server_code):
        return EXIT_ERROR
    return _BY_OUTCOME[error.outcome]


def _may_pass(server_code: int) -> bool:
    """Whether nobody knows what a server's error means: a stream must not stay stopped for one that passes.

    Codes of five digits and more are those of single checks, most of them of what was asked.
    """
    return 0 < server_code < 10_000 and server_code not in server_codes.FOR_A_PERSON


def _report_error(code: str, message: str, hint: str) -> None:
    line = masked(f"error[{code}]: {message}").rstrip().rstrip(".")
    print(f"{line}. {hint}" if hint else line, file=sys.stderr)


_ARG_START, _ARG_END = 47, 48
"""Where the memory of the arguments begins and ends: fields of /proc/self/stat, counted from 0."""


def hide_secrets_of_arguments() -> None:
    """Overwrite secrets in this process's own arguments with stars; does nothing where there is no /proc.

    They are seen there from the start of the process until this is called: secrets belong in files.
    """
    shown = [masked(argument) for argument in sys.argv]
    if shown == sys.argv:
        return
    try:
        arguments = Path("/proc/self/cmdline").read_bytes()
        # The second field is the program's name, in brackets, and may have spaces in it.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[index - 2]) for index in (_ARG_START, _ARG_END))
    except (OSError, ValueError, IndexError):
        return
    hidden = without_secrets(arguments)
    if 0 < len(hidden) <= end - start:
        ctypes.memmove(start, hidden, len(hidden))


def without_secrets(arguments: bytes) -> bytes:
    """Give the arguments, each ended by a zero, with secrets hidden and of the same length altogether."""
    kept = b"\0".join(masked(each.decode(errors="surrogateescape")).encode(errors="surrogateescape")
                      for each in arguments.split(b"\0"))  # fmt: skip
    return kept[: len(arguments)].ljust(len(arguments), b"\0")


if __name__ == "__main__":
    main()
