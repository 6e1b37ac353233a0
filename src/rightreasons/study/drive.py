"""``rrr study``: what is left of a study, in which order, and the runs themselves."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich.console import Console

from rightreasons.errors import Diverged, UserError
from rightreasons.study.page import write_page
from rightreasons.study.plan import DEFAULT, TUNING, Chosen, Planned, Study, load
from rightreasons.study.records import Record, find_all, write_record
from rightreasons.study.tune import read_chosen, write_chosen
from rightreasons.sweep.jobs import Job, prefix_of, prefixes
from rightreasons.sweep.local import run_all
from rightreasons.sweep.one import execute


@dataclass(frozen=True)
class Folders:
    """Where a study's files are."""

    out: Path  # of run folders, which nobody needs once there are records
    records: Path

    def chosen(self, study: str) -> Path:
        name = "tuned.json" if study == DEFAULT else f"tuned-{study}.json"
        return self.records.parent / name

    def page(self, study: str) -> Path:
        return self.records.parent / ("README.md" if study == DEFAULT else f"{study}.md")


@dataclass(eq=False)
class StudyJob(Job):
    """A job that leaves a record behind."""

    planned: Planned | None = None
    records: Path = Path()
    keep: bool = False


def work(job: Job) -> None:
    """Train, write the record, and drop the checkpoints, which a finished run has no need of.

    In the worker: a record is there as soon as its run has ended, whoever else is killed.
    """
    assert isinstance(job, StudyJob) and job.planned is not None
    error = None
    try:
        execute(job.config, job.folder, False, job.prefix, job.checkpoint)
    except Diverged as found:  # a result too: the tables say so, and tuning counts it as zero
        error = found
    write_record(job.records, job.planned, job.folder, error)
    if not job.keep:
        shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)


def run_study(
    name: str,
    only: Sequence[str],
    folders: Folders,
    workers: int,
    *,
    plan: bool = False,
    report: bool = False,
    keep: bool = False,
) -> None:
    """All runs of some parts that have no record yet, then what was chosen, and the page."""
    if workers < 1:
        raise UserError(f"--jobs is {workers}, expected at least 1")
    study = load(name)
    console = Console(highlight=False)
    parts = study.select(only)
    if not report:
        for group in _together(parts):
            _run_parts(study, group, folders, workers, plan, keep, console)
    if not plan:
        chosen, page = folders.chosen(study.name), folders.page(study.name)
        write_chosen(study, folders.records, chosen)
        write_page(study, folders.records, chosen, page)
        console.print(f"the page: {page}", soft_wrap=True, markup=False)


def _together(parts: Sequence[str]) -> list[list[str]]:
    """Tuning before what takes its choices."""
    tuning = [part for part in parts if part.startswith(TUNING)]
    rest = [part for part in parts if not part.startswith(TUNING)]
    return [group for group in (tuning, rest) if group]


def _run_parts(
    study: Study,
    parts: Sequence[str],
    folders: Folders,
    workers: int,
    plan: bool,
    keep: bool,
    console: Console,
) -> None:
    path = folders.chosen(study.name)
    if not plan:
        write_chosen(study, folders.records, path)
    chosen: Chosen = read_chosen(path)
    if plan:
        chosen = _pretended(study, chosen)
    runs = [run for part in parts for run in study.runs(part, chosen)]
    done = find_all(folders.records, runs)
    left = [run for run in runs if run not in done]
    for line in [*summary(parts, runs, done, workers), *mixed(left, done, folders.records)]:
        console.print(line, soft_wrap=True, markup=False)
    if plan:
        return
    if not keep:
        tidy(list(done), left, folders.out)
    if not left:
        return
    begun = time.monotonic()
    jobs = make_jobs(left, folders, keep)
    waiting = Counter(job.prefix for job in jobs)

    def drop_prefix(job: Job) -> None:
        waiting[job.prefix] -= 1
        if job.prefix is not None and not waiting[job.prefix] and not keep:
            job.prefix.unlink(missing_ok=True)

    run_all(jobs, workers, work, drop_prefix)
    hours = (time.monotonic() - begun) / 3600
    said = f"{len(jobs)} runs in {hours:.2f} hours; records: {folders.records}"
    console.print(said, soft_wrap=True, markup=False)


