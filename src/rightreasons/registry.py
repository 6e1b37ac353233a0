"""What there is by name: learners, terms, data sources. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rightreasons.errors import UserError, unknown

LEARNERS = {
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
}
TERMS = {
    "rrr": "rightreasons.terms:RRR",
    "evidence": "rightreasons.terms:Evidence",
    "logits": "rightreasons.terms:Logits",
    "activations": "rightreasons.terms:Activations",
}
SOURCES = {
    "glyphs": "rightreasons.data.glyphs:Glyphs",
    "cifar100": "rightreasons.data.cifar100:Cifar100",
    "cub200": "rightreasons.data.cub200:Cub200",
    "folder": "rightreasons.data.folder:Folder",
}


def find(kind: str, known: Mapping[str, str], name: object) -> Any:
    """The class behind a name."""
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, name, known)
    module, attribute = known[name].split(":")
    return getattr(import_module(module), attribute)


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
