"""What ``rrr list`` and ``rrr show`` print."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from rightreasons.config import NetFields, StreamFields, benchmarks, configurable, plain
from rightreasons.errors import UserError, unknown
from rightreasons.registry import (
    LEARNERS,
    OTHER_EXPLAINERS,
    OTHER_NETS,
    SOURCES,
    TERMS,
    Known,
    find,
    split_method,
)

NOTES = {
    "resnet18": "torchvision's; the paper's",
    "alexnet": "torchvision's; the paper's",
    "squeezenet1_1": "torchvision's; the paper's",
    "squeezenet1_0": "torchvision's",
    "mobilenet-v2": "torchvision's",
}
ATTRIBUTIONS = "Captum's, if it can build a graph, such as captum:LayerGradCam"
OTHERS = "classifier of torchvision by its name, such as resnet50 or vgg16"


def listing() -> None:
    """Names of everything, one line each."""
    from rightreasons.explainers import EXPLAINERS
    from rightreasons.nets import NETS
    from rightreasons.study.plan import load, studies

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column()
    kinds = {
        "benchmark": {name: preset["about"] for name, preset in benchmarks().items()},
        "learner": _lines(LEARNERS),
        "term": _lines(TERMS),
        "explainer": {name: _first_line(call) for name, call in EXPLAINERS.items()}
        | _lines(OTHER_EXPLAINERS)
        | {"captum:CLASS": ATTRIBUTIONS},
        "net": {name: NOTES.get(name, "") for name in NETS}
        | _lines(OTHER_NETS)
        | {"any other": OTHERS},
        "data source": _lines(SOURCES),
        "study": {name: load(name).about for name in studies()},
    }
    for kind, members in kinds.items():
        for i, (name, about) in enumerate(members.items()):
            table.add_row("" if i else kind, name, about)
    Console(highlight=False).print(table)
    print("rrr show NAME prints fields and defaults; a method is a learner and terms: er+rrr")


def _lines(known: Known) -> dict[str, str]:
    """The first line of each docstring; of what cannot be imported, why."""
    found = {}
    for name in known:
        try:
            found[name] = _first_line(find("", known, name))
        except UserError as error:
            found[name] = f"NOT USABLE: {error}"
            continue
        if name not in known.own:
            found[name] += f" (from {known[name].partition(':')[0]})"
    return found


def show(name: str) -> None:
    """Fields, defaults and meanings behind a name."""
    from rightreasons.explainers import CAPTUM, EXPLAINERS, explainer_names
    from rightreasons.memory import Memory
    from rightreasons.nets import NETS
    from rightreasons.nets.zoo import torchvision_names
    from rightreasons.optimise import Train
    from rightreasons.study.plan import studies

    sections = {"train": Train, "memory": Memory, "stream": StreamFields, "net": NetFields}
    presets = benchmarks()
    if name in presets:
        print(yaml.safe_dump(presets[name], sort_keys=False, allow_unicode=True).rstrip())
        if name in SOURCES:  # a benchmark and a source may share a name
            print()
            _fields("data", find("", SOURCES, name))
    elif name in studies():
        print(studies()[name].rstrip())
    elif name in sections:
        _fields(name, sections[name])
    elif name in SOURCES:
        _fields("data", find("", SOURCES, name))
    elif name in TERMS:
        _fields(name, find("", TERMS, name))
    elif name in EXPLAINERS or name in OTHER_EXPLAINERS or name.startswith(CAPTUM):
        _explainer(name)
    elif name in NETS or name in OTHER_NETS:
        _net(name)
    elif "+" in name or name in LEARNERS:
        learner, terms = split_method(name)
        _fields(learner, find("", LEARNERS, learner), skip=("memory", "terms"))
        for term in terms:
            _fields(term, find("", TERMS, term))
    elif name and Path(name).is_dir():  # class folders are a benchmark too
        show("folder")
    elif name.replace("-", "_") in torchvision_names():
        _net(name)
    else:
        names = [*explainer_names(), *NETS, *SOURCES, *sections, *studies()]
        known = [*presets, *LEARNERS, *TERMS, *names]
        raise unknown("name", name, known)


def _explainer(name: str) -> None:
    """What it computes, and its options with their defaults."""
    from rightreasons.explainers import EXPLAINERS, find_explainer

    call = find_explainer(name)
    print(inspect.cleandoc(call.__doc__ or ""))
    options = inspect.signature(call).parameters.values()
    words = [f"{o.name}={o.default!r}" for o in options if o.kind is o.KEYWORD_ONLY]
    if name in EXPLAINERS:
        print(f"\nPython: rr.{name}(net, x, y, {', '.join(words)})")
    print(f"in a loss: rrr run BENCHMARK er+rrr rrr.explain={name}")
    print(f"in a picture: rrr explain RUN IMAGE --explainers {name}")


def _net(name: str) -> None:
    """Its size, and what remembered maps take."""
    from rightreasons.accounting import storage_table
    from rightreasons.nets import net
    from rightreasons.nets.small import SMALL

    built, size = net(name), 32 if name in SMALL or name in OTHER_NETS else 224
    weights = sum(p.numel() for p in built.parameters())
    print(f"{name}: {weights:,} weights without the head; maps of {size} px images:\n")
    print(storage_table(built, size))


def _fields(section: str, kind: Any, skip: tuple[str, ...] = ()) -> None:
    """One table: key, default, meaning; a profile's values each in a column of their own."""
    print(inspect.cleandoc(kind.__doc__ or "").strip() + "\n")
    profiles = getattr(inspect.getmodule(kind), "PROFILES", None) if section == "rrr" else None
    columns = (
        {profile: plain(kind(profile=profile)) for profile in profiles}
        if profiles
        else {"default": _defaults(kind)}
    )
    table = Table(box=None, pad_edge=False)
    for head in ("key", *columns, "meaning"):
        table.add_column(head, no_wrap=head != "meaning")
    notes = _notes(kind)
    for f in configurable(kind):
        if f.name not in skip:
            values = [_word(column[f.name]) for column in columns.values()]
            table.add_row(f"{section}.{f.name}", *values, notes.get(f.name, ""))
    Console(highlight=False).print(table)


def _defaults(kind: Any) -> dict[str, Any]:
    found = {}
    for f in fields(kind):
        if f.default is not MISSING:
            found[f.name] = plain(f.default)
        elif f.default_factory is not MISSING:
            found[f.name] = plain(f.default_factory())
        else:
            found[f.name] = "(needed)"
    return found


def _word(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...\n", "").strip()


def _first_line(thing: Any) -> str:
    return (inspect.cleandoc(thing.__doc__ or "").splitlines() or [""])[0]


def _notes(kind: Any) -> dict[str, str]:
    """The strings below a dataclass's fields: they are the help text."""
    notes: dict[str, str] = {}
    for parent in reversed(kind.__mro__[:-1]):
        if "__dataclass_fields__" not in vars(parent):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                notes[before.target.id] = " ".join(str(after.value.value).split())
    return notes
