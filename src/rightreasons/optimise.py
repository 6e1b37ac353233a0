"""How to train: the fields that all learners share, optimisers and learning rates."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from rightreasons.augment import Augment
from rightreasons.config import check_types, make
from rightreasons.distributed import average, place
from rightreasons.errors import UserError, unknown, why
from rightreasons.nets.base import Net
from rightreasons.radam import RAdam
from rightreasons.randomness import generator
from rightreasons.timing import BACKWARD, LOADING, OPTIMISER, span
from rightreasons.types import Stage, Task, Where

THREADS = 1024  # the system refuses so many, in its own way
OPTIMISERS = ("radam", "sgd", "adamw")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class Train:
    """How to train: what is the same for every learner."""

    epochs: int = 5
    batch: int = 32
    replay: int | None = None
    """memory rows beside each batch of new images (paired replay); as many as `batch` by default"""
    optimiser: str = "radam"
    lr: float = 2e-3
    milestones: tuple[int, ...] = ()
    """epochs after which the learning rate is multiplied by `gamma`"""
    gamma: float = 0.2
    momentum: float = 0.9
    """of sgd"""
    nesterov: bool = False
    """sgd looks ahead by its momentum"""
    weight_decay: float = 0.0
    freeze_bn: bool = False
    """BatchNorm by its running statistics from the second task on"""
    clip: float | None = None
    """largest norm of the gradient"""
    noise: float = 0.0
    """standard deviation of noise on the gradient, times (1 + epoch)^-0.55 (EEIL: 0.3)"""
    augment: Augment | None = None
    """by default a crop of 4 pixels, and a flip if the data allows it"""
    later: dict[str, Any] = field(default_factory=dict)
    """what is different from the second task on, such as {batch: 10, lr: 0.002}"""
    precision: str = "float32"
    """of the forward: float32, or bf16 where the hardware has it; losses and maps stay float32"""
    compile: bool = False
    """torch.compile for the parts of the net that hold neither head nor tapped layer"""
    device: str = "auto"
    threads: int | None = None
    """CPU threads; results are equal bit by bit at an equal number"""

    def __post_init__(self) -> None:
        check_types(self, "train")
        if self.optimiser not in OPTIMISERS:
            raise unknown("train.optimiser", self.optimiser, OPTIMISERS)
        if self.precision not in PRECISIONS:
            raise unknown("train.precision", self.precision, PRECISIONS)
        for name in ("epochs", "batch", "replay", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"train.{name} is {value}, expected at least 1")
        if self.threads is not None and self.threads > THREADS:
            raise UserError(f"train.threads is {self.threads}, expected {THREADS} at most")
        for name in ("lr", "gamma", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"train.{name} is {value}, expected a number above 0")
        for name, below in (("momentum", 1.0), ("weight_decay", math.inf), ("noise", math.inf)):
            value = getattr(self, name)
            if not 0 <= value < below:
                raise UserError(f"train.{name} is {value}, expected 0 or more, below {below}")
        if self.nesterov and not self.momentum:
            raise UserError("train.nesterov needs momentum; type train.momentum=0.9")
        if self.later:
            part_of_run(self.later, "train.later")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        passed = sum(epoch >= milestone for milestone in self.milestones)
        return self.lr * self.gamma**passed

    def on(self, flip: bool) -> Train:
        """With an augmentation that is settled: mirror images, if nothing is said, by ``flip``."""
        how = self.augment or Augment()
        return replace(self, augment=how if how.flip is not None else replace(how, flip=flip))

    def at(self, task: Task, stage: Stage) -> Train:
        """What holds in this stage of this task."""
        changed: dict[str, Any] = {"later": {}}
        for fields in (self.later if task.index else {}, stage.train):
            made = part_of_run(fields, "train.later" if fields is self.later else stage.name)
            changed |= {name: getattr(made, name) for name in fields}
            if made.augment is not None and self.augment is not None:
                changed["augment"] = self._changed(fields["augment"], made.augment)
        return replace(self, **changed)

    def _changed(self, given: Any, made: Augment) -> Augment:
        """The run's augmentation with what is different; an `Augment` says all but cut and flip."""
        assert self.augment is not None
        if isinstance(given, Mapping):
            said = {name: getattr(made, name) for name in given}
            return replace(self.augment, **{k: v for k, v in said.items() if v is not None})
        flip = self.augment.flip if made.flip is None else made.flip
        return replace(made, cut=self.augment.cut, flip=flip)


def part_of_run(fields: Mapping[str, Any], where: str) -> Train:
    """Fields of `Train` that hold for some tasks or stages; the others hold for a whole run."""
    once: dict[str, Any] = {
        "device": "auto",
        "threads": None,
        "compile": False,
        "precision": "float32",
    }
    made = make(Train, fields, where, later={}, **once)
    if made.augment is not None and made.augment.cut is not None:
        raise UserError(
            f"{where}.augment.cut is {made.augment.cut}, and the images of a run have one size; "
            f"type train.augment.cut={made.augment.cut}"
        )
    return made


