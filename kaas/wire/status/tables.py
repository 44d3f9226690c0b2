"""Tables for people: of text for a terminal, of HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from kaas.ktask.draw import printable

if TYPE_CHECKING:
    from rich.table import Table  # rich takes time to import, and only programs that print tables need it

WIDEST = 10_000
"""Columns of text: a table is as wide as its cells, since a cut figure is wrong."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A table. notes: lines below it. troubles: further lines, about problems that a person should look at."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def rich(self) -> Table:
        """Return a table of rich. Control characters and markup in its cells, such as names of clients, are escaped."""
        from rich.table import Table

        table = Table(*map(_cell, self.columns), title=_cell(self.title))
        for row in self.rows:
            table.add_row(*map(_cell, row))
        return table

    @property
    def below(self) -> tuple[str, ...]:
        """Return notes and troubles, without control characters."""
        return tuple(map(printable, (*self.notes, *self.troubles)))

    def html(self) -> str:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*self.notes, *self.troubles))
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _cell(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def as_text(tables: Iterable[Shown]) -> str:
    """Return the tables as text for `print`."""
    from rich.console import Console
    from rich.markup import escape

    text = StringIO()
    console = Console(file=text, width=WIDEST, color_system=None, emoji=False)
    for table in tables:
        console.print(table.rich(), *map(escape, table.below), sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def as_html(tables: Iterable[Shown]) -> str:
    """Return the tables as HTML for a notebook."""
    return "".join(table.html() for table in tables)
