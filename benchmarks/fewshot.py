"""How the settings of each learner on glyphs-fewshot are chosen, by one rule for all of them.

The rule: three tries a learner, seeds 100 to 102, a fifth of the train images held out and tested
(the test images are not touched); the try with the highest mean over seeds of the accuracy on all
classes seen after the last task wins. The first task is the same for every learner that trains it
with cross entropy alone, and is trained once a seed. iTAML got three more tries: with rates like
the others' it was no better than chance.

    python benchmarks/fewshot.py --out tuning > table.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tuning import choices, jobs

from rightreasons.sweep import run_all

BENCHMARK = "glyphs-fewshot"


def rates(*values: float) -> list[tuple[str, list[str]]]:
    """Learning rates from the second task on."""
    return [(f"lr {lr}", [f"train.later.lr={lr}"]) for lr in values]


TRIES: dict[str, list[tuple[str, list[str]]]] = {
    "finetune": rates(3e-5, 1e-4, 3e-4),
    "er": rates(1e-4, 3e-4, 1e-3),
    "icarl-fscil": rates(3e-5, 1e-4, 3e-4),
    "eeil-fscil": rates(3e-5, 1e-4, 3e-4),
    "topic": [
        (
            f"lr {lr}, {epochs} epochs, anchor {anchor}",
            [f"train.later.lr={lr}", f"train.later.epochs={epochs}", f"topic.anchor={anchor}"],
        )
        for lr, epochs, anchor in ((1e-3, 10, 32), (1e-3, 20, 32), (3e-3, 10, 6.4))
    ],
    "itaml": rates(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/tuning-fewshot"))
    parser.add_argument("--learners", nargs="*", choices=list(TRIES), default=list(TRIES))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    tries = {learner: TRIES[learner] for learner in options.learners}
    shared = {learner: "itaml" if learner == "itaml" else "base" for learner in tries}
    made = jobs(BENCHMARK, options.out, tries, shared)
    run_all(list(made.values()), options.jobs)
    print("\n".join(choices(made, tries, dict.fromkeys(tries, "class"))))


if __name__ == "__main__":
    main()
