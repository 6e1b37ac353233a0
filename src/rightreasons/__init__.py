"""Continual learning that remembers not only examples but the reasons for its decisions.

Implements "Remembering for the Right Reasons: Explanations Reduce Catastrophic Forgetting"
(Ebrahimi et al., ICLR 2021). Public names are imported when they are first used, so that
``import rightreasons`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Activations": "terms",
    "Augment": "augment",
    "BiC": "learners.bic",
    "EEIL": "learners.eeil",
    "EEILFSCIL": "learners.fscil",
    "ER": "learners.er",
    "EWC": "learners.ewc",
    "Evidence": "terms",
    "Finetune": "learners.finetune",
    "ICaRL": "learners.icarl",
    "ICaRLFSCIL": "learners.fscil",
    "ITAML": "learners.itaml",
    "Joint": "learners.joint",
    "Learner": "learners.base",
    "Logits": "terms",
    "LwF": "learners.lwf",
    "LwFMC": "learners.lwf",
    "Memory": "memory",
    "Model": "model",
    "Net": "nets.base",
    "RRR": "terms",
    "Result": "result",
    "Stage": "types",
    "Stream": "streams",
    "TOPIC": "learners.topic",
    "Term": "terms",
    "Train": "optimise",
    "UserError": "errors",
    "evidence": "explainers",
    "export": "exports",
    "extend": "model",
    "fit": "train",
    "backprop": "explainers",
    "deconvnet": "explainers",
    "gradcam": "explainers",
    "gradient_x_input": "explainers",
    "guided": "explainers",
    "guided_gradcam": "explainers",
    "integrated_gradients": "explainers",
    "sanity": "sanitycheck",
    "smoothgrad": "explainers",
    "storage": "accounting",
    "load": "model",
    "net": "nets",
    "plot_curves": "reports.plots",
    "plot_evolution": "reports.plots",
    "report": "reports.write",
    "stream": "streams",
    "table": "reports.notebook",
}

__all__ = sorted([*_HOME, "__version__"])

if TYPE_CHECKING:
    from rightreasons import testing as testing
    from rightreasons.accounting import storage as storage
    from rightreasons.augment import Augment as Augment
    from rightreasons.errors import UserError as UserError
    from rightreasons.explainers import backprop as backprop
    from rightreasons.explainers import deconvnet as deconvnet
    from rightreasons.explainers import evidence as evidence
    from rightreasons.explainers import gradcam as gradcam
    from rightreasons.explainers import gradient_x_input as gradient_x_input
    from rightreasons.explainers import guided as guided
    from rightreasons.explainers import guided_gradcam as guided_gradcam
    from rightreasons.explainers import integrated_gradients as integrated_gradients
    from rightreasons.explainers import smoothgrad as smoothgrad
    from rightreasons.exports import export as export
    from rightreasons.learners.base import Learner as Learner
    from rightreasons.learners.bic import BiC as BiC
    from rightreasons.learners.eeil import EEIL as EEIL
    from rightreasons.learners.er import ER as ER
    from rightreasons.learners.ewc import EWC as EWC
    from rightreasons.learners.finetune import Finetune as Finetune
    from rightreasons.learners.fscil import EEILFSCIL as EEILFSCIL
    from rightreasons.learners.fscil import ICaRLFSCIL as ICaRLFSCIL
    from rightreasons.learners.icarl import ICaRL as ICaRL
    from rightreasons.learners.itaml import ITAML as ITAML
    from rightreasons.learners.joint import Joint as Joint
    from rightreasons.learners.lwf import LwF as LwF
    from rightreasons.learners.lwf import LwFMC as LwFMC
    from rightreasons.learners.topic import TOPIC as TOPIC
    from rightreasons.memory import Memory as Memory
    from rightreasons.model import Model as Model
    from rightreasons.model import extend as extend
    from rightreasons.model import load as load
    from rightreasons.nets import net as net
    from rightreasons.nets.base import Net as Net
    from rightreasons.optimise import Train as Train
    from rightreasons.reports.notebook import table as table
    from rightreasons.reports.plots import plot_curves as plot_curves
    from rightreasons.reports.plots import plot_evolution as plot_evolution
    from rightreasons.reports.write import report as report
    from rightreasons.result import Result as Result
    from rightreasons.sanitycheck import sanity as sanity
    from rightreasons.streams import Stream as Stream
    from rightreasons.streams import stream as stream
    from rightreasons.terms import RRR as RRR
    from rightreasons.terms import Activations as Activations
    from rightreasons.terms import Evidence as Evidence
    from rightreasons.terms import Logits as Logits
    from rightreasons.terms import Term as Term
    from rightreasons.train import fit as fit
    from rightreasons.types import Stage as Stage


def __getattr__(name: str) -> Any:
    if name == "testing":  # a module, and the only one that goes by its name
        return import_module("rightreasons.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'rightreasons' has no attribute {name!r}")
    return getattr(import_module(f"rightreasons.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
