"""rrr bench: what is timed is what it says, and fast ways equal slow ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import rightreasons as rr
from rightreasons.bench import bench, loops, parts
from rightreasons.bench.pairs import Ratio, alternate, compare, flops, ratio
from rightreasons.bench.rig import begun, epochs, pictures, steps
from rightreasons.bench.table import Row, Section, head, lines, show
from rightreasons.errors import UserError
from rightreasons.registry import LEARNERS


def test_pairs_take_turns():
    said = []
    times = alternate(lambda: said.append("a"), lambda: said.append("b"), 4, warm=1)
    assert "".join(said) == "ab" + "abba" * 2
    assert len(times) == 4


def test_the_ratio_is_that_of_medians():
    assert ratio([(1.0, 2.0), (1.0, 2.0), (100.0, 2.0)]).value == 2.0
    draw = torch.Generator().manual_seed(0)
    noise = 1 + 0.05 * torch.rand(200, 2, generator=draw)
    found, low, high = ratio([(a, 1.5 * b) for a, b in noise.tolist()])
    assert low < found < high and found == pytest.approx(1.5, rel=0.01) and high - low < 0.03


def test_what_takes_twice_as_long_is_seen():
    x = torch.randn(300, 300)

    def work(times: int) -> None:
        for _ in range(times):
            x @ x

    assert compare(lambda: work(8), lambda: work(40), 15).value > 2


def test_operations_are_counted_forward_and_backward():
    w = torch.randn(3, 5, requires_grad=True)
    x = torch.randn(2, 3, requires_grad=True)
    assert flops(lambda: x @ w) == 2 * 2 * 3 * 5
    assert flops(lambda: (x @ w).sum().backward()) == 3 * 2 * 2 * 3 * 5


def test_rows_say_whether_the_bar_holds_and_where_time_and_operations_part():
    good = Row("a", Ratio(1.0, 0.9, 1.1), 1.05, 1.0).cells()
    assert good == ["a", "1.0000", "1.000", "0.900 to 1.100", "1.050 yes"]
    bad = Row("b", Ratio(1.2, 1.1, 1.3), 1.05, 1.0).cells()
    assert bad[2:] == ["1.200 *", "1.100 to 1.300", "1.050 NO"]
    assert Row("c", Ratio(0.01, 0.01, 0.02), 1 / 50).cells()[2:] == [
        "1/100", "1/100 to 1/50", "1/50 yes"
    ]  # fmt: skip


def test_the_table_is_markdown():
    rows = [Row("a", Ratio(1.0, 0.9, 1.1))]
    said = [*head(7), *lines(Section("title", lambda pairs: iter(rows)), 7)]
    assert "7 alternated pairs" in said[0] and torch.__version__ in said[0]
    assert {line.count("|") for line in said[2:]} == {6}
    assert said[-1] == "| a | | 1.000 | 0.900 to 1.100 | |"


def test_the_loop_by_hand_makes_the_same_multiplications_as_ours():
    data = pictures([4, 2], 6, train=6)
    loop = begun(rr.ER(memory=rr.Memory(12)), "resnet8", data, 1, 4, learn=False)
    assert flops(steps(loop, 1)) == flops(loops.by_hand("resnet8", data, loop, 4))


def test_explanation_replay_in_the_shared_view_costs_no_multiplications():
    data = pictures([9, 1], 10, train=2)

    def counted(*terms: rr.Term) -> int:
        learner: rr.Learner = rr.ER(memory=rr.Memory(20))
        for term in terms:
            term.rows = 2
            learner = learner + term
        return flops(steps(begun(learner, "resnet18-cifar", data, 1, 2, learn=False), 1))

    plain = counted()
    assert round(counted(rr.RRR(target="last_block", view="shared")) / plain, 2) == 1.00
    assert counted(rr.RRR()) / plain > 1.4  # a forward of its own for as many rows


def test_a_rig_stands_where_a_run_would():
    data = pictures(3, 6, train=4)
    loop = begun(rr.LwF(), "resnet8", data, 2, 4, learn=True)
    assert loop.net.classes == 6 and loop.net.training
    assert loop.learner.teacher_.classes == 4
    recipe = rr.ER(memory=rr.Memory(12))
    kept = begun(recipe, "resnet8", data, 2, 4, learn=False)
    assert kept.memory.tensor("y").unique().tolist() == [0, 1, 2, 3]
    assert len(recipe.memory) == 0  # it may stand in another rig


def test_an_epoch_is_an_epoch():
    data = pictures(2, 4, train=5)
    loop = begun(rr.ER(memory=rr.Memory(8)), "resnet8", data, 1, 4, learn=False)
    call = epochs(loop, 1)
    assert call() == [0, 0, 0]  # 10 images by 4
    assert call() == [1, 1, 1]


def test_herding_picks_what_the_literal_loop_picks():
    draw = torch.Generator().manual_seed(3)
    z, y = torch.randn(90, 8, generator=draw), torch.arange(3).repeat_interleave(30)
    from rightreasons.memory import herd

    assert herd(z, y, 5).tolist() == parts.herd_literally(z, y, 5).tolist()


def test_fisher_of_a_batch_is_the_literal_one():
    from rightreasons.learners.fisher import fisher
    from rightreasons.types import Batch

    draw = torch.Generator().manual_seed(0)
    net = rr.net("resnet8")
    net.grow(3, draw)
    net.double().eval()
    y = torch.tensor([0, 1, 2])
    x = torch.randn(3, 3, 32, 32, generator=draw, dtype=torch.float64)
    batch = Batch(x, y, y, y)
    ours, literal = fisher(net, [batch]), parts.fisher_literally(net, batch)
    for name, value in literal.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-12)


def test_sections_print_as_typed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("rightreasons.bench.process.cpu", lambda words: 0.25)
    bench(["start"], 3, tmp_path / "table.md")
    said = capsys.readouterr().out
    assert said == (tmp_path / "table.md").read_text()
    assert len(said.splitlines()) >= 6


def test_a_table_is_gone_on_with(tmp_path, capsys):
    measured = []

    def section(name):
        def rows(pairs):
            measured.append(name)
            yield Row(f"row of {name}", Ratio(1.0, 0.9, 1.1))

        return Section(f"title of {name}", rows)

    sections = {name: section(name) for name in "abc"}
    out = tmp_path / "table.md"
    show(sections, ["b"], 7, out)
    show(sections, ["a", "b"], 7, out)
    capsys.readouterr()
    show(sections, [], 7, out)
    assert measured == ["b", "a", "c"]
    assert out.read_text() == capsys.readouterr().out
    assert [line for line in out.read_text().splitlines() if "row of" in line] == [
        f"| row of {name} | | 1.000 | 0.900 to 1.100 | |" for name in "abc"
    ]
    with pytest.raises(UserError, match=r"no table of these versions and 8 alternated pairs; rem"):
        show(sections, [], 8, out)
    assert "row of a" in out.read_text()


def test_what_was_measured_is_kept_when_a_later_section_fails(tmp_path):
    def fails(pairs):
        yield Row("half", Ratio(1.0, 0.9, 1.1))
        raise KeyboardInterrupt

    good = Section("good", lambda pairs: iter([Row("whole", Ratio(1.0, 0.9, 1.1))]))
    with pytest.raises(KeyboardInterrupt):
        show({"good": good, "bad": Section("bad", fails)}, [], 7, tmp_path / "t.md")
    said = (tmp_path / "t.md").read_text()
    assert "whole" in said and "half" not in said


@pytest.fixture
def once(monkeypatch):
    """Both sides of a pair are called, once; the numbers are nobody's."""

    def alternate(a, b, pairs, warm=3):
        a(), b()
        return [(1.0, 1.0)] * 3

    monkeypatch.setattr("rightreasons.bench.pairs.alternate", alternate)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (loops.task_rows, ["er: step at task 20", "er+rrr: step", "er+evidence: step"]),
        (parts.evaluation_rows, ["accuracy and drift", "with pointing game"]),
        (parts.map_rows, ["gradcam at last_block", "evidence", "gradcam at the paper's"]),
    ],
)
def test_slow_sections_make_all_their_rows(once, monkeypatch, rows, named):
    """Of a few images: what each row computes is computed once."""
    few, glyphs = pictures, parts.stream
    for module in (loops, parts):
        monkeypatch.setattr(module, "pictures", lambda *size, train: few(*size, train=2))
    monkeypatch.setattr(parts, "stream", lambda *a, **how: glyphs(*a, **how | {"test": 2}))
    first, *others = rows(3)
    assert "A/A" in first.what
    for row, name in zip(others, named, strict=True):
        assert row.what.startswith(name)


def test_every_size_can_be_doubled(once):
    rows = list(loops.growth_rows(3))
    assert "A/A" in rows[0].what
    assert len(rows) == 7 and all("x 2" in row.what for row in rows[1:])


def test_the_optimiser_has_a_row_for_each_net(once):
    first, *rows = parts.optimiser_rows(3)
    assert "A/A" in first.what and len(rows) == 4


def test_every_learner_has_a_row(once):
    said = [row.what for row in parts.learner_rows(3)]
    named = [name for name in LEARNERS.own if name not in ("er", "joint")]
    assert said[1:] == [f"resnet8: a step of {name} / of er" for name in named]


def test_bad_words_are_refused():
    with pytest.raises(UserError, match="herdng.*herding"):
        bench(["herdng"], 3, None)
    with pytest.raises(UserError, match="--pairs is 2"):
        bench([], 2, None)


def test_the_command_is_there():
    done = subprocess.run(
        [sys.executable, "-m", "rightreasons", "bench", "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "section" in done.stderr
