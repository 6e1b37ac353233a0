"""Run folders as plain data, grouped so that only what is alike is averaged.

A group is what was learned: benchmark, data and stream. Inside it a line is a method; runs of one
method whose settings differ are lines of their own, named by what differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rightreasons.errors import UserError, printable
from rightreasons.reports.check import damage
from rightreasons.reports.command import today, words
from rightreasons.result import Result
from rightreasons.runfiles import contents, is_branch, load_json, planned_tasks, read_yaml

SHARED = ("benchmark", "data", "stream", "extensions")  # what makes a group
SKIPPED = ("train.threads", "train.device")  # no difference that a reader would look for


@dataclass
class RunData:
    """One run folder."""

    name: str  # the folder, as seen from where the report is written
    config: dict[str, Any]
    records: list[dict[str, Any]]
    finished: bool
    folder: Path | None = None  # none: a result that is still in memory
    problem: str = ""
    cpu: str = ""  # the kind that made it, as far as a record knows

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def tasks(self) -> int:
        """How many tasks it is to learn."""
        planned = planned_tasks(self.config) if self.config.get("stream") else 0
        return max(planned + len(self.config.get("extensions", [])), len(self.records))

    @property
    def state(self) -> str:
        return "finished" if self.finished else f"{len(self.records)} of {self.tasks} tasks"

    @cached_property
    def full(self) -> dict[str, Any]:
        """The config with every key of this version: runs of several versions can be compared."""
        return today(self.config)

    @cached_property
    def result(self) -> Result:
        return Result(self.records)

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """What `Result.summary` knows; nothing before the first task has ended."""
        return self.result.summary() if self.records else {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """How it was trained, key by key, beside the seed."""
        own = {k: v for k, v in self.full.items() if k not in (*SHARED, "method", "seed")}
        own |= {"branch": self.origin} if self.origin else {}
        return {k: v for k, v in flat(own).items() if k not in SKIPPED}

    @property
    def origin(self) -> str:
        """Where a branch began: the folder of the run, that of its seed left out, and the task."""
        branch = self.config.get("branch")
        if branch is None:
            return ""
        run = Path(branch["run"])
        run = run.parent if run.name == str(self.seed) else run
        return f"{run}@task{branch['task']}"

    @cached_property
    def core(self) -> str:
        """The settings without those of the method's terms: partners have this in common."""
        terms = self.method.split("+")[1:]
        return _text({k: v for k, v in self.settings.items() if k.split(".")[0] not in terms})


@dataclass
class Line:
    """The runs of one method with the same settings, by seed."""

    label: str
    runs: list[RunData]

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def finished(self) -> list[RunData]:
        return [run for run in self.runs if run.finished]


@dataclass
class Group:
    """Runs that learned the same thing."""

    title: str
    lines: list[Line]

    @property
    def runs(self) -> list[RunData]:
        return [run for line in self.lines for run in line.runs]

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0].config

    @property
    def benchmark(self) -> str:
        return str(self.config.get("benchmark", ""))

    @property
    def tasks(self) -> int:
        return max(run.tasks for run in self.runs)

    @property
    def finished(self) -> list[Line]:
        """The lines that have a finished run."""
        return [line for line in self.lines if line.finished]

    def pairs(self) -> list[tuple[Line, Line]]:
        """A method with terms, and the same without."""
        return [
            (line, base)
            for line in self.finished
            for base in self.finished
            if "+" in line.method
            and base.method == line.method.split("+")[0]
            and base.runs[0].core == line.runs[0].core
        ]


@dataclass
class Book:
    """All that was found below the folders of a report."""

    groups: list[Group]
    problems: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[RunData]:
        return [run for group in self.groups for run in group.runs]


def read(folders: Sequence[str | Path]) -> Book:
    """Every run below some folders; a `UserError` if there is none."""
    found: dict[Path, str] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass one that rrr run or compare wrote")
        for path in sorted(folder.rglob("config.yaml")):
            name = path.parent.relative_to(folder).as_posix()
            if len(folders) > 1 or name == ".":
                name = (Path(folder.as_posix()) / name).as_posix()
            found.setdefault(path.parent.absolute(), printable(name))
    runs, problems = [], []
    for folder, name in found.items():
        try:
            run = read_run(folder, name)
        except UserError as error:
            problems.append(str(error))
            continue
        runs.append(run)
        problems += [run.problem] if run.problem else []
    if not runs:
        asked = ", ".join(str(folder) for folder in folders)
        reason = f" ({problems[0]})" if problems else ""
        raise UserError(
            f"{asked} holds no runs{reason}; pass a folder that rrr run or rrr compare wrote, "
            "such as runs"
        )
    return group(runs, problems)


