"""Rows for people and programs: a plain table, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table

WIDTH_OF_A_PIPE: Final = 10_000
"""Wide enough for every line: what reads a pipe cannot make its window wider."""

Row = Sequence[Any]


def console_for_tables() -> Console:
    """Give the terminal's width to a person, and a whole line to a program, which would get names cut off."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_A_PIPE)


def print_json(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print one JSON object per row."""
    for row in rows:
        typer.echo(json.dumps(dict(zip(columns, row, strict=True)), default=_plain, ensure_ascii=False))


def print_csv(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print CSV with a line of names; documents and arrays are JSON, null is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([shown(value) for value in row] for row in rows)


def print_rows(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a table where it fits; else one value a line, since columns of three letters help nobody."""
    console = console_for_tables()
    texts = [[shown(value).replace("\n", "\\n") for value in row] for row in rows]
    if not console.is_terminal or _width(columns, texts) <= console.width:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for number, name in enumerate(columns):
            are_numbers = all(_is_number(row[number]) for row in rows) and bool(rows)
            table.add_column(name, justify="right" if are_numbers else "left", no_wrap=True)
        for text in texts:
            table.add_row(*text)
        console.print(table, highlight=False, markup=False, soft_wrap=not console.is_terminal)
        return
    widest = max(map(len, columns))
    for number, text in enumerate(texts, 1):
        console.print(f"row {number}", style="bold")
        for column, value in zip(columns, text, strict=True):
            console.print(f"  {column:{widest}}  {value}", soft_wrap=True, highlight=False, markup=False)


def shown(value: Any) -> str:
    """Give a value as one text: bytes in hexadecimal digits, documents and arrays as JSON, null as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "asDict"):  # a row of Spark's
        return value.asDict(recursive=True)
    return str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Give how wide a table of these would be, with two spaces between the columns."""
    return sum(max(map(len, column)) + 2 for column in zip(columns, *rows, strict=True))
