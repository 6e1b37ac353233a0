"""What a study is made of: a YAML file of parts, rows and sides to tune, as runs in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from rightreasons.config import make, resolve, words_for
from rightreasons.errors import UserError, unknown
from rightreasons.paper import paper_tables
from rightreasons.runfiles import load_yaml

DEFAULT = "reasons"
TUNING = "tuning"
MISSING = "write it into the file"


@dataclass(frozen=True)
class Bench:
    """A benchmark as a study uses it."""

    words: list[str] = field(default_factory=list)
    """key=value words of every run"""
    tuning: list[str] = field(default_factory=list)
    """words of tuning runs beside those"""
    seconds: float = 60.0
    """of one run, before any has been measured"""
    tuning_seconds: float = 30.0
    """of one tuning run"""


@dataclass(frozen=True)
class Side:
    """Something that is tuned: one key of a method, so many values."""

    method: str
    key: str
    tries: list[float]
    words: list[str] = field(default_factory=list)
    cost: float = 1.0
    """time, as a multiple of what the benchmark says"""


@dataclass(frozen=True)
class Row:
    """A row of the tables: a method with words, in matched runs."""

    method: str
    tuned: str | None = None
    """the side whose chosen value it takes"""
    factor: float = 1.0
    """multiplies the chosen value, where the row's loss has another unit than the side's"""
    words: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    """rows that it is compared with: of its own part or, if that has none of the name, of the first
    part that does"""
    paper: dict[str, Any] = field(default_factory=dict)
    """benchmark: [table, row, base], the rows of the paper whose difference it is beside"""
    cost: float = 1.0


@dataclass(frozen=True)
class Part:
    """Rows on benchmarks, and what must be tuned for them."""

    about: str
    benchmarks: list[str]
    rows: dict[str, Any]
    sides: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None
    """of these rows, if not those of the study"""
    tuning_seeds: list[int] | None = None
    """of these sides, likewise"""
    figure: dict[str, list[str]] = field(default_factory=dict)
    """base: [rows], the differences that the part's picture shows"""


@dataclass(frozen=True)
class Tuning:
    """How sides are tuned: on which seeds, with which words."""

    seeds: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fields:
    """The keys of a study's file."""

    about: str
    seeds: list[int]
    benchmarks: dict[str, Any]
    parts: dict[str, Any]
    tuning: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    """of every run whose method has what they speak of"""


@dataclass(frozen=True)
class Planned:
    """One run of a study; ``place`` is its record's path, and that of its folder."""

    part: str
    benchmark: str
    row: str
    method: str
    words: tuple[str, ...]
    seed: int
    seconds: float
    place: str

    @property
    def label(self) -> str:
        return f"{self.benchmark}: {self.row}, seed {self.seed}"

    @cached_property
    def config(self) -> dict[str, Any]:
        config = resolve(self.benchmark, self.method, self.words, self.seed)
        config["train"]["threads"] = 1  # equal bits need an equal number
        return config


Chosen = Mapping[str, Mapping[str, float]]  # benchmark -> side -> value


