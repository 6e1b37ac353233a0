"""Optimisers: the fused ones against torch's plain ones."""

import pytest
import torch

from rightreasons.optimise import Train, Updater, make_optimiser
from rightreasons.radam import RAdam, as_adam

PLAIN = {"radam": torch.optim.RAdam, "adamw": torch.optim.AdamW}


def weights(dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    shapes = (7, 5), (4, 3, 3, 3), (5,)
    made = [torch.randn(shape, generator=draw, dtype=dtype) for shape in shapes]
    made[1] = made[1].contiguous(memory_format=torch.channels_last)
    return made


def gradients(parameters, step):
    """Of all sizes; the last parameter has none now and then."""
    draw = torch.Generator().manual_seed(step)
    for p in parameters:
        p.grad = torch.empty_like(p).copy_(
            torch.randn(p.shape, generator=draw) * 10 ** (step % 7 - 4)
        )
    if step % 3 == 0:
        parameters[-1].grad = None


def walk(parameters, optimiser, steps):
    for step in steps:
        gradients(parameters, step)
        optimiser.step()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.9)])
def test_radam_is_torchs(decay, betas):
    ours, theirs = weights(), weights()
    walk(ours, RAdam(ours, 0.01, betas, weight_decay=decay), range(40))
    walk(theirs, torch.optim.RAdam(theirs, 0.01, betas, weight_decay=decay), range(40))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(ours[0], weights()[0], atol=0.01)


def test_radam_is_torchs_with_large_gradients_at_the_first_step():
    ours, theirs = weights(torch.float32), weights(torch.float32)
    for parameters, kind in ((ours, RAdam), (theirs, torch.optim.RAdam)):
        for p in parameters:
            p.grad = torch.full_like(p, 1e7)
        kind(parameters, 1e-6).step()
    torch.testing.assert_close(ours, theirs)


def test_radam_goes_on_with_torchs_state_and_torch_with_ours():
    straight, crossed, state = weights(), weights(), None
    walk(straight, torch.optim.RAdam(straight, 0.01), range(30))
    for kind, steps in (
        (RAdam, range(10)),
        (torch.optim.RAdam, range(10, 20)),
        (RAdam, range(20, 30)),
    ):
        optimiser = kind(crossed, 0.01)
        if state:
            optimiser.load_state_dict(state)
        walk(crossed, optimiser, steps)
        state = optimiser.state_dict()
    torch.testing.assert_close(straight, crossed, rtol=1e-10, atol=1e-12)


def test_radam_warms_up_for_five_steps():
    """As its paper says of beta2 = 0.999."""
    assert [t for t in range(1, 10) if as_adam(1, 1e-8, 0.999, t)[1] > 1] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", PLAIN)
def test_a_gradient_may_lie_otherwise_than_its_weight(name):
    """A fused kernel walks through memory; a gradient in another order would go astray."""
    train = Train(optimiser=name, lr=0.01, weight_decay=0.1)
    ours, theirs = (w.requires_grad_() for w in (weights()[1], weights()[1]))
    ours.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.contiguous()))
    update = Updater([ours], train)
    optimiser = PLAIN[name]([theirs], 0.01, weight_decay=0.1)
    for step in range(10):
        pull = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(step)).double()
        update((0, "main", 0, step), (ours * pull).sum())
        optimiser.zero_grad()
        (theirs * pull).sum().backward()
        optimiser.step()
    assert ours.stride() == theirs.stride() != pull.stride()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_a_cpu_gets_the_fused_kernel(name):
    made = make_optimiser(weights(), Train(optimiser=name))
    assert isinstance(made, RAdam) if name == "radam" else made.defaults["fused"]


@pytest.mark.parametrize("name", PLAIN)
def test_another_device_gets_torchs_own(name):
    made = make_optimiser([torch.empty(3, device="meta")], Train(optimiser=name))
    assert type(made) is PLAIN[name] and made.defaults["foreach"]
