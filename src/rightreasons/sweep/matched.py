"""``rrr compare``: matched runs of several methods, then the table of their differences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rightreasons.config import resolve, words_for
from rightreasons.errors import UserError
from rightreasons.registry import TERMS, split_method
from rightreasons.runfiles import write
from rightreasons.sweep.jobs import Job, prefixes
from rightreasons.sweep.one import check_interval, check_out, check_seeds, folder_of
from rightreasons.sweep.place import HERE, Where
from rightreasons.tables import compared, markdown


def compare(
    benchmark: str,
    methods: Sequence[str],
    overrides: Sequence[str] = (),
    seeds: int = 3,
    out: Path | None = None,
    share: bool = True,
    table: Path | None = None,
    checkpoint: int | None = None,
    where: Where = HERE,
) -> None:
    """Train, a run for each method and seed, and print what differs."""
    _check(methods, overrides, seeds, table)
    check_out(out)
    check_interval(checkpoint)
    configs = _configs(benchmark, methods, overrides, seeds)
    where.check()
    folders = [folder_of(config, out) for config in configs]
    base = folders[0].parent.parent
    shared = prefixes(configs, base) if share else [None] * len(configs)
    jobs = [
        Job(config, folder, prefix, checkpoint)
        for config, folder, prefix in zip(configs, folders, shared, strict=True)
    ]
    begun = time.monotonic()
    where.run(jobs)
    console = Console(highlight=False)
    console.print(compared(folders))
    if table is not None:
        write(table, markdown(folders))
    console.print(
        f"{len(jobs)} runs in {time.monotonic() - begun:.0f} s; configs, records and checkpoints: "
        f"{base}",
        soft_wrap=True,
        markup=False,  # a folder may be called [v2]
    )


def _check(
    methods: Sequence[str], overrides: Sequence[str], seeds: int, table: Path | None
) -> None:
    check_seeds(seeds)
    if len(set(methods)) < len(methods):
        raise UserError(f"methods {','.join(methods)} name one twice; name each once")
    if table is not None and table.is_dir():
        raise UserError(f"--table {table} is a folder, expected a file such as {table}/table.md")
    if table is not None and not table.absolute().parent.is_dir():
        raise UserError(f"--table {table} is in a folder that does not exist; make it first")
    carried = {term for method in methods for term in split_method(method)[1]}
    for word in overrides:
        section = word.split(".")[0]
        if section in TERMS and section not in carried:
            raise UserError(f"{word!r} is for {section}, which none of {','.join(methods)} carries")


def _configs(
    benchmark: str, methods: Sequence[str], overrides: Sequence[str], seeds: int
) -> list[dict[str, Any]]:
    """Seed by seed, so that the first seeds of all methods are there first."""
    first = min(
        resolve(benchmark, method, words_for(method, overrides))["seed"] for method in methods
    )
    others = [word for word in overrides if not word.startswith("seed=")]
    configs = [
        resolve(benchmark, method, words_for(method, others), seed)
        for seed in range(first, first + seeds)
        for method in methods
    ]
    for config in configs:
        config["train"]["threads"] = config["train"]["threads"] or 1  # equal bits need it said
    return configs
