"""``rrr report`` and ``rrr list --paper`` as a user types them."""

from __future__ import annotations

import json

import pytest
from test_cli import DRIVER, TINY, assert_sentence, python, rrr

from rightreasons.config import resolve


@pytest.fixture(scope="module")
def asked(made_up, tmp_path_factory):
    """All words in one process, because each start costs seconds."""
    base = tmp_path_factory.mktemp("report")
    (base / "nothing").mkdir()
    config = resolve("glyphs-small", "er", TINY)
    made_up.make_run(base / "runs" / "er" / "0", config, 2)
    (base / "file").write_text("x")
    calls = {
        "page": ["report", "runs"],
        "elsewhere": ["report", "runs", "--out", "pages/mine.html", "--paper"],
        "paper": ["list", "--paper"],
        "nothing": ["report", "nothing"],
        "nowhere": ["report", "nowhere"],
        "none": ["report"],
        "blocked": ["report", "runs", "--out", "file/page.html"],
        "follow": ["report", "runs", "--follow"],
    }
    done = python("-c", DRIVER, json.dumps(list(calls.values())), cwd=base)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return base, dict(zip(calls, answers, strict=True))


def test_the_page_is_written_and_said(asked):
    base, answers = asked
    code, out, err = answers["page"]
    assert (code, err) == (0, "") and "page: runs/report/report.html" in out
    assert (base / "runs" / "report" / "tables" / "glyphs-small-final.csv").exists()
    assert "page: pages/mine.html" in answers["elsewhere"][1]
    assert (base / "pages" / "figures" / "glyphs-small-curves.png").exists()


def test_following_finished_runs_ends_at_once(asked):
    code, out, _ = asked[1]["follow"]
    assert code == 0 and "er/0  finished" in out and "all runs have ended" in out


def test_the_paper_is_listed(asked):
    code, out, _ = asked[1]["paper"]
    assert code == 0 and "RRR: rrr run cifar100-10 er+rrr --seeds 3" in out
    assert "10: 39.1 ± 1.1" in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "nothing holds no runs; pass a folder that rrr run or rrr compare wrote"),
        ("nowhere", "nowhere is not a folder"),
        ("none", "no folder of runs was given; type for example rrr report runs"),
        ("blocked", "something else is there; pass another --out"),
    ],
)
def test_bad_words_give_one_sentence(name, said, asked):
    code, _, err = asked[1][name]
    assert_sentence(code, err, said)


def test_the_demo_ends_with_the_page(tmp_path):
    code = (
        "import sys, rightreasons.sweep as sweep\n"
        "real = sweep.compare\n"
        f"sweep.compare = lambda b, m, w, **k: real(b, m, [*w, *{TINY}], **k)\n"
        "from rightreasons.cli import main\n"
        "sys.argv = ['rrr', 'demo', '--seeds', '1']\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "small.py").write_text(code)
    done = python("small.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("page: runs/demo/report/report.html")
    text = (tmp_path / "runs" / "demo" / "report" / "report.html").read_text("utf-8")
    assert "er+evidence against er" in text


def test_help_shows_an_example(tmp_path):
    done = rrr("report", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "Example: rrr report runs" in done.stdout
