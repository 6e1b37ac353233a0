"""What explanation replay adds to a training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from rightreasons.bench.pairs import Call, compare, flops
from rightreasons.bench.rig import begun, pictures, steps
from rightreasons.bench.table import Row, share
from rightreasons.explainers import EXPLAINERS
from rightreasons.learners.base import Learner
from rightreasons.learners.er import ER
from rightreasons.memory import Memory
from rightreasons.terms import RRR, Evidence, Logits, Term

LAST = "rrr, gradcam, last_block, shared"


class Setting(NamedTuple):
    """A net, and the images of a step: so many new ones, and as many replayed."""

    net: str
    batch: int
    size: int = 32


def last_block(**fields: object) -> RRR:
    return RRR(target="last_block", view="shared", **fields)  # type: ignore[arg-type]


CASES: dict[Setting, dict[str, Term | None]] = {
    Setting("resnet18-cifar", 4): {
        "er again (A/A)": None,
        LAST: last_block(),
        "evidence, shared, 100 classes": Evidence(view="shared"),
        "rrr, gradcam, paper's target, shared, bn frozen": RRR(view="shared", bn="frozen"),
        "rrr, gradcam, last_block, canonical": RRR(target="last_block"),
        "rrr, gradcam, paper's target, canonical": RRR(),
    },
    Setting("resnet8", 16): {
        "er again (A/A)": None,
        LAST: last_block(),
        "evidence, shared, 100 classes": Evidence(view="shared"),
        "evidence, canonical, 100 classes": Evidence(view="canonical"),
        "logits, shared": Logits(view="shared"),
        **{f"rrr, {name}, canonical": RRR(explain=name) for name in EXPLAINERS},
    },
    Setting("alexnet", 8, 64): {
        "er again (A/A)": None,
        "rrr, gradcam, paper's target, canonical": RRR(),
        "rrr, gradcam, paper's target, shared": RRR(view="shared", bn="frozen"),
    },
    Setting("squeezenet1_1", 8, 64): {
        "er again (A/A)": None,
        "rrr, gradcam, paper's target, canonical": RRR(),
        "rrr, gradcam, paper's target, shared": RRR(view="shared", bn="frozen"),
    },
}


def rows(pairs: int) -> Iterator[Row]:
    for setting, terms in CASES.items():
        for row in costs(setting, terms, pairs):
            barred = LAST in row.what and setting.net == "resnet18-cifar"
            yield replace(row, bar=1.05) if barred else row


def costs(setting: Setting, terms: Mapping[str, Term | None], pairs: int) -> Iterator[Row]:
    """A step with each term over a step without, in the second task, 100 classes seen."""
    data = pictures([90, 10], 100, train=4, size=setting.size)

    def step(term: Term | None) -> Call:
        learner: Learner = ER(memory=Memory(200))
        if term is not None:
            term.rows = setting.batch
            learner = learner + term
        return steps(begun(learner, setting.net, data, 1, setting.batch, learn=False), 1)

    er = step(None)
    counted = flops(er)
    for what, term in terms.items():
        joined = step(term)
        more = share(flops(joined) / counted)
        yield Row(f"{setting.net}: {what}", compare(er, joined, pairs), None, more)