class Study:
    """A study's file, checked; benchmarks, rows and sides by name, in the order of the file."""

    def __init__(self, name: str, content: Any) -> None:
        if not isinstance(content, dict):
            raise UserError(f"study {name} holds no keys, expected about, seeds, benchmarks, ...")
        fields = make(Fields, content, name, hint=MISSING)
        self.name, self.about, self.seeds = name, fields.about, fields.seeds
        self.words = fields.words
        self.tuning = make(Tuning, fields.tuning, f"{name}.tuning")
        self.benchmarks = {
            key: make(Bench, value, f"{name}.benchmarks.{key}", hint=MISSING)
            for key, value in fields.benchmarks.items()
        }
        self.parts = {
            key: make(Part, value, f"{name}.parts.{key}", hint=MISSING)
            for key, value in fields.parts.items()
        }
        self.rows: dict[str, dict[str, Row]] = {}
        self.sides: dict[str, dict[str, Side]] = {}
        for key, part in self.parts.items():
            where = f"{name}.parts.{key}"
            rows, sides = f"{where}.rows", f"{where}.sides"
            self.rows[key] = {
                r: make(Row, v, f"{rows}.{r}", hint=MISSING) for r, v in part.rows.items()
            }
            self.sides[key] = {
                s: make(Side, v, f"{sides}.{s}", hint=MISSING) for s, v in part.sides.items()
            }
        self._check()

    def _check(self) -> None:
        """Every name that is referred to is there, and no two sides share one."""
        sides = [side for part in self.sides.values() for side in part]
        rows = list(dict.fromkeys(row for part in self.rows.values() for row in part))
        twice = next((n for n in sides if sides.count(n) > 1), None)
        if twice is not None:
            raise UserError(f"study {self.name} has two sides {twice!r}; name each once")
        for key, part in self.parts.items():
            if key.startswith(TUNING):
                raise UserError(
                    f"part {key!r} of study {self.name} begins as parts of tries do; name it "
                    f"otherwise than {TUNING}..."
                )
            for benchmark in part.benchmarks:
                if benchmark not in self.benchmarks:
                    raise unknown(f"benchmark of study {self.name}", benchmark, self.benchmarks)
        for key, found in self.rows.items():
            _told_apart(found, f"rows of part {key} of study {self.name}")
        _told_apart(sides, f"sides of study {self.name}")
        for part_sides in self.sides.values():
            for name, side in part_sides.items():
                _told_apart([f"{value:g}" for value in side.tries], f"tries of {name}")
        for key, part in self.parts.items():
            for base, names in part.figure.items():
                if not isinstance(names, list):
                    raise UserError(
                        f"{self.name}.parts.{key}.figure.{base} is {names!r}, expected the rows "
                        "that are compared with it, such as [er+rrr]"
                    )
                for name in (base, *names):
                    if name not in self.rows[key]:
                        what = f"row of part {key} of study {self.name}"
                        raise unknown(what, name, self.rows[key])
        for key, found in self.rows.items():
            for title, row in found.items():
                for benchmark, given in row.paper.items():
                    check_paper(given, f"{self.name}.parts.{key}.rows.{title}.paper.{benchmark}")
                if row.tuned is not None and row.tuned not in sides:
                    raise unknown(f"side of study {self.name}", row.tuned, sides)
                for other in row.against:
                    if other not in rows:
                        raise unknown(f"row of study {self.name}", other, rows)

    @property
    def names(self) -> list[str]:
        """What ``--only`` takes: the tuning of each part, then the parts."""
        tuned = [f"{TUNING}-{part}" for part, sides in self.sides.items() if sides]
        return [*tuned, *self.parts]

    def select(self, only: Sequence[str]) -> list[str]:
        """The parts that some words name; all without a word."""
        chosen: list[str] = []
        for word in only:
            if word != TUNING and word not in self.names:
                raise unknown(f"part of study {self.name}", word, [TUNING, *self.names])
            tuning = f"{TUNING}-" if word == TUNING else None
            found = [n for n in self.names if n == word or (tuning and n.startswith(tuning))]
            chosen += [name for name in found if name not in chosen]
        return [name for name in self.names if name in chosen] if only else self.names

    def runs(
        self, part: str, chosen: Chosen, benchmarks: Sequence[str] | None = None
    ) -> list[Planned]:
        """The runs of a part in the order of work: seed by seed, cheap benchmarks first."""
        if part.startswith(f"{TUNING}-"):
            return list(self._tries(part.removeprefix(f"{TUNING}-")))
        return list(
            self._rows(part, chosen, self.cheap(part) if benchmarks is None else benchmarks)
        )

    def _tries(self, part: str) -> Iterator[Planned]:
        for seed in self.tuning_seeds(part):
            for benchmark in self.cheap(part):
                bench = self.benchmarks[benchmark]
                for name, side in self.sides[part].items():
                    every = words_for(side.method, self.words)
                    common = (*every, *bench.words, *self.tuning.words, *bench.tuning, *side.words)
                    for value in side.tries:
                        yield Planned(
                            f"{TUNING}-{part}",
                            benchmark,
                            f"{name} {value:g}",
                            side.method,
                            (*common, f"{side.key}={value}"),
                            seed,
                            bench.tuning_seconds * side.cost,
                            f"{TUNING}/{benchmark}/{slug(name)}/{value:g}/{seed}",
                        )

    def _rows(self, part: str, chosen: Chosen, benchmarks: Sequence[str]) -> Iterator[Planned]:
        for seed in self.seeds_of(part):
            for benchmark in benchmarks:
                bench = self.benchmarks[benchmark]
                for name, row in self.rows[part].items():
                    tuned = self._tuned(benchmark, row, chosen)
                    yield Planned(
                        part,
                        benchmark,
                        name,
                        row.method,
                        (*words_for(row.method, self.words), *bench.words, *tuned, *row.words),
                        seed,
                        bench.seconds * row.cost,
                        f"{part}/{benchmark}/{slug(name)}/{seed}",
                    )

    def _tuned(self, benchmark: str, row: Row, chosen: Chosen) -> list[str]:
        if row.tuned is None:
            return []
        part, side = self.side(row.tuned)
        value = chosen.get(benchmark, {}).get(row.tuned)
        if value is None:
            raise UserError(
                f"nothing is chosen yet for {row.tuned} on {benchmark}, which the rows of study "
                f"{self.name} take; type rrr study {self.name} --only {TUNING}-{part}"
            )
        return [*side.words, f"{side.key}={value * row.factor:.12g}"]

    def home(self, part: str, row: str) -> str:
        """The part whose row of this name a row of ``part`` is compared with.

        Its own first: runs of one part are made together, so their first tasks are the same.
        """
        return next(p for p in (part, *self.parts) if row in self.rows[p])

    def side(self, name: str) -> tuple[str, Side]:
        """A side and the part that it belongs to."""
        return next((part, sides[name]) for part, sides in self.sides.items() if name in sides)

    def seeds_of(self, part: str) -> list[int]:
        own = self.parts[part].seeds
        return self.seeds if own is None else own

    def tuning_seeds(self, part: str) -> list[int]:
        own = self.parts[part].tuning_seeds
        return self.tuning.seeds if own is None else own

    def cheap(self, part: str) -> list[str]:
        return sorted(self.parts[part].benchmarks, key=lambda b: self.benchmarks[b].seconds)


