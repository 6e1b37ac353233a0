"""One run at a time: what a config describes goes into a folder; seeds; branches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rightreasons.config import build, resolve
from rightreasons.errors import UserError, printable
from rightreasons.launch import process
from rightreasons.runfiles import read_config, share
from rightreasons.tables import single
from rightreasons.timing import LOADING, span


def folder_of(config: dict[str, Any], out: Path | None = None) -> Path:
    """``runs/BENCHMARK/METHOD/SEED``, or below another folder."""
    base = out or Path("runs") / name_of(config)
    return base / str(config["method"]) / str(config["seed"])


def name_of(config: dict[str, Any]) -> str:
    """The benchmark's; a user's own data name theirs."""
    own = config["benchmark"] == "folder"
    return Path(config["data"]["path"]).resolve().name if own else str(config["benchmark"])


def run_seeds(
    benchmark: str,
    method: str,
    overrides: Sequence[str],
    out: Path | None,
    seeds: int,
    checkpoint: int,
) -> None:
    """One run, or several seeds one after the other."""
    first = resolve(benchmark, method, overrides)
    check_seeds(seeds)
    check_out(out)
    for seed in range(first["seed"], first["seed"] + seeds):
        config = resolve(benchmark, method, [*overrides, f"seed={seed}"])
        folder = out if out and seeds == 1 else folder_of(config, out)
        _run_one(config, folder, checkpoint)


def check_out(out: Path | None) -> None:
    """Refuse a folder for runs that is, or is below, a file."""
    there = next((path for path in (out, *out.parents) if path.exists()), None) if out else None
    if there is not None and not there.is_dir():
        raise UserError(f"{there} is a file, expected a folder; pass another --out")


def check_seeds(seeds: int) -> None:
    if seeds < 1:
        raise UserError(f"--seeds is {seeds}, expected at least 1")


def check_interval(checkpoint: int | None) -> None:
    if checkpoint is not None and checkpoint < 1:
        raise UserError(f"--checkpoint is {checkpoint}, expected at least 1 step")


def run_branch(words: str, overrides: Sequence[str], out: Path | None, checkpoint: int) -> None:
    """``RUN@task3``, with other keys from there on."""
    from rightreasons.branch import branch

    check_out(out)
    made = branch(words, overrides, out)
    _run_one(made.config, made.folder, checkpoint, made.start)
    for path in () if process() else made.maps:
        share(path, made.folder / "maps")


def _run_one(
    config: dict[str, Any], folder: Path, checkpoint: int, start: dict[str, Any] | None = None
) -> None:
    trained = execute(config, folder, show=True, checkpoint=checkpoint, start=start)
    if process():
        return  # the folder is the first process's
    if not trained:
        print(f"{printable(str(folder))} is finished already")
    Console(highlight=False).print(single(folder))


def execute(
    config: dict[str, Any],
    folder: Path,
    show: bool = False,
    prefix: Path | None = None,
    checkpoint: int | None = None,
    start: dict[str, Any] | None = None,
) -> bool:
    """Train what a config describes into a folder, if that is not done yet: was it not?

    ``prefix`` holds or gets the first task. Of several processes the first one has the folder.
    """
    with span(LOADING):
        import torch

        from rightreasons.distributed import agree, from_first, joined
        from rightreasons.runs import EVERY, Run
        from rightreasons.train import fit, limited

    check_interval(checkpoint)
    with joined(config["train"]["device"]) as processes:
        if processes.size > 1:
            agree(config)
        if config["train"]["threads"] is None:  # equal bits need an equal number: written down
            threads = from_first(lambda: _recorded_threads(folder) or torch.get_num_threads())
            config = config | {"train": config["train"] | {"threads": threads}}
        run = Run(folder, config)
        if from_first(lambda: run.check() and run.finished):
            return False
        # a thread more than there are free cores makes small operations wait many times as long
        with span(LOADING), limited(config["train"]["threads"]):
            parts = build(config)
            net, stream = parts.load()
        fit(
            parts.learner,
            net,
            stream,
            train=parts.train,
            run=run,
            seed=parts.seed,
            progress=show,
            prefix=prefix,
            start=start,
            checkpoint=EVERY if checkpoint is None else checkpoint,
        )
    return True


def _recorded_threads(folder: Path) -> int | None:
    return read_config(folder)["train"].get("threads") if _is_run(folder) else None


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()
