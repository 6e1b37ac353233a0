"""How the settings of each learner on glyphs-fewshot are chosen, by one rule for all of them.

The rule: three tries a learner, seeds 100 to 102, a fifth of the train images held out and tested
(the test images are not touched); the try with the highest mean over seeds of the accuracy on all
classes seen after the last task wins. The first task is the same for every learner that trains it
with cross entropy alone, and is trained once a seed.

    python benchmarks/fewshot.py --out tuning > table.md
    python benchmarks/fewshot.py --runs runs/glyphs-fewshot > results.md

The second form makes the tables of runs that `rrr compare` has ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from tuning import accuracy, choices, gap, jobs, matched, runs_in

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
    "itaml": rates(3e-3, 1e-2, 3e-2),
}


def parts(folder: Path) -> dict[str, float]:
    """Accuracy after the last task: over all classes, the first task's, and the later ones'."""
    shares = {"all classes": slice(None), "first task": slice(1), "later": slice(1, None)}
    return {name: accuracy(folder, "class", tasks) for name, tasks in shares.items()}


def results(runs: Path) -> Iterator[str]:
    """All seeds of all methods, and matched differences, in points."""
    found = {
        method: {seed: parts(folder) for seed, folder in own.items()}
        for method, own in runs_in(runs).items()
    }
    seeds = sorted(next(iter(found.values())))
    each = f"all classes, seeds {seeds[0]} to {seeds[-1]}"
    yield f"| method | all classes | first task | later | {each} |"
    yield "|---|--:|--:|--:|---|"
    for method, own in found.items():
        each = ", ".join(f"{own[seed]['all classes']:.1f}" for seed in seeds)
        means = " | ".join(
            f"{mean(own[seed][part] for seed in seeds):.1f}" for part in own[seeds[0]]
        )
        yield f"| {method} | {means} | {each} |"
    yield "\n| matched difference | all classes | first task | later |\n|---|---|---|---|"
    for method, base in matched(found, ("finetune", "er")):
        cells = [
            gap([found[method][seed][part] - found[base][seed][part] for seed in seeds])
            for part in found[base][seeds[0]]
        ]
        yield f"| {method} - {base} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tuning-fewshot"))
    parser.add_argument("--learners", nargs="*", choices=list(TRIES), default=list(TRIES))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    if options.runs is not None:
        print("\n".join(results(options.runs)))
        return
    tries = {learner: TRIES[learner] for learner in options.learners}
    shared = {learner: "itaml" if learner == "itaml" else "base" for learner in tries}
    made = jobs(BENCHMARK, options.out, tries, shared)
    run_all(list(made.values()), options.jobs)
    print("\n".join(choices(made, tries, dict.fromkeys(tries, "class"))))


if __name__ == "__main__":
    main()
