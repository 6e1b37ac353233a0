"""A table as plain rows of text, and the forms it is printed and written in."""

from __future__ import annotations

import csv
import html
import io
import re
from dataclasses import dataclass, field

from rich.table import Table as RichTable
from rich.text import Text

from rightreasons.errors import printable

_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
}


@dataclass
class Table:
    """``links`` name, row by row, what on the page a row leads to."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    links: list[str] = field(default_factory=list)

    def turned(self) -> Table:
        """Rows as columns."""
        head = [self.head[0] and "", *(row[0] for row in self.rows)]
        rows = [[self.head[i], *(row[i] for row in self.rows)] for i in range(1, len(self.head))]
        return Table(self.title, head, rows, self.note)

    def rich(self) -> RichTable:
        def text(cell: str) -> Text:  # a folder's name may look like markup
            return Text(printable(cell))

        table = RichTable(
            title=text(self.title),
            title_justify="left",
            title_style="bold",
            caption=text(self.note) if self.note else None,
            caption_justify="left",
        )
        for i, name in enumerate(self.head):
            table.add_column(text(name), justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(text, row))
        return table

    def markdown(self) -> str:
        def line(cells: list[str]) -> str:
            return (
                "| " + " | ".join(html.escape(c, False).replace("|", "\\|") for c in cells) + " |"
            )

        rule = "|" + "|".join("---" if not i else "--:" for i in range(len(self.head))) + "|"
        note = [html.escape(self.note, False), ""] if self.note else []
        rows = [line(row) for row in self.rows]
        title = html.escape(self.title, False)
        return "\n".join([f"**{title}**", "", line(self.head), rule, *rows, "", *note])

    def csv(self) -> str:
        """Comma-separated, the numbers as they are printed."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.head, *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """A ``tabular`` with the rules of booktabs."""
        lines = [
            f"% {_one_line(self.title)}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
            r"\toprule",
            _latex_row(self.head),
            r"\midrule",
            *(_latex_row(row) for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join([*lines, *([f"% {_one_line(self.note)}"] if self.note else []), ""])

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        """What a notebook shows."""

        def line(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        rows = "".join(line(row, "td") for row in self.rows)
        head = line(self.head, "th")
        return f"<table><caption>{html.escape(self.title)}</caption>{head}{rows}</table>"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _latex_row(cells: list[str]) -> str:
    return " & ".join(latex_text(cell) for cell in cells) + r" \\"


def latex_text(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<>±−]", lambda match: _LATEX[match.group()], text)
