"""One table in four forms, with names that would break each of them."""

from __future__ import annotations

import csv
import io

from rightreasons.reports.table import Table

TABLE = Table("50 % <b>", ["method", "a|b"], [["er_x", "1 ± 2"], ["<i>", "$\\"]], "a note")


def test_markdown_escapes_pipes_and_tags():
    assert TABLE.markdown().splitlines() == [
        "**50 % &lt;b&gt;**", "", "| method | a\\|b |", "|---|--:|", "| er_x | 1 ± 2 |",
        "| &lt;i&gt; | $\\ |", "", "a note",
    ]  # fmt: skip


def test_latex_escapes_and_has_the_rules_of_booktabs():
    text = TABLE.latex()
    assert r"er\_x & 1 $\pm$ 2 \\" in text and r"$<$i$>$ & \$\textbackslash{} \\" in text
    assert r"\begin{tabular}{lr}" in text and text.startswith("% 50 % <b>\n")
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]


def test_csv_is_read_again():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [TABLE.head, *TABLE.rows]


def test_a_notebook_shows_text_and_not_tags():
    assert "<td>&lt;i&gt;</td>" in TABLE._repr_html_() and "<i>" not in TABLE._repr_html_()


def test_turned_has_rows_as_columns():
    turned = TABLE.turned()
    assert turned.head == ["", "er_x", "<i>"] and turned.rows == [["a|b", "1 ± 2", "$\\"]]
