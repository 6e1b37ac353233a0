"""Bad input: every command answers it with the sentence that docs/errors.md shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from inside import rrr
from refusals import page, refusals, world
from test_cli import rrr as process

from rightreasons.runfiles import Lock

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
ALL = [one for some in refusals().values() for one in some]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    world(folder, process)
    lock = Lock(folder / "busy")
    (folder / "busy" / "result.json").unlink()
    yield folder
    lock.free()


@pytest.mark.parametrize("one", ALL, ids=[one.words for one in ALL])
def test_bad_input_gets_its_sentence_and_changes_nothing(one, place, monkeypatch):
    monkeypatch.delenv("RRR_DATA", raising=False)
    before = times(place)
    answer = rrr(*one.typed(), cwd=place)
    assert answer.code == one.code, answer.err
    lines = (answer.err or answer.out).splitlines()
    said = lines[0].removeprefix("rrr: ")
    assert one.fits(said), said
    assert not answer.err or len(lines) == 1, answer.err
    assert not answer.faults
    if one.leaves:
        shutil.rmtree(place / one.leaves)
    assert times(place) == before


def times(place):
    return {path: path.stat().st_mtime_ns for path in sorted(place.rglob("*"))}


def test_no_command_is_listed_twice():
    """YAML would take the last of two equal titles, and say nothing."""
    lines = (Path(__file__).parent / "refusals.yaml").read_text("utf-8").splitlines()
    titles = [line for line in lines if line and line[0] not in "-# "]
    assert len(titles) == len(set(titles)) == len(refusals())


def test_the_page_is_what_the_tests_type():
    assert PAGE.read_text("utf-8") == page(), "docs/errors.md is old; type make errors"
