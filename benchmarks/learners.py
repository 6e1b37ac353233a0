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
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from rightreasons.config import resolve
from rightreasons.metrics import over_images
from rightreasons.stats import t_interval
from rightreasons.sweep import Job, run_all

BENCHMARK = "glyphs-small"
SEEDS = (100, 101, 102)
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


def jobs(out: Path, learners: list[str]) -> dict[tuple[str, str, int], Job]:
    """One run for each learner, try and seed."""
    made = {}
    for learner in learners:
        for name, words in TRIES[learner]:
            typed = [word.format(learner) for word in words] + ["stream.validation=0.2"]
            for seed in SEEDS:
                config = resolve(BENCHMARK, learner, typed, seed)
                folder = out / learner / name.replace(", ", "_").replace(" ", "-") / str(seed)
                made[learner, name, seed] = Job(config, folder, None)
    return made


def accuracy(folder: Path, how: str) -> float:
    """Over all classes seen, after the last task."""
    last = json.loads((folder / "records.jsonl").read_text("utf-8").splitlines()[-1])
    return float(100 * over_images(last["accuracy"][how], last["test_images"]))


def found_in(runs: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Method, how it is measured, seed: accuracy."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for path in sorted(runs.glob("*/*/result.json")):
        method, seed = path.parts[-3], int(path.parts[-2])
        for how in ("class", "task"):
            own = found.setdefault(method, {}).setdefault(how, {})
            own[seed] = accuracy(path.parent, how)
    return found


def results(runs: Path) -> Iterator[str]:
    """All seeds of all methods, and the differences that the issue is about, in points."""
    found = found_in(runs)
    seeds = sorted(next(iter(found.values()))["class"])
    yield f"| method | all classes: mean | seeds {seeds[0]} to {seeds[-1]} | within tasks: mean |"
    yield "|---|--:|---|--:|"
    for method, values in found.items():
        each = ", ".join(f"{values['class'][seed]:.1f}" for seed in seeds)
        means = [mean(values[how].values()) for how in ("class", "task")]
        yield f"| {method} | {means[0]:.1f} | {each} | {means[1]:.1f} |"
    plain = [method for method in found if "+" not in method]
    pairs = [(m, "finetune") for m in plain if m != "finetune"]
    pairs += [(m, "er") for m in plain if m not in ("er", "finetune", *WITHIN_TASK)]
    pairs += [(m, m.partition("+")[0]) for m in found if "+" in m]
    yield "\n| matched difference | all classes | within tasks |\n|---|---|---|"
    for method, base in pairs:
        cells = [
            gap([found[method][how][s] - found[base][how][s] for s in seeds])
            for how in ("class", "task")
        ]
        yield f"| {method} - {base} | {cells[0]} | {cells[1]} |"


def gap(differences: list[float]) -> str:
    """Mean and t interval; bold where the interval is clear of zero."""
    low, high = t_interval(differences)
    text = f"{mean(differences):+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if low * high > 0 else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    parser.add_argument("--learners", nargs="*", choices=list(TRIES), default=list(TRIES))
    options = parser.parse_args()
    if options.runs is not None:
        print("\n".join(results(options.runs)))
        return
    made = jobs(options.out, options.learners)
    run_all(list(made.values()))
    print("| learner | measured | try | mean | seeds " + ", ".join(map(str, SEEDS)) + " | |")
    print("|---|---|---|---|---|---|")
    for learner in options.learners:
        how = "task" if learner in WITHIN_TASK else "class"
        found = {
            name: [accuracy(made[learner, name, seed].folder, how) for seed in SEEDS]
            for name, _ in TRIES[learner]
        }
        best = max(found, key=lambda name: mean(found[name]))
        for name, values in found.items():
            each = ", ".join(f"{v:.1f}" for v in values)
            mark = "chosen" if name == best else ""
            print(f"| {learner} | {how} | {name} | {mean(values):.1f} | {each} | {mark} |")


if __name__ == "__main__":
    main()
