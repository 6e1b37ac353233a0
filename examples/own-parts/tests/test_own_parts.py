from own_parts.explainer import hirescam
from own_parts.learner import Slow

import rightreasons as rr


def test_the_learner_keeps_the_contract():
    rr.testing.check_learner(Slow())


def test_the_explainer_keeps_the_contract():
    rr.testing.check_explainer(hirescam)
