"""How the settings of each learner on glyphs-small are chosen, by one rule for all of them.

The rule: four tries a learner, seeds 100 to 102, a fifth of the train images held out and tested
(the test images are not touched); the try with the highest mean over seeds wins. EWC got four more:
the smallest of its first four weights won. What is compared is the accuracy on all classes seen
after the last task; for EWC and LwF, which keep no images and so cannot tell the classes of
different tasks apart, the accuracy within the image's own task. Finetune is there to compare with.

    python benchmarks/learners.py --out tuning > table.md
    python benchmarks/learners.py --runs runs/glyphs-small > results.md

The second form makes the tables of runs that `rrr compare` has ended: every seed, and matched
differences with their t intervals, against Finetune, against ER, and of X+term against X.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from tuning import accuracy, choices, gap, jobs, matched, runs_in

from rightreasons.sweep import run_all

BENCHMARK = "glyphs-small"
REPLAY = [
    (f"{replay}, lr {lr}", [f"{{}}.replay={replay}", f"train.lr={lr}"])
    for replay in ("paired", "concat")
    for lr in (0.003, 0.001)
]
TRIES: dict[str, list[tuple[str, list[str]]]] = {
    "finetune": [("as it is", [])],
    "er": REPLAY,
    "icarl": REPLAY,
    "eeil": [(n, [*w, f"eeil.balanced.lr={float(n.split()[-1]) / 10}"]) for n, w in REPLAY],
    "bic": REPLAY,
    "ewc": [
        (f"weight {w}, scope {scope}", [f"ewc.weight={w}", f"ewc.scope={scope}"])
        for scope, weights in (("all", (10, 100, 1000, 5000, 10000)), ("new", (10, 100, 1000)))
        for w in weights
    ],
    "lwf": [
        (f"weight {w}, scope {scope}", [f"lwf.weight={w}", f"lwf.scope={scope}"])
        for w in (1, 3)
        for scope in ("all", "new")
    ],
}
WITHIN_TASK = ("ewc", "lwf", "finetune")


def results(runs: Path) -> Iterator[str]:
    """All seeds of all methods, and matched differences, in points."""
    found = {
        method: {
            how: {seed: accuracy(folder, how) for seed, folder in own.items()}
            for how in ("class", "task")
        }
        for method, own in runs_in(runs).items()
    }
    seeds = sorted(next(iter(found.values()))["class"])
    yield f"| method | all classes: mean | seeds {seeds[0]} to {seeds[-1]} | within tasks: mean |"
    yield "|---|--:|---|--:|"
    for method, values in found.items():
        each = ", ".join(f"{values['class'][seed]:.1f}" for seed in seeds)
        means = [mean(values[how].values()) for how in ("class", "task")]
        yield f"| {method} | {means[0]:.1f} | {each} | {means[1]:.1f} |"
    yield "\n| matched difference | all classes | within tasks |\n|---|---|---|"
    for method, base in matched(found, ("finetune", "er")):
        if base == "er" and method in WITHIN_TASK:
            continue
        cells = [
            gap([found[method][how][s] - found[base][how][s] for s in seeds])
            for how in ("class", "task")
        ]
        yield f"| {method} - {base} | {cells[0]} | {cells[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    parser.add_argument("--learners", nargs="*", choices=list(TRIES), default=list(TRIES))
    options = parser.parse_args()
    if options.runs is not None:
        print("\n".join(results(options.runs)))
        return
    tries = {learner: TRIES[learner] for learner in options.learners}
    made = jobs(BENCHMARK, options.out, tries)
    run_all(list(made.values()))
    how = {learner: "task" if learner in WITHIN_TASK else "class" for learner in tries}
    print("\n".join(choices(made, tries, how)))


if __name__ == "__main__":
    main()
