"""The page and what lies beside it: complete, linked, escaped, and it says what is missing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from rightreasons.config import resolve
from rightreasons.errors import UserError
from rightreasons.reports import charts
from rightreasons.reports.evolution import gallery
from rightreasons.reports.read import read
from rightreasons.reports.view import page
from rightreasons.reports.write import place, report, slug, standing

EVIL = '<script>alert("x")</script> & "quoted" $5 </script>'


class Seen(HTMLParser):
    """Tags, ids, links and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.data, self.bare = [], [], [], {}, []
        self._script = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        if tag == "script":
            self._script = found.get("id") or f"script {len(self.data)}"
            self.data[self._script] = ""

    def handle_endtag(self, tag):
        self._script = None if tag == "script" else self._script

    def handle_data(self, data):
        if self._script is None:
            self.bare.append(data)
        else:
            self.data[self._script] += data

    @property
    def text(self):
        return " ".join(" ".join(self.bare).split())


def lay(made_up, folder, method, seed=0, words=(), benchmark="glyphs-small", tasks=3, **how):
    config = resolve(benchmark, method, ["stream.tasks=3", "stream.classes=6", *words], seed)
    return made_up.make_run(folder / method / str(seed), config, tasks, **how)


@pytest.fixture(scope="module")
def written(made_up, tmp_path_factory):
    """Two benchmarks, an unfinished run, a damaged record, a run without maps, an evil name."""
    folder = tmp_path_factory.mktemp("written") / "runs"
    names = [EVIL, "b", "c", "d", "e"]
    for method in ("er", "er+rrr"):
        for seed in (0, 1):
            lay(made_up, folder / "one", method, seed, names=names)
    lay(made_up, folder / "one", "er+evidence", 0, upto=2, names=names)
    lay(made_up, folder / "one", "er+logits", 0, maps=False)
    broken = lay(made_up, folder / "two", "er", 0, benchmark="glyphs-spurious")
    text = (broken / "records.jsonl").read_text("utf-8").splitlines()
    (broken / "records.jsonl").write_text("\n".join([*text[:2], text[2][:40]]), "utf-8")
    target = report(folder)
    return target, Seen(target.read_text("utf-8"))


def test_every_link_leads_somewhere_on_the_page(written):
    _, seen = written
    assert len(seen.ids) == len(set(seen.ids))
    assert all(link.startswith("#") and link[1:] in seen.ids for link in seen.links)


def test_every_row_of_a_table_of_runs_leads_to_config_and_command(written):
    _, seen = written
    commands = seen.text
    for typed in (
        "rrr run glyphs-small er+rrr stream.tasks=3 stream.classes=6 seed=1",
        "rrr run glyphs-spurious er stream.tasks=3 stream.classes=6",
    ):
        assert typed in commands
    assert seen.text.count("benchmark: glyphs-small") == 6
    rows = [a for tag, a in seen.tags if tag == "th" and a.get("scope") == "row"]
    assert len(seen.links) >= len(rows)  # every row header is a link, and the contents are more


def test_nothing_is_fetched(written):
    _, seen = written
    for tag, attributes in seen.tags:
        assert tag not in ("iframe", "object", "embed")
        address = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
        assert address is None or address.startswith("data:"), (tag, address)
    assert "url(" not in "".join(seen.bare)


def test_what_is_left_out_or_unfinished_is_said(written):
    _, seen = written
    assert "two/er/0/records.jsonl: the record of task 3 is left out" in seen.text
    assert (
        "Not finished, and so in no mean and no pair: one/er+evidence/0 (2 of 3 tasks)" in seen.text
    )
    assert "Without maps of these images: one/er+logits/0" in seen.text
    assert "7 runs of 2 benchmarks, 5 finished" in seen.text


def test_names_with_tags_in_them_stay_text(written):
    target, seen = written
    raw = target.read_text("utf-8")
    assert 'alert("x")' not in raw
    assert f"{EVIL}, test image 1 of task 1" in seen.text.replace("\n", " ")
    data = [json.loads(t) for t in seen.data.values() if '"pictures"' in t[:200] or '"looks"' in t]
    assert data[0]["pictures"][0]["title"].startswith(EVIL)
    assert list(data[0]["looks"]) == ["er", "er+rrr", "er+evidence"]


def test_charts_have_data_signals_and_words(written):
    _, seen = written
    spec = json.loads(seen.data["g1-accuracy-spec"])
    assert {p["name"] for p in spec["params"]} >= {"shown", "measure"}
    assert {row["q"] for row in spec["datasets"]["rows"]} == {"seen", "top5", "task", "pointing"}
    chart = next(a for tag, a in seen.tags if a.get("id") == "g1-accuracy")
    assert chart["role"] == "img" and "er from" in chart["aria-label"]


def test_tables_and_figures_lie_beside_the_page(written):
    target, _ = written
    names = {p.name for p in (target.parent / "tables").iterdir()}
    for stem in ("final", "pairs", "seen", "pointing", "drift", "costs", "settings", "runs"):
        assert {f"glyphs-small-{stem}.{kind}" for kind in ("md", "tex", "csv")} <= names
    figures = {p.name for p in (target.parent / "figures").iterdir()}
    for stem in ("curves", "drift", "R-er+rrr", "evolution", "pointing-er"):
        assert {f"glyphs-small-{stem}.{kind}" for kind in ("svg", "png")} <= figures
    assert not [name for name in names | figures if "partial" in name]