def tidy(done: Sequence[Planned], left: Sequence[Planned], out: Path) -> None:
    """Remove what a command that was killed could not: checkpoints of runs that have a record."""
    needed = {prefix_of(run.config, out) for run in left}
    for run in done:
        shutil.rmtree(out / run.place / "checkpoints", ignore_errors=True)
        prefix = prefix_of(run.config, out)
        if prefix not in needed:
            prefix.unlink(missing_ok=True)


def make_jobs(left: Sequence[Planned], folders: Folders, keep: bool = False) -> list[StudyJob]:
    """Runs as jobs; those of one learner, benchmark and seed share their first task."""
    shared = prefixes([run.config for run in left], folders.out)
    return [
        StudyJob(
            run.config,
            folders.out / run.place,
            prefix,
            name=run.label,
            planned=run,
            records=folders.records,
            keep=keep,
        )
        for run, prefix in zip(left, shared, strict=True)
    ]


def _pretended(study: Study, chosen: Chosen) -> Chosen:
    """For counting alone: the first try of a side that is not chosen yet."""
    return {
        benchmark: {
            name: chosen.get(benchmark, {}).get(name, side.tries[0])
            for sides in study.sides.values()
            for name, side in sides.items()
        }
        for benchmark in study.benchmarks
    }


# --- before it starts ----------------------------------------------------------------------------


def summary(
    parts: Sequence[str], runs: Sequence[Planned], done: dict[Planned, Record], workers: int
) -> list[str]:
    """Runs and hours that are left, part by part; by measured seconds where there are some."""
    lines = []
    total = 0.0
    for part in parts:
        mine = [run for run in runs if run.part == part]
        left = [run for run in mine if run not in done]
        seconds = sum(expected(run, done) for run in left)
        total += seconds
        lines.append(
            f"{part}: {len(mine)} runs, {len(left)} left, {seconds / 3600:.2f} hours of one core"
        )
    measured = sum(1 for run in runs if run not in done and _alike(run, done))
    left = [run for run in runs if run not in done]
    by = f"{measured} of {len(left)} by runs that are done, the others by the study's estimate"
    lines.append(f"about {total / workers / 3600:.2f} hours with {workers} at a time ({by})")
    return lines


def mixed(left: Sequence[Planned], done: dict[Planned, Record], records: Path) -> list[str]:
    """A line for each seed that another kind of CPU has begun: it rounds otherwise, and what is to
    be compared with its runs would differ from the first task on."""
    import torch

    here = torch.backends.cpu.get_cpu_capability()
    elsewhere: dict[tuple[str, str, int], list[Record]] = {}
    for run, record in done.items():
        if record.cpu not in ("", here):
            elsewhere.setdefault((run.part, run.benchmark, run.seed), []).append(record)
    waiting = Counter((run.part, run.benchmark, run.seed) for run in left)
    return [
        f"{part}, {benchmark}, seed {seed}: {len(found)} of its runs were made on {found[0].cpu}, "
        f"{waiting[part, benchmark, seed]} are left for this {here}, which rounds otherwise: their "
        "first tasks differ. To have all of that seed from one, remove "
        + ", ".join(record.path.relative_to(records).as_posix() for record in found)
        for (part, benchmark, seed), found in elsewhere.items()
        if waiting[part, benchmark, seed]
    ]


def expected(run: Planned, done: dict[Planned, Record]) -> float:
    """Seconds of a run: what it took with other seeds, or what the study's file says."""
    alike = _alike(run, done)
    return mean(alike) if alike else run.seconds


def _alike(run: Planned, done: dict[Planned, Record]) -> list[float]:
    same = (run.part, run.benchmark, run.row)
    return [
        record.seconds
        for other, record in done.items()
        if (other.part, other.benchmark, other.row) == same and not record.diverged
    ]
