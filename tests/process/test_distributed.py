"""One run in two processes: the same as in one, and what happens when they do not fit together."""

from __future__ import annotations

import numpy as np
import pytest
import ranks
import torch

WORDS = list(ranks.learners())


def in_two(folder, frozen, *words):
    processes = ranks.start(2, str(folder / "of"), frozen, *words)
    said = [process.communicate(timeout=600)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return [torch.load(folder / f"of-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """All learners, trained by two processes, as each of them has it."""
    return in_two(tmp_path_factory.mktemp("pair"), "frozen", *WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_two_processes_learn_what_one_learns(pair, word):
    alone, (first, second) = ranks.found(ranks.fit(word)), (rank[word] for rank in pair)
    for name, weight in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        torch.testing.assert_close(first["weights"][name], weight, rtol=0, atol=1e-10)
    assert torch.equal(first["index"], alone["index"])
    assert first["records"] == second["records"]
    for one, two in zip(alone["records"], first["records"], strict=True):
        assert one["accuracy"] == two["accuracy"]
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-8)
        np.testing.assert_allclose(two["drift"]["cosine"], one["drift"]["cosine"], atol=1e-8)
