"""The few-shot variants of iCaRL and EEIL: losses of new images and of anchors."""

from __future__ import annotations

import pytest
import torch
from literal import cross_entropy, distillation, linear_net, logits_of, part, task_of, three_tasks

import rightreasons as rr


@pytest.mark.parametrize(
    ("learner", "weight", "old"),
    [
        (rr.ICaRLFSCIL(), 1.0, 0.0),
        (rr.ICaRLFSCIL(weight=3.0, temperature=1.5), 3.0, 0.0),
        (rr.EEILFSCIL(), 0.8, 0.004),
        (rr.EEILFSCIL(weight=0.5, old=2.0), 0.5, 2.0),
    ],
)
def test_the_loss_over_three_tasks(learner, weight, old):
    """CE of new images over all classes; KD and, for EEIL, a little CE on rows of memory."""
    for net, before, batch, task in three_tasks(learner):
        labels = batch.y.tolist()
        new = [i for i, y in enumerate(labels) if y in task.classes]
        rows = [i for i, y in enumerate(labels) if y not in task.classes]
        batch = batch._replace(
            row=torch.tensor([-1 if i in new else i for i in range(len(labels))])
        )
        z = logits_of(net, batch.x)
        expected = cross_entropy([z[i] for i in new], [labels[i] for i in new])
        if before is not None:
            taught = logits_of(before, batch.x)
            own = part([z[i] for i in rows], 0, task.classes[0])
            expected += weight * distillation(own, [taught[i] for i in rows], learner.temperature)
            expected += old * cross_entropy([z[i] for i in rows], [labels[i] for i in rows])
        (stage,) = learner.stages(task)
        ours = learner.loss(net, net(batch.x), batch, stage).item()
        assert ours == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [rr.ICaRLFSCIL, rr.EEILFSCIL])
def test_the_last_block_and_the_head_train_from_the_second_task_on(kind, tiny_net):
    learner = kind()
    first, later = (learner.stages(task_of(i, [i]))[0] for i in (0, 1))
    assert (first.params, later.params) == ("all", "last_block+head")
    assert len(learner.trained(tiny_net, first)) == len(list(tiny_net.parameters()))
    trained = learner.trained(tiny_net, later)
    names = [n for n, p in tiny_net.named_parameters() if any(p is q for q in trained)]
    assert all(n.startswith(("module.stages.1.0.", "module.fc.")) for n in names)
    assert len(names) == 11
    with pytest.raises(rr.UserError, match="temperature"):
        kind(temperature=0)


def test_predictions_are_the_logits():
    net = linear_net(3, 1)
    out = net(torch.zeros(2, 3, 2, 2, dtype=torch.float64))
    assert rr.ICaRLFSCIL().predict(net, None, out, None) is out.logits
