"""Terms: extra losses that any learner can carry."""

from rightreasons.terms.base import Term
from rightreasons.terms.controls import Activations, Logits
from rightreasons.terms.evidence import Evidence
from rightreasons.terms.rrr import RRR

__all__ = ["RRR", "Activations", "Evidence", "Logits", "Term"]
