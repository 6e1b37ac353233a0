"""Another way on from a task of a run: the same beginning, other keys from there on."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from rightreasons.config import complete, learner_of, override
from rightreasons.errors import Damaged, UserError
from rightreasons.registry import TERMS
from rightreasons.runfiles import differences, planned_tasks, read_config

FIXED = ("benchmark", "method", "seed", "data", "stream", "net", "train.augment.cut")
LONGEST = 100  # characters of a folder that is named after its keys


class Branch(NamedTuple):
    config: dict[str, Any]
    folder: Path
    start: dict[str, Any]  # the state of the checkpoint
    maps: list[Path]  # files of the tasks that the run and its branch share


def branch(words: str, overrides: Sequence[str], out: Path | None = None) -> Branch:
    """``RUN@task3`` with changed keys, in a folder of its own."""
    run, task = _split(words)
    if not (run / "config.yaml").exists():
        raise UserError(f"{run} holds no run; type --from RUN@task3, RUN the folder of a run")
    old = read_config(run)
    if "benchmark" not in old or old.get("extensions"):
        what = "was extended" if "benchmark" in old else "was started from Python"
        raise UserError(
            f"the run in {run} {what}, and cannot be branched here; use rr.fit with start="
        )
    config = copy.deepcopy(old)
    for word in overrides:
        override(config, word)
    before, config = complete(old), complete(config)
    check_changes(before, config, "a branch")
    return Branch(
        config | {"branch": {"run": str(run), "task": task}},
        out or _folder(run, task, overrides),
        _state(run, task, before),
        [run / "maps" / f"task-{k}.npz" for k in range(1, task + 1)],
    )


def _split(words: str) -> tuple[Path, int]:
    run, at, task = words.rpartition("@")
    match = re.fullmatch(r"(?:task-?)?([1-9]\d{0,5})", task)
    if not at or not run or not match:
        raise UserError(f"--from is {words!r}, expected RUN@task3: a folder, and a task of its run")
    return Path(run), int(match[1])


def check_changes(before: dict[str, Any], after: dict[str, Any], what: str) -> None:
    """Refuse a change of a key on which the run's weights, memory or maps hang."""
    from rightreasons.terms import Term

    free = [f.name for f in fields(Term)]
    for text in differences(before, after):
        key = text.partition(":")[0]
        section, _, name = key.partition(".")
        if any(f"{key}.".startswith(f"{fixed}.") for fixed in FIXED):
            raise UserError(
                f"{text}, and {what} keeps {', '.join(FIXED)}: its first tasks are those of the "
                "run; start a run of its own instead"
            )
        if section in TERMS and name not in free:
            raise UserError(
                f"{text}, and the maps in the run's memory were made with it; of a term {what} may "
                f"change {', '.join(free)}"
            )
    if bool(learner_of(before).holds_out) != bool(learner_of(after).holds_out):
        raise UserError("the memory of the run was chosen with other held-out rows; leave them")


def _state(run: Path, task: int, config: dict[str, Any]) -> dict[str, Any]:
    from rightreasons.checkpoints import by_task, load_checkpoint
    from rightreasons.wellformed import check_task

    done = by_task(run)
    if task not in done:
        there = ", ".join(f"task{k}" for k in done) or "none"
        raise UserError(f"the run in {run} has no checkpoint of task {task}; it has {there}")
    if task >= planned_tasks(config):
        raise UserError(f"task {task} is the run's last, and nothing comes after it; name another")
    try:
        state = check_task(load_checkpoint(done[task]), done[task])
    except Damaged as error:
        raise UserError(f"{error}; branch after another task") from error
    if len(state["records"]) != task:
        raise UserError(f"{done[task]} is not of task {task}; branch after another task")
    return state


def _folder(run: Path, task: int, overrides: Sequence[str]) -> Path:
    """Beside the run, named after what differs."""
    name = ",".join([f"{run.absolute().name}@task{task}", *overrides])
    name = re.sub(r"[^\w.=+@,-]", "-", name)
    if len(name) > LONGEST:
        raise UserError("a folder named after so many keys would be too long; pass --out")
    return run.absolute().with_name(name)
