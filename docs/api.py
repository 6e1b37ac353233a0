"""The page of the public names, from their docstrings.

python docs/api.py > docs/api.md        # make docs
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

import rightreasons as rr
from rightreasons import registry
from rightreasons.config import configurable
from rightreasons.explainers import EXPLAINERS
from rightreasons.show import _defaults, _notes, _word

LEARNERS = {rr.Learner, *(registry.find("", registry.LEARNERS, n) for n in registry.LEARNERS.own)}
TERMS = {rr.Term, *(registry.find("", registry.TERMS, n) for n in registry.TERMS.own)}
HEADS = {
    "Data and streams": ["stream", "Stream", "Augment"],
    "Networks": ["net", "Net"],
    "Training": ["fit", "Train", "Memory", "Stage", "Result", "UserError"],
    "Learners": sorted(k.__name__ for k in LEARNERS),
    "Terms": sorted(k.__name__ for k in TERMS),
    "Explainers": [*EXPLAINERS, "evidence", "sanity", "storage"],
    "Finished runs": ["load", "Model", "extend", "export", "report", "table"],
    "Pictures": ["plot_curves", "plot_evolution"],
    "Checks for your own parts": ["testing.check_learner", "testing.check_explainer"],
}


def find(name: str) -> Any:
    thing: Any = rr
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"rr.{name}(message)"
    if is_dataclass(thing):
        return f"rr.{name}({', '.join(f.name for f in configurable(thing))})"
    parts, before = [], None
    for p in inspect.signature(thing).parameters.values():
        if p.kind is p.KEYWORD_ONLY and before not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            parts.append("*")
        before = p.kind
        text = f"{_stars(p)}{p.name}"
        text += "" if p.annotation is p.empty else f": {p.annotation}"
        parts.append(text if p.default is p.empty else f"{text} = {p.default!r}")
    return f"rr.{name}({', '.join(parts)})"


def _stars(p: inspect.Parameter) -> str:
    return {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")


def prose(text: str) -> list[str]:
    """A docstring, its examples as code."""
    lines: list[str] = []
    inside = False
    for line in inspect.cleandoc(text).splitlines():
        if line.startswith(">>> ") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line:
            lines.append("```")
            inside = False
        lines.append(line)
    return [*lines, "```"] if inside else lines


def fields(thing: Any) -> list[str]:
    notes, defaults = _notes(thing), _defaults(thing)
    rows = [
        f"| `{f.name}` | `{_word(defaults[f.name]) if not _odd(defaults[f.name]) else '-'}` "
        f"| {notes.get(f.name, '').replace('|', chr(92) + '|')} |"
        for f in configurable(thing)
    ]
    return ["", "| field | default | meaning |", "|---|---|---|", *rows] if rows else []


def _odd(value: Any) -> bool:
    """Not a value that a config could hold."""
    plain = (str, int, float, bool, list, tuple, dict, type(None))
    return not isinstance(value, plain)


def methods(thing: Any) -> list[str]:
    """Public methods and properties of a class, with the first line of each."""
    found = []
    for name, member in vars(thing).items():
        call = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(call) or not call.__doc__:
            continue
        shown = name if isinstance(member, property) else f"{name}(...)"
        line = " ".join(inspect.cleandoc(call.__doc__).split("\n\n")[0].split())
        found.append(f"- `{shown}`: {line}")
    return ["", *found] if found else []


def entry(name: str) -> list[str]:
    thing = find(name)
    lines = [f"### {name}", "", "```python", signature(name, thing), "```", ""]
    lines += prose(thing.__doc__ or "")
    if is_dataclass(thing):
        lines += fields(thing)
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        lines += methods(thing)
    return [*lines, ""]


def page() -> str:
    lines = [
        "# API",
        "",
        "Written by `make docs` from the docstrings; `import rightreasons as rr`.",
        "",
    ]
    for head, names in HEADS.items():
        lines += [f"## {head}", ""]
        for name in names:
            lines += entry(name)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