def test_writing_again_gives_the_same_page(written):
    target, _ = written
    before = target.read_bytes()
    assert report(target.parent.parent) == target and target.read_bytes() == before


def test_without_the_extra_the_curves_are_pictures(made_up, tmp_path, monkeypatch):
    lay(made_up, tmp_path / "runs", "er")
    monkeypatch.setattr(charts, "available", lambda: False)
    seen = Seen(report(tmp_path / "runs", tmp_path / "page.html").read_text("utf-8"))
    pictures = [a for tag, a in seen.tags if tag == "img"]
    assert len(pictures) == 12  # four of accuracy, three of the drift, five of costs
    assert all(a["src"].startswith("data:image/svg+xml;base64,") and a["alt"] for a in pictures)
    assert not [a["alt"] for a in pictures if "nan" in a["alt"]]  # CPU time of a shared first task
    assert not [a for tag, a in seen.tags if "chart" in (a.get("class") or "").split()]


@pytest.mark.parametrize("interactive", [True, False])
def test_the_paper_stands_beside_with_the_differences_above(
    interactive, made_up, tmp_path, monkeypatch
):
    monkeypatch.setattr(charts, "available", lambda: interactive)
    for method in ("er", "er+rrr"):
        config = resolve("cifar100-10", method)
        made_up.make_run(tmp_path / "runs" / method, config, 10, maps=False)
    lay(made_up, tmp_path / "runs" / "g", "er", maps=False)
    target = report(tmp_path / "runs", tmp_path / "page.html", paper=True)
    raw = target.read_text("utf-8")
    seen = Seen(raw)
    assert "These are two protocols, not one." in seen.text
    assert raw.index("What is not the same") < raw.index("RRR, the paper</th>")
    assert "No table of the paper has the cells of these runs" in seen.text
    assert ("g1-paper-1-spec" in seen.data) == interactive
    assert (tmp_path / "tables" / "cifar100-10-paper-cifar100_10.tex").exists()
    assert (tmp_path / "figures" / "cifar100-10-paper-cifar100_10.svg").exists()


def test_the_page_of_20_runs_of_20_tasks_is_below_5_megabytes(made_up, tmp_path):
    text = page(read([made_up.make_runs(tmp_path / "runs", 5)]))
    assert len(text.encode()) < 5e6


def test_where_the_page_goes(tmp_path):
    assert place([tmp_path], None) == tmp_path / "report" / "report.html"
    assert place([tmp_path], tmp_path / "x") == tmp_path / "x" / "report.html"
    assert place([tmp_path], tmp_path / "x.html") == tmp_path / "x.html"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="something else is there"):
        place([tmp_path], tmp_path / "file" / "page.html")
    with pytest.raises(UserError, match="no folder of runs was given"):
        place([], None)


def test_words_on_the_page_are_the_formulas(written):
    _, seen = written
    assert re.search(r"1/\(T.1\) Σ R\[T, i\]", seen.text)


def test_a_run_that_is_behind_hides_no_picture(made_up, tmp_path):
    lay(made_up, tmp_path / "runs", "er", upto=1)
    lay(made_up, tmp_path / "runs", "er+rrr")
    (found,) = read([tmp_path / "runs"]).groups
    seen = gallery(found)
    assert {picture.place[0] for picture in seen.pictures} == {0, 1, 2}
    assert {place[0] for place in seen.looks["er"]} == {0}
    assert {place[0] for place in seen.looks["er+rrr"]} == {0, 1, 2}


def unknown_before(folder, task):
    """As a run that was extended without its old images: of old tasks nothing is known."""
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for record in records[task:]:
        for how in record["accuracy"]:
            record["accuracy"][how][:task] = [None] * task
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def test_runs_whose_old_images_are_gone_have_a_page(made_up, tmp_path):
    for seed in (0, 1):
        unknown_before(lay(made_up, tmp_path / "runs", "er", seed, maps=False, masks=False), 2)
    target = report(tmp_path / "runs")
    seen = (target.parent / "tables" / "glyphs-small-seen.csv").read_text("utf-8").splitlines()
    assert seen[1].startswith("er,") and " ± " in seen[1] and seen[1].endswith(",")
    assert "nan" not in Seen(target.read_text("utf-8")).text.lower().split()
    assert "accuracy on all classes seen unknown" in standing(read([tmp_path / "runs"]).runs[0])


def test_runs_with_masks_and_without_stand_in_one_table(made_up, tmp_path):
    """CUB's masks may have come after the first run."""
    lay(made_up, tmp_path / "runs", "er", maps=False, masks=False)
    lay(made_up, tmp_path / "runs", "er+rrr", maps=False)
    target = report(tmp_path / "runs")
    game = (target.parent / "tables" / "glyphs-small-pointing.csv").read_text("utf-8").splitlines()
    assert set(game[1].split(",")) == {"er", ""} and "" not in game[2].split(",")[:3]


def test_names_without_latin_letters_get_files_of_their_own():
    made = []
    for title in ("птицы", "рыбы", "fish"):
        made.append(slug(title, made))
    assert made == ["runs", "runs-2", "fish"]
