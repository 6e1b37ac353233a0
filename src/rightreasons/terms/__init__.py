"""Terms: extra losses that any learner can carry."""

from rightreasons.terms.base import Term
from rightreasons.terms.evidence import Evidence, Logits
from rightreasons.terms.rrr import RRR

__all__ = ["RRR", "Evidence", "Logits", "Term"]