def slug(name: str) -> str:
    """A row's name as that of a folder."""
    return re.sub(r"[^\w.+=]+", "-", name).strip("-")


def _told_apart(names: Iterable[str], what: str) -> None:
    """Refuse names that would have one folder: runs of one would pass for those of the other."""
    there: dict[str, str] = {}
    for name in names:
        if slug(name) in there:
            other = there[slug(name)]
            raise UserError(f"{what}: {other!r} and {name!r} have one folder; name one otherwise")
        there[slug(name)] = name


def check_paper(given: Any, where: str) -> None:
    """Refuse what names no two rows of one of the paper's tables."""
    if not isinstance(given, list) or len(given) != 3:
        raise UserError(f"{where} is {given!r}, expected [table, row, base] of the paper")
    key, *names = given
    tables = {table.key: [row.name for row in table.rows] for table in paper_tables()}
    if key not in tables:
        raise unknown(where, key, tables)
    for name in names:
        if name not in tables[key]:
            raise unknown(where, name, tables[key])


def studies() -> dict[str, str]:
    """The files of the studies that ship, by name."""
    folder = resources.files("rightreasons") / "presets" / "studies"
    found = {f.name.removesuffix(".yaml"): f for f in folder.iterdir() if f.name.endswith(".yaml")}
    return {name: found[name].read_text("utf-8") for name in sorted(found)}


def load(name: str) -> Study:
    """A study that ships, by name, or a file of one."""
    shipped = studies()
    if name in shipped:
        text, title = shipped[name], name
    elif Path(name).suffix in (".yaml", ".yml") and Path(name).is_file():
        text, title = None, Path(name).stem
        if title in shipped:
            raise UserError(
                f"{name} has the name of a study that ships, whose results it would take; rename it"
            )
    elif Path(name).suffix in (".yaml", ".yml"):
        raise UserError(f"there is no file {name}; pass a study's file, or {' or '.join(shipped)}")
    else:
        raise unknown("study", name, shipped)
    try:
        return Study(title, load_yaml(Path(name).read_text("utf-8") if text is None else text))
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"study {name} is not valid YAML ({error}); mend the file") from error
