"""The paper's tables: cells typed from its LaTeX, commands, and what stands beside ours."""

from __future__ import annotations

import pytest

from rightreasons.config import resolve
from rightreasons.errors import UserError
from rightreasons.paper import listing, paper_tables
from rightreasons.reports.beside import beside
from rightreasons.reports.read import read

TABLES = {table.key: table for table in paper_tables()}


def row(key, name):
    return next(row for row in TABLES[key].rows if row.name == name)


def test_every_cell_with_a_deviation_is_there():
    assert sum(len(row.std) for table in paper_tables() for row in table.rows) == 721
    for table in paper_tables():
        assert all(len(row.mean) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize(
    ("key", "name", "column", "cell"),
    [  # read off the LaTeX source
        ("cub200_archs", "RN18-RRR-GCam", "11", "23.6 ± 0.7"),
        ("cub200_archs", "SQ-ER", "2", "33.2 ± 0.5"),
        ("cub200_methods", "TOPIC+RRR", "11", "29.2 ± 0.5"),
        ("cifar100_10", "ER", "10", "38.1 ± 1.1"),
        ("cifar100_10", "iTAML+RRR", "2", "92.3 ± 0.7"),
        ("cifar100_20", "EWC", "20", "9.44 ± 0.5"),
        ("imagenet100_10", "FT", "10", "9.9 ± 0.7"),
        ("pointing_game", "TOPIC+RRR", "PG-BWT", "-2.1"),
        ("pointing_game_precision_recall", "ER", "Pr_Ti", "68.9"),
    ],
)
def test_cells_are_those_of_the_paper(key, name, column, cell):
    assert row(key, name).cell(TABLES[key].columns.index(column)) == cell


@pytest.mark.parametrize(
    ("key", "name", "typed"),
    [
        ("cifar100_10", "RRR", "rrr run cifar100-10 er+rrr --seeds 3"),
        ("cifar100_20", "EWC+RRR", "rrr run cifar100-20 ewc+rrr --seeds 3"),
        ("cub200_archs", "Alex-ER",
         "rrr run cub200-11 er net.name=alexnet net.weights=FILE --seeds 3"),
        ("cub200_archs", "RN18-RRR-BP",
         "rrr run cub200-11 er+rrr rrr.explain=backprop net.weights=FILE --seeds 3"),
        ("cub200_methods", "JT", "rrr run cub200-11 joint net.weights=FILE --seeds 3"),
        ("pointing_game", "ER+RRR", "rrr run cub200-11 er+rrr net.weights=FILE --seeds 3"),
    ],
)  # fmt: skip
def test_commands(key, name, typed):
    assert TABLES[key].command(row(key, name)) == typed


def test_a_row_is_said_to_be_lacking_exactly_if_its_words_are_refused():
    for table in paper_tables():
        for one in table.rows:
            try:
                resolve(table.benchmark, one.method, one.words)
                runs = True
            except UserError:
                runs = False
            assert (table.lacking(one) == "") == runs
    assert TABLES["cifar100_10"].lacking(row("cifar100_10", "RRR")) == ""


def test_the_listing_has_every_row_with_its_command_and_cells():
    text = "\n".join(listing())
    for table in paper_tables():
        for one in table.rows:
            assert f"  {one.name}: {table.command(one)}" in text
    assert "20: 9.44 ± 0.5" in text and "PG-ACC: 54.0" in text


def runs(made_up, folder, benchmark, words=(), seeds=2, tasks=10, rename=None):
    for method in ("er", "er+rrr"):
        for seed in range(seeds):
            config = resolve(benchmark, method, words, seed)
            config["benchmark"] = rename or benchmark
            made_up.make_run(folder / method / str(seed), config, tasks, maps=False)
    return read([folder]).groups[0]


def test_ours_stands_beside_the_same_cells_with_the_differences(made_up, tmp_path):
    (part,) = beside(runs(made_up, tmp_path, "cifar100-10", ["train.epochs=2"]))
    assert [(line.label, one.name) for line, one in part.matches] == [
        ("er", "ER"),
        ("er+rrr", "RRR"),
    ]
    said = " ".join(part.apart)
    assert (
        "er was run with train.epochs=2" in said and "er: 2 seeds of ours, 3 of the paper's" in said
    )
    assert "no optimiser, rate or epochs for CIFAR-100" in said
    table = part.rows()
    assert [r[0] for r in table.rows] == [
        "er, ours", "ER, the paper", "er+rrr, ours", "RRR, the paper"
    ]  # fmt: skip
    assert table.rows[1][1] == "86.1 ± 1.2" and len(table.rows[0]) == 11
    names = [(name, whose) for name, whose, _ in part.curves()]
    assert names[:2] == [("er", "ours"), ("ER", "the paper")]


def test_imagenet_has_top_1_and_top_5(made_up, tmp_path):
    (part,) = beside(runs(made_up, tmp_path, "cifar100-10", rename="imagenet100-10", seeds=1))
    names = [r[0] for r in part.rows().rows]
    assert names[:3] == ["er, ours, top-1", "er, ours, top-5", "ER, the paper"]
    assert "does not say whether it reports top-1 or top-5" in " ".join(part.apart)


def test_cub_has_both_tables_and_the_pointing_game(made_up, tmp_path):
    parts = beside(runs(made_up, tmp_path, "cub200-11", tasks=11, seeds=3))
    assert [part.table.key for part in parts] == [
        "cub200_archs", "cub200_methods", "pointing_game", "pointing_game_precision_recall"
    ]  # fmt: skip
    assert [one.name for _, one in parts[0].matches] == ["RN18-ER", "RN18-RRR-GCam"]
    game = parts[2].rows().rows
    assert [r[0] for r in game[:3]] == [
        "er, ours, all classes", "er, ours, within the task", "ER, the paper"
    ]  # fmt: skip
    assert game[2][1:] == ["54.0", "-17.4"] and not parts[2].curves()
    assert any("2,864" in line for line in parts[0].apart)


def test_another_net_or_benchmark_is_no_cell_of_the_paper(made_up, tmp_path):
    assert beside(runs(made_up, tmp_path / "a", "glyphs-small", tasks=5, seeds=1)) == []
    group = runs(made_up, tmp_path / "b", "cub200-11", ["net.name=alexnet"], tasks=11, seeds=1)
    (arches, *_) = beside(group)
    assert [one.name for _, one in arches.matches] == ["Alex-ER", "Alex-RRR-GCam"]
