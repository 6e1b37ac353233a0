"""Records of finished runs: one small JSON file each, all that tables and pages are made of."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rightreasons.config import complete
from rightreasons.errors import Damaged, Diverged, UserError, why
from rightreasons.reports.check import damage
from rightreasons.reports.read import RunData
from rightreasons.result import Result
from rightreasons.runfiles import differences, write
from rightreasons.study.plan import TUNING, Planned

DIGITS = 6  # of a number: more than any table prints
KEYS = (
    *("benchmark", "method", "row", "part", "words", "seed"),
    *("config", "classes", "digest", "versions"),
)


@dataclass
class Record:
    """What is kept of one run, and where."""

    path: Path
    content: dict[str, Any]

    @property
    def seconds(self) -> float:
        return float(self.content["seconds"])

    @property
    def diverged(self) -> str:
        """Why there is no result; nothing if there is one."""
        return str(self.content.get("diverged", ""))

    @property
    def cpu(self) -> str:
        """The kind that made it; nothing in records of older versions."""
        return str(self.content["versions"].get("cpu", ""))

    @property
    def run(self) -> RunData:
        """As a report sees a run folder."""
        return RunData(
            self.path.as_posix(),
            self.content["config"],
            self.content.get("tasks", []),
            not self.diverged,
            cpu=self.cpu,
        )

    @property
    def average(self) -> float:
        """Average accuracy; 0 of a run that diverged: a try that does so must not be chosen."""
        return 0.0 if self.diverged else float(self.content["result"]["average"])


def bare(config: dict[str, Any]) -> tuple[dict[str, Any], list[str] | None]:
    """A config without its pools, which are long, and the classes of the pool that it draws from.

    Threads and device are no difference.
    """
    kept = copy.deepcopy(config)
    stream = kept["stream"]
    among = None if stream["pool"] is None else list(stream["pools"][stream["pool"]])
    stream["pool"], stream["pools"] = None, {}
    kept["train"] |= {"threads": None, "device": "auto"}
    return kept, among


def classes_of(among: list[str] | None) -> str:
    """The pool as a digest: whatever its name, it is its classes that count."""
    return "all" if among is None else _sha(sorted(among))


def digest(config: dict[str, Any], classes: str) -> str:
    return _sha([config, classes])


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# --- writing -------------------------------------------------------------------------------------


def write_record(base: Path, planned: Planned, folder: Path, error: Diverged | None = None) -> None:
    """The record of a run that has ended in its folder, or diverged there."""
    config, among = bare(planned.config)
    classes = classes_of(among)
    content: dict[str, Any] = {
        "part": planned.part,
        "benchmark": planned.benchmark,
        "row": planned.row,
        "method": planned.method,
        "words": list(planned.words),
        "seed": planned.seed,
        "digest": digest(config, classes),
        "classes": classes,
        "config": config,
        "versions": json.loads((folder / "environment.json").read_text("utf-8")),
    }
    lines = folder / "records.jsonl"
    written = lines.read_text("utf-8").splitlines() if lines.exists() else []
    tasks = [json.loads(line) for line in written]
    content["seconds"] = round(sum(task["seconds"] for task in tasks), 1)
    if error is not None:
        content["diverged"] = str(error)
    else:
        summary = _headline(Result(tasks).summary())
        content["result"] = _rounded(summary)
        if not planned.part.startswith(TUNING):
            content["tasks"] = _rounded(tasks)
    path = path_of(base, planned)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, _text(content))


def path_of(base: Path, planned: Planned) -> Path:
    return base / f"{planned.place}.json"


def _headline(summary: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a run, without what only repeats others."""
    return {k: v for k, v in summary.items() if k not in ("R", "drift", "seconds")}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def _text(content: dict[str, Any]) -> str:
    """A line a key, so that a record can be read and two compared."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


# --- reading -------------------------------------------------------------------------------------


def read_record(path: Path) -> Record:
    """One file, or `Damaged` with what is wrong with it."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is no record ({why(error)}); {MEND}") from error
    missing = [key for key in KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise Damaged(f"{path} is no record: it has no {missing[0]}; {MEND}")
    wrong = _wrong(content)
    if wrong:
        raise Damaged(f"{path} is damaged: {wrong}; {MEND}")
    return Record(path, content)


MEND = "put it back from the repository, or remove it and the run is made again"


def _wrong(content: dict[str, Any]) -> str:
    if not isinstance(content["config"], dict) or not isinstance(content["seed"], int):
        return "config and seed are not those of a run"
    if digest(content["config"], content["classes"]) != content["digest"]:
        return "its config is not the one that its digest was made of"
    if "diverged" in content:
        return ""
    result = content.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("average"), float):
        return "it has no result"
    for k, task in enumerate(content.get("tasks", [])):
        wrong = damage(json.dumps(task), k)
        if wrong:
            return f"task {k + 1}: {wrong}"
    return ""


def find(base: Path, planned: Planned) -> Record | None:
    """The record of a planned run, if there is one; one of another config is refused."""
    path = path_of(base, planned)
    if not path.exists():
        return None
    record = read_record(path)
    config, among = bare(planned.config)
    classes = classes_of(among)
    if digest(config, classes) == record.content["digest"]:
        return record
    try:
        today = complete(record.content["config"])  # an older version knew fewer keys
    except UserError as error:
        raise UserError(f"{path} is of another config ({error}); {MEND}") from error
    different = differences(today, config)
    if classes != record.content["classes"]:
        different.append("stream.pool: other classes there")
    if different:
        raise UserError(
            f"{path} is of another config ({'; '.join(different[:4])}); remove it and the run is "
            "made again, or pass another --records"
        )
    return record


def find_all(base: Path, runs: Iterable[Planned]) -> dict[Planned, Record]:
    """Those of the planned runs that have a record."""
    found = {run: find(base, run) for run in runs}
    return {run: record for run, record in found.items() if record is not None}