@contextmanager
def training(net: Net, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Only these parameters need a gradient, inside; a learner's own are among them or not."""
    chosen = {id(p) for p in parameters}
    switched = [p for p in net.parameters() if id(p) not in chosen and p.requires_grad]
    own = [p for p in parameters if not p.requires_grad]
    for p in (*switched, *own):
        p.requires_grad_(not p.requires_grad)
    try:
        yield
    finally:
        for p in (*switched, *own):
            p.requires_grad_(not p.requires_grad)


class Updater:
    """What moves the weights, with a fresh optimiser: its state belongs to one stage of a task.

    ``held`` are parts of parameters that stay as they are: a parameter, and how many of its first
    rows.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        train: Train,
        seed: int = 0,
        held: Sequence[tuple[Tensor, int]] = (),
    ) -> None:
        self.parameters, self.train, self.seed = list(parameters), train, seed
        self.held = [(p, p.detach()[:rows].clone()) for p, rows in held if rows]
        with span(LOADING):  # the first one of a process has torch fetch its compiler
            self.optimiser = make_optimiser(self.parameters, train)

    def __call__(self, where: Where, loss: Tensor) -> None:
        """One step, at a place: task, stage, epoch, step."""
        train, epoch = self.train, int(where[2])
        for group in self.optimiser.param_groups:
            group["lr"] = train.rate(epoch)
        self.optimiser.zero_grad(set_to_none=True)
        with span(BACKWARD):
            loss.backward()  # type: ignore[no-untyped-call]
        average(self.parameters)
        with span(OPTIMISER):
            if train.noise:
                by = generator(self.seed, "gradient", *where)
                add_noise(self.parameters, noise_level(train.noise, epoch), by)
            for p, rows in self.held:
                if p.grad is not None:
                    p.grad[: len(rows)] = 0
            if train.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters, train.clip)
            lay_out(self.parameters)
            self.optimiser.step()
            with torch.no_grad():  # weight decay moves what has no gradient, too
                for p, rows in self.held:
                    p[: len(rows)] = rows


def noise_level(noise: float, epoch: int) -> float:
    """The standard deviation of the gradient noise in an epoch (Neelakantan et al. 2015)."""
    return noise / float((1 + epoch) ** 0.55)


def add_noise(parameters: Sequence[Tensor], level: float, by: torch.Generator) -> None:
    """Gaussian noise on the gradients, from one draw."""
    moved = [p.grad for p in parameters if p.grad is not None]
    drawn = torch.randn(sum(g.numel() for g in moved), generator=by) * level
    parts = torch.split(drawn, [g.numel() for g in moved])
    for grad, part in zip(moved, parts, strict=True):
        grad += part.view_as(grad).to(grad)


def make_optimiser(parameters: list[Tensor], train: Train) -> torch.optim.Optimizer:
    """One pass over the weights where torch has a kernel for it, few calls everywhere."""
    lr, decay = train.lr, train.weight_decay
    if train.optimiser == "sgd":
        return torch.optim.SGD(
            parameters,
            lr,
            train.momentum,
            weight_decay=decay,
            nesterov=train.nesterov,
            foreach=True,
        )
    if all(p.device.type == "cpu" for p in parameters):
        if train.optimiser == "radam":
            return RAdam(parameters, lr, weight_decay=decay)
        return torch.optim.AdamW(parameters, lr, weight_decay=decay, fused=True)
    kind = torch.optim.RAdam if train.optimiser == "radam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=decay, foreach=True)


def lay_out(parameters: Sequence[Tensor]) -> None:
    """Let each gradient lie in memory as its parameter does: fused kernels do not look."""
    for p in parameters:
        if p.grad is not None and p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)


def pick_device(name: str) -> torch.device:
    """The device of a name, if torch can use it; auto takes a GPU or else the CPU."""
    try:
        found = place(name)
        torch.zeros(1, device=found).item()
        return torch.device(found)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"train.device is {name!r}, which torch cannot use here ({why(error)}); type "
            "train.device=auto"
        ) from None


def check_precision(name: str, device: torch.device) -> None:
    """Refuse bf16 where it is emulated: on a CPU without it a step takes many times as long."""
    if name == "bf16" and not has_bf16(device):
        raise UserError(
            f"train.precision is bf16, which this {device.type} only emulates, many times slower; "
            "type train.precision=float32"
        )
    if name == "bf16" and device.type == "cpu" and amx_is_used():
        raise UserError(
            "train.precision is bf16, and on this CPU torch would use AMX, whose kernels for "
            "convolutions with a stride end the process (illegal instruction); write "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the command or type train.precision=float32"
        )


def amx_is_used() -> bool:
    """Whether torch's kernels may use AMX; oneDNN reads its limit once, before it computes."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    allowed = limit in ("ALL", "DEFAULT") or "AMX" in limit
    return allowed and bool(torch.cpu.get_capabilities().get("amx_tile"))


def has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        return bool(has.get("avx512_bf16") or has.get("amx_bf16") or has.get("bf16"))
    return True
