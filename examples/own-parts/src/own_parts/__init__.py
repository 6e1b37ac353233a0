"""A learner and an explainer of one's own."""
