"""Learners on the command line: what is wrong ends with a sentence, code 2 and no run folder."""

from __future__ import annotations

import pytest
from inside import rrr
from refusals import TINY


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("icarl", "memory.size=3"), "type memory.size=4 or more"),
        (("bic+rrr", "memory.size=4", "stream.tasks=4"), "type memory.size=8 or more"),
        (("lwf", "lwf.temperature=0"), "lwf.temperature is 0.0, expected a number above 0"),
        (("eeil", "eeil.balanced.epoch=2"), "did you mean 'eeil.balanced.epochs'?"),
        (("ewc+evidence", "ewc.merge=onlin"), "did you mean 'online'?"),
    ],
)
def test_a_learner_that_cannot_work_is_refused(tmp_path, words, said):
    done = rrr("run", "glyphs-small", words[0], *TINY, *words[1:], cwd=tmp_path)
    assert done.code == 2 and not done.faults
    assert done.err.count("\n") == 1 and said in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()
