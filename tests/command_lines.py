"""Whether a command line is one that the program understands, by its own verbs and flags, without running it."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from tailrace.cli.app import app

PROGRAM: Any = typer.main.get_command(app)
FLAGS_OF_ALL = {"--help"} | {name for parameter in PROGRAM.params for name in parameter.opts}
MORE_OF_IT = {"...", "…", "VERB"}
"""What stands for a verb in a sentence."""


def complaint_about(line: str) -> str | None:
    """What is wrong with a line as a person writes it: comments, pipes and redirections do not count."""
    line = re.split(r"\s+#\s|\s[>|]|\s2>|\s&", line)[0]
    try:
        words = shlex.split(line)
    except ValueError:
        return None  # a sentence, with an apostrophe
    return complaint_about_words(words[1:])


def complaint_about_words(words: list[str]) -> str | None:
    """What is wrong with the words behind the program's name."""
    words = list(words)
    allowed = set(FLAGS_OF_ALL)
    while words and words[0] in ("--config", "--debug"):
        words = words[2:] if words[0] == "--config" else words[1:]
    command = PROGRAM
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
        allowed |= {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    default = getattr(command, "default_verb", None)
    if default is not None and words:  # what is no verb of the group is for this one
        command = command.commands[default]
        allowed |= {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    if command is PROGRAM and words and not words[0].startswith("-") and words[0] not in MORE_OF_IT:
        return f"no verb {words[0]}"
    wrong = [word for word in words if word.startswith("--") and word.split("=")[0] not in allowed]
    return f"no flag {wrong[0]}" if wrong else None
