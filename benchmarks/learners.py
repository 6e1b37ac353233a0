"""How the settings of each learner on glyphs-small are chosen, by one rule for all of them.

The rule: four tries a learner, seeds 100 to 102, a fifth of the train images held out and tested
(the test images are not touched); the try with the highest mean over seeds wins. EWC got four more:
the smallest of its first four weights won. What is compared is the accuracy on all classes seen
after the last task; for EWC and LwF, which keep no images and so cannot tell the classes of
different tasks apart, the accuracy within the image's own task. Finetune is there to compare with.

    python benchmarks/learners.py --out tuning > table.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from rightreasons.config import resolve
from rightreasons.metrics import over_images
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    parser.add_argument("--learners", nargs="*", choices=list(TRIES), default=list(TRIES))
    options = parser.parse_args()
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
