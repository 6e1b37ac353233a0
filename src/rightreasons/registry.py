"""What there is by name: learners, terms, data sources. Importing this imports no torch.

A package adds to them by entry points: ``[project.entry-points."rightreasons.learners"]`` with a
line such as ``mine = "package.module:Mine"``; the other groups are ``rightreasons.terms``,
``.explainers``, ``.nets`` and ``.sources``. Nothing of it is imported before its name is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module, metadata
from typing import Any

from rightreasons.errors import UserError, unknown

SECTIONS = ("benchmark", "method", "seed", "data", "stream", "net", "train", "memory")


class Known(Mapping[str, str]):
    """Names and where their parts are, ``module:attribute``: ours first, then entry points."""

    def __init__(self, group: str, own: Mapping[str, str]) -> None:
        self.group, self.own = f"rightreasons.{group}", dict(own)

    @cached_property
    def others(self) -> dict[str, metadata.EntryPoint]:
        """By other packages; a name of ours stays ours."""
        found = metadata.entry_points(group=self.group)
        return {point.name: point for point in found if point.name not in self.own}

    def __getitem__(self, name: str) -> str:
        return self.own[name] if name in self.own else self.others[name].value

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.others

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self.others

    def __len__(self) -> int:
        return len(self.own) + len(self.others)


LEARNERS = Known(
    "learners",
    {
        "finetune": "rightreasons.learners.finetune:Finetune",
        "er": "rightreasons.learners.er:ER",
        "joint": "rightreasons.learners.joint:Joint",
        "ewc": "rightreasons.learners.ewc:EWC",
        "lwf": "rightreasons.learners.lwf:LwF",
        "lwf-mc": "rightreasons.learners.lwf:LwFMC",
        "icarl": "rightreasons.learners.icarl:ICaRL",
        "eeil": "rightreasons.learners.eeil:EEIL",
        "bic": "rightreasons.learners.bic:BiC",
        "itaml": "rightreasons.learners.itaml:ITAML",
        "icarl-fscil": "rightreasons.learners.fscil:ICaRLFSCIL",
        "eeil-fscil": "rightreasons.learners.fscil:EEILFSCIL",
        "topic": "rightreasons.learners.topic:TOPIC",
    },
)
TERMS = Known(
    "terms",
    {
        "rrr": "rightreasons.terms:RRR",
        "evidence": "rightreasons.terms:Evidence",
        "logits": "rightreasons.terms:Logits",
        "activations": "rightreasons.terms:Activations",
    },
)
SOURCES = Known(
    "sources",
    {
        "glyphs": "rightreasons.data.glyphs:Glyphs",
        "cifar100": "rightreasons.data.cifar100:Cifar100",
        "cub200": "rightreasons.data.cub200:Cub200",
        "folder": "rightreasons.data.folder:Folder",
    },
)
OTHER_EXPLAINERS = Known("explainers", {})  # ours are in `explainers`
OTHER_NETS = Known("nets", {})  # ours are in `nets`


def find(kind: str, known: Mapping[str, str], name: object) -> Any:
    """The class or function behind a name."""
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, name, known)
    if isinstance(known, Known) and name not in known.own:
        return _foreign(known, name)
    module, attribute = known[name].split(":")
    return getattr(import_module(module), attribute)


def usable(known: Known) -> Iterator[tuple[str, Any]]:
    """Every part that can be imported, with its name."""
    for name in known:
        try:
            yield name, find(known.group, known, name)
        except UserError:  # whoever asks for it by its name is told why
            continue


def _foreign(known: Known, name: str) -> Any:
    """A part of another package; what is wrong with it is said with its name."""
    point = known.others[name]
    package = point.dist.name if point.dist else point.module
    where = f"{name!r} of package {package} ({known.group} = {point.value!r})"
    try:
        found = point.load()
    except Exception as error:  # of another's code: it may be anything, and nothing is swallowed
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"{where} cannot be imported ({why}); repair the package, or type "
            f"pip uninstall {package}"
        ) from error
    wrong = _misfit(known.group.partition(".")[2], name, found)
    if wrong:
        raise UserError(f"{where} {wrong}")
    return found


def _misfit(group: str, name: str, found: Any) -> str:
    """What keeps a part from being used under its name, if anything does."""
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or name in SECTIONS:
        return "has a name that no method can bear; use letters, digits, - and _"
    if group in ("learners", "terms"):
        from rightreasons.learners.base import Learner
        from rightreasons.terms import Term

        base = Learner if group == "learners" else Term
        if not isinstance(found, type) or not issubclass(found, base):
            return f"is not a subclass of rr.{base.__name__}; make it one"
        if getattr(found, "name", None) != name:
            own = getattr(found, "name", None)
            return f"calls itself {own!r}; let its class have name = {name!r}"
    elif group == "sources":
        if not all(hasattr(found, part) for part in ("names", "flip", "load")):
            return "is no data source; it needs names, flip and load (rightreasons.data.sources)"
    elif not callable(found):
        return f"is a {type(found).__name__}; point it at a function"
    return ""


def split_method(method: str) -> tuple[str, list[str]]:
    """``er+rrr`` -> ``er`` and ``[rrr]``, both known."""
    learner, *terms = method.split("+")
    if learner not in LEARNERS:
        raise unknown("method", learner, LEARNERS)
    for term in terms:
        if term not in TERMS:
            raise unknown("term", term, TERMS)
    if len(set(terms)) < len(terms):
        raise UserError(f"method {method!r} names a term twice; name each once")
    return learner, terms
