"""How the settings of each learner on glyphs-fewshot are chosen, by one rule for all of them.

The rule: three tries a learner, seeds 100 to 102, a fifth of the train images held out and tested
(the test images are not touched); the try with the highest mean over seeds of the accuracy on all
classes seen after the last task wins. The first task is the same for every learner that trains it
with cross entropy alone, and is trained once a seed.

    python benchmarks/fewshot.py --out tuning > table.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from rightreasons.config import resolve
from rightreasons.metrics import over_images
from rightreasons.sweep import Job, run_all

BENCHMARK = "glyphs-fewshot"
SEEDS = (100, 101, 102)


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
    "itaml": rates(1e-4, 3e-4, 1e-3),
}


def jobs(out: Path, learners: list[str]) -> dict[tuple[str, str, int], Job]:
    """One run for each learner, try and seed."""
    made = {}
    for learner in learners:
        for name, words in TRIES[learner]:
            typed = [*words, "stream.validation=0.2"]
            for seed in SEEDS:
                config = resolve(BENCHMARK, learner, typed, seed)
                folder = out / learner / name.replace(", ", "_").replace(" ", "-") / str(seed)
                base = out / f"{'itaml' if learner == 'itaml' else 'base'}-{seed}.pt"
                made[learner, name, seed] = Job(config, folder, base)
    return made


def accuracy(folder: Path, how: str) -> float:
    """Over all classes seen, after the last task."""
    last = json.loads((folder / "records.jsonl").read_text("utf-8").splitlines()[-1])
    return float(100 * over_images(last["accuracy"][how], last["test_images"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/tuning-fewshot"))
    parser.add_argument("--learners", nargs="*", choices=list(TRIES), default=list(TRIES))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    made = jobs(options.out, options.learners)
    run_all(list(made.values()), options.jobs)
    print("| learner | try | mean | seeds " + ", ".join(map(str, SEEDS)) + " | |")
    print("|---|---|---|---|---|")
    for learner in options.learners:
        found = {
            name: [accuracy(made[learner, name, seed].folder, "class") for seed in SEEDS]
            for name, _ in TRIES[learner]
        }
        best = max(found, key=lambda name: mean(found[name]))
        for name, values in found.items():
            each = ", ".join(f"{v:.1f}" for v in values)
            print(f"| {learner} | {name} | {mean(values):.1f} | {each} | "
                  f"{'chosen' if name == best else ''} |")  # fmt: skip


if __name__ == "__main__":
    main()
