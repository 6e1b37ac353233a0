"""A study as data: the runs it means, their order, and what is refused."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from rightreasons.errors import UserError
from rightreasons.paper import paper_tables
from rightreasons.study.drive import Folders, _pretended
from rightreasons.study.plan import DEFAULT, Study, load, studies
from rightreasons.study.records import find_all
from rightreasons.study.tune import read_chosen

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def shipped():
    return load(DEFAULT)


def test_runs_come_seed_by_seed_and_cheap_benchmarks_first(shipped):
    runs = shipped.runs("methods", _pretended(shipped, {}))
    assert [seed for seed, _ in groupby(run.seed for run in runs)] == shipped.seeds
    first = [run for run in runs if run.seed == shipped.seeds[0]]
    order = [benchmark for benchmark, _ in groupby(run.benchmark for run in first)]
    assert order == ["glyphs-spurious", "tiny-small", "cub200-small", "cifar100-small"]
    assert [run.row for run in first[:3]] == ["er", "er+rrr", "er+evidence"]
    assert len({run.place for run in runs}) == len(runs) == 6 * 4 * 5


def test_tuning_is_the_same_for_all_sides_and_shares_no_class_with_results(shipped):
    for part, sides in shipped.sides.items():
        assert {len(side.tries) for side in sides.values()} == {5}
        runs = shipped.runs(f"tuning-{part}", {})
        for name in sides:
            own = [run for run in runs if run.row.rpartition(" ")[0] == name]
            assert {run.seed for run in own} == set(shipped.tuning_seeds(part))
    chosen = _pretended(shipped, {})
    tuned = {r.benchmark: r.config["stream"] for r in shipped.runs("tuning-methods", {})}
    for run in shipped.runs("methods", chosen):
        if run.seed == 0 and run.method == "er":
            pools = run.config["stream"]["pools"]
            used, mine = tuned[run.benchmark]["pool"], run.config["stream"]["pool"]
            assert (used, mine) == ("tuning", "results")
            assert not set(pools["tuning"]) & set(pools["results"])
            assert tuned[run.benchmark]["validation"] > run.config["stream"]["validation"] == 0


@pytest.mark.parametrize("name", studies())
def test_every_row_and_side_of_a_shipped_study_is_a_config(name):
    study = load(name)
    chosen = _pretended(study, {})
    for part in study.names:
        for run in study.runs(part, chosen):
            if run.seed in (0, 100):
                assert run.config["train"]["threads"] == 1
    tables = {table.key: {row.name for row in table.rows} for table in paper_tables()}
    for rows in study.rows.values():
        for row in rows.values():
            for table, *names in row.paper.values():
                assert set(names) <= tables[table]


@pytest.mark.parametrize("name", studies())
def test_defaults_may_change_but_the_runs_of_shipped_records_do_not(name):
    """Presets name what their results were made with: a record of another config is refused."""
    study, folders = load(name), Folders(Path("runs"), RESULTS / "records")
    chosen = _pretended(study, read_chosen(folders.chosen(name)))
    found = {}
    for part in study.names:
        runs = study.runs(part, chosen)
        found |= find_all(folders.records, [run for run in runs if run.seed == runs[0].seed])
    assert found


def test_no_two_shipped_studies_share_a_record_a_choice_or_a_page():
    places: list[str] = []
    for name in studies():
        study, folders = load(name), Folders(Path("runs"), Path("results/records"))
        chosen = _pretended(study, {})
        places += {run.place for part in study.names for run in study.runs(part, chosen)}
        places += [folders.chosen(name).name, folders.page(name).name]
    assert len(places) == len(set(places))
    assert Folders(Path("runs"), Path("results/records")).page(DEFAULT) == Path("results/README.md")


def test_words_of_a_study_go_where_the_term_is_and_give_way_to_others(tiny):
    tiny["words"] = ["rrr.dtype=uint8", "rrr.weight=7"]
    study = Study("tiny", tiny)
    for part in study.names:
        for run in study.runs(part, {"glyphs-spurious": {"rrr": 0.1}}):
            assert ("rrr.dtype=uint8" in run.words) == (run.method == "er+rrr")
            if run.method == "er+rrr":
                assert run.config["rrr"]["dtype"] == "uint8" and run.config["rrr"]["weight"] < 7


def test_a_part_may_have_seeds_of_its_own(tiny):
    first, *_ = tiny["parts"].values()
    first["seeds"] = [7]
    study = Study("tiny", tiny)
    own, *others = study.parts
    chosen = _pretended(study, {})
    assert {run.seed for run in study.runs(own, chosen)} == {7}
    assert all({run.seed for run in study.runs(p, chosen)} == set(study.seeds) for p in others)


def test_a_row_takes_words_and_value_of_its_side(tiny):
    tiny["parts"]["methods"]["sides"]["rrr"]["words"] = ["rrr.view=canonical"]
    study = Study("tiny", tiny)
    run = study.runs("methods", {"glyphs-spurious": {"rrr": 0.5}})[1]
    assert run.config["rrr"]["weight"] == 0.5 and run.config["rrr"]["view"] == "canonical"
    with pytest.raises(UserError, match="nothing is chosen yet for rrr on glyphs-spurious.*type"):
        study.runs("methods", {})


def test_numbers_may_be_written_as_yaml_takes_for_words(tiny):
    tiny["parts"]["methods"]["sides"]["rrr"]["tries"] = ["1e-3", 1]
    runs = Study("tiny", tiny).runs("tuning-methods", {})
    assert {run.config["rrr"]["weight"] for run in runs if "rrr" in run.config} >= {0.001, 1.0}


def test_only_takes_parts_and_their_tuning(shipped):
    assert shipped.select(["tuning"]) == [n for n in shipped.names if n.startswith("tuning-")]
    assert shipped.select(["controls", "tuning-methods"]) == ["tuning-methods", "controls"]
    assert shipped.select([]) == shipped.names
    assert load("fewshot").select(["birds"]) == ["birds"]  # and not birds-learning
    with pytest.raises(UserError, match="did you mean 'controls'"):
        shipped.select(["control"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("seeds"), "tiny.seeds is missing"),
        (
            lambda s: s["parts"]["methods"]["sides"]["rrr"].update(tries=["much"]),
            "tiny.parts.methods.sides.rrr.tries is 'much', expected a number",
        ),
        (lambda s: s["parts"]["methods"].update(row={}), "unknown key 'tiny.parts.methods.row'"),
        (lambda s: s["parts"]["methods"]["rows"]["er"].update(tuned="rr"), "did you mean 'rrr'"),
        (lambda s: s["parts"]["methods"]["rows"]["er"].update(against=["x"]), "unknown row"),
        (
            lambda s: s["parts"]["methods"].update(figure={"er": ["x"]}),
            "unknown row of part methods",
        ),
        (
            lambda s: s["parts"]["methods"].update(figure={"er": None}),
            "tiny.parts.methods.figure.er is None, expected the rows",
        ),
        *(
            (lambda s, given=given: s["parts"]["methods"]["rows"]["er"].update(paper=given), says)
            for given, says in (
                ({"glyphs": ["x"]}, r"rows.er.paper.glyphs is \['x'\], expected \[table, row"),
                ({"glyphs": ["x", "ER", "ER"]}, "unknown tiny.parts.methods.rows.er.paper.glyphs"),
                ({"glyphs": [paper_tables()[0].key, "none", "ER"]}, "unknown .* 'none'"),
            )
        ),
        (lambda s: s["parts"]["methods"].update(benchmarks=["glyphs"]), "unknown benchmark"),
        (lambda s: s["parts"].update(more=s["parts"]["methods"]), "two sides 'rrr'"),
        (lambda s: s["parts"].update(tuning2=s["parts"].pop("methods")), "parts of tries"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tiny, change, says):
    change(tiny)
    with pytest.raises(UserError, match=says):
        Study("tiny", tiny)


def test_names_that_would_have_one_folder_are_refused(tiny):
    rows = tiny["parts"]["methods"]["rows"]
    rows |= {"er lr=1": {"method": "er"}, "er (lr=1)": {"method": "er"}}
    with pytest.raises(UserError, match="'er lr=1' and 'er \\(lr=1\\)' have one folder"):
        Study("tiny", tiny)


def test_a_tried_value_counts_once(tiny):
    tiny["parts"]["methods"]["sides"]["rrr"]["tries"] = [0.1, 1, 1.0]
    with pytest.raises(UserError, match="tries of rrr: '1' and '1' have one folder"):
        Study("tiny", tiny)


def test_a_file_with_the_name_of_a_shipped_study_does_not_take_its_results(tmp_path):
    (tmp_path / "reasons.yaml").write_text(studies()["reasons"], "utf-8")
    with pytest.raises(UserError, match="whose results it would take; rename it"):
        load(str(tmp_path / "reasons.yaml"))
    (tmp_path / "mine.yaml").write_text(studies()["reasons"], "utf-8")
    assert load(str(tmp_path / "mine.yaml")).name == "mine"


def test_a_study_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="unknown study 'reason'; did you mean 'reasons'"):
        load("reason")
    (tmp_path / "bad.yaml").write_text("a: [", "utf-8")
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(tmp_path / "bad.yaml"))
    (tmp_path / "latin.yaml").write_bytes("a: é".encode("latin-1"))
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(tmp_path / "latin.yaml"))