def read_run(folder: Path, name: str | None = None) -> RunData:
    """One folder; records after a damaged one are left out, and the run counts as unfinished."""
    name = name or str(folder)
    config = read_yaml(folder / "config.yaml")
    if not isinstance(config.get("method"), str) or not isinstance(config.get("seed"), int):
        raise UserError(f"{name}/config.yaml names no method and seed: it is not that of a run")
    stream = config.get("stream")
    if not isinstance(stream, dict) or not isinstance(stream.get("tasks"), (int, list)):
        raise UserError(f"{name}/config.yaml does not say which tasks: it is not that of a run")
    if not is_branch(config):
        raise UserError(f"{name}/config.yaml does not say which run it is a branch of")
    records: list[dict[str, Any]] = []
    problem = ""
    path = folder / "records.jsonl"
    lines = contents(path).decode("utf-8", "replace").splitlines() if path.exists() else []
    for k, line in enumerate(lines):
        wrong = damage(line, k)
        if wrong:
            rest = "and those after it are" if k + 1 < len(lines) else "is"
            problem = f"{name}/records.jsonl: the record of task {k + 1} {rest} left out: {wrong}"
            break
        records.append(load_json(line))
    finished = (folder / "result.json").exists() and bool(records) and not problem
    run = RunData(name, config, records, finished, folder, problem)
    run.finished = finished and len(records) == run.tasks
    return run


# --- groups --------------------------------------------------------------------------------------


def group(runs: Iterable[RunData], problems: Iterable[str] = ()) -> Book:
    """Sort runs into groups and lines; the same run twice counts once."""
    said = list(problems)
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(_text(_shared(run.full)), []).append(run)
    made = []
    for members in groups.values():
        kept: dict[tuple[str, str, int], RunData] = {}
        for run in members:
            key = (run.method, _text(run.settings), run.seed)
            if key in kept:
                first, second = sorted((kept[key], run), key=lambda r: not r.finished)
                said.append(f"{second.name} repeats {first.name} and is left out")
                kept[key] = first
            else:
                kept[key] = run
        made.append(Group("", _lines(list(kept.values()))))
    for found in made:
        found.title = _title(found, made)
    return Book(sorted(made, key=lambda g: g.title), said)


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the group of a run. Classes drawn by the seed are no difference."""
    shared = {key: config.get(key) for key in SHARED}
    shared["extensions"] = [step["classes"] for step in config.get("extensions", [])]
    if "benchmark" not in config:  # started from Python: the tasks are lists of names
        stream = config["stream"]
        tasks = stream["tasks"]
        counts = [len(t) for t in tasks] if isinstance(tasks, list) else tasks
        shared["stream"] = {"tasks": counts, "images": stream.get("images")}
    return shared


def _lines(members: list[RunData]) -> list[Line]:
    methods: dict[str, dict[str, list[RunData]]] = {}
    for run in members:
        variants = methods.setdefault(run.method, {})
        variants.setdefault(_text(run.settings), []).append(run)
    lines = []
    for method in sorted(methods, key=_order):
        seeds = [sorted(v, key=lambda run: run.seed) for v in methods[method].values()]
        labels = _labels([runs[0] for runs in seeds])
        own = [Line(f"{method}{label}", runs) for label, runs in zip(labels, seeds, strict=True)]
        lines += sorted(own, key=lambda line: line.label)
    return lines


def _order(method: str) -> tuple[str, int, str]:
    """A learner, then itself with terms: er, er+rrr, er+evidence."""
    learner, *terms = method.split("+")
    return learner, len(terms), ",".join({"rrr": ""}.get(term, term) for term in terms)


def _labels(variants: list[RunData]) -> list[str]:
    """What tells runs of one method apart: the words of their commands, or their settings."""
    if len(variants) == 1:
        return [""]
    said = [
        [*(["from " + run.origin] if run.origin else []), *found]
        for run in variants
        if (found := words(run.config)) is not None
    ]
    if len(said) < len(variants):  # words and settings have little in common
        said = [[f"{k}={v}" for k, v in run.settings.items()] for run in variants]
    common = set(said[0]).intersection(*said[1:])
    own = [[w for w in s if w not in common and w.split("=")[0] not in SKIPPED] for s in said]
    return [f" [{' '.join(w)}]" if w else "" for w in own]


def _title(found: Group, groups: list[Group]) -> str:
    """The benchmark, and beside others of the same name what is different."""
    name = found.benchmark
    if name == "folder":
        name = Path(str(found.config["data"].get("path", ""))).name or name
    if not name:
        first = found.runs[0]
        classes = [len(t) for t in first.config["stream"]["tasks"] if isinstance(t, list)]
        name = f"a stream of {found.tasks} tasks, {sum(classes)} classes"
    alike = [g for g in groups if g.benchmark == found.benchmark]
    if len(alike) > 1 and found.benchmark:
        sections = [flat({k: g.config.get(k) or {} for k in SHARED[1:3]}) for g in alike]
        keys = {k for s in sections for k in s if len({_text(t.get(k)) for t in sections}) > 1}
        mine = sections[alike.index(found)]
        words_ = [f"{k}={mine[k]}" for k in mine if k in keys and len(str(mine[k])) < 40]
        added = len(found.config.get("extensions", []))
        words_ += [f"{added} tasks added"] if added else []
        name = f"{name} [{' '.join(words_)}]" if words_ else name
    return name


def flat(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{where}.{key}".lstrip(".")
        found |= flat(value, path) if isinstance(value, Mapping) and value else {path: value}
    return found


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
