"""Net wraps any classifier: it returns logits, embedding and tapped maps, and its head grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rightreasons.errors import UserError, unknown
from rightreasons.types import Out

Initialise = Callable[[nn.Module, torch.Generator], None]
# the tap of the images themselves; no submodule can bear this name by an attribute
INPUT = "(input)"
MOST, LEAST = 256, 16  # images of a forward that may take any number
PIXELS = 2**16  # on a CPU: with more of them the maps of a layer do not stay in its cache
_BN = nn.modules.batchnorm._BatchNorm


class Net(nn.Module):
    """A classifier with taps and a growing head.

    ``taps`` maps aliases (``last_block``, ``paper``) to names of submodules; any submodule's own
    name is a tap too, and ``INPUT`` the images; `retarget` points ``paper`` elsewhere.
    ``pooled_linear`` says that the logits are one linear layer on the global average of
    ``last_block``: closed forms of Grad-CAM and evidence hold then. ``initialise`` draws the
    weights of a net that has none worth keeping; ``fit`` calls it with the run's seed.
    A net that is not ``owned`` leaves the module's head as it is: somebody else trains it.
    """

    def __init__(
        self,
        module: nn.Module,
        head: str,
        taps: Mapping[str, str],
        pooled_linear: bool = False,
        initialise: Initialise | None = None,
        channels_last: bool = False,
        name: str | None = None,
        weights: str | None = None,
        flatten: int | None = None,
        owned: bool = True,
    ) -> None:
        super().__init__()
        self.target: str | None = None
        self.weights, self.flatten = weights, flatten  # how it was built, for a run's config
        self.module = module
        self.head_name = head
        self.taps = dict(taps)
        self.pooled_linear = pooled_linear
        self.initialise = initialise
        self.channels_last = channels_last  # faster convolutions; not every module takes it
        self.name = name or type(module).__name__
        out_of_place(module)
        last = self._find(head, "head")
        if is_pointwise(last) and owned:
            last = Pointwise(last)
            parent, _, leaf = head.rpartition(".")
            setattr(module.get_submodule(parent), leaf, last)
        if not isinstance(last, nn.Linear) and not is_pointwise(last):
            raise UserError(
                f"head {head!r} is a {type(last).__name__}, expected nn.Linear or a 1x1 nn.Conv2d; "
                "pass head= the name of the last linear layer"
            )
        for path in self.taps.values():
            self._find(path, "layer")
        if channels_last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if initialise is not None:
            initialise(self, torch.Generator().manual_seed(0))
        if owned:
            self.resize(0)  # no class has been seen: the first task grows the head

    def _find(self, path: str, kind: str) -> nn.Module:
        parts: dict[str, nn.Module] = dict(self.module.named_modules())
        if path not in parts or not path:
            raise unknown(kind, path, [name for name in parts if name])
        return parts[path]

    @property
    def head(self) -> nn.Linear:
        return self.module.get_submodule(self.head_name)  # type: ignore[return-value]

    @property
    def classes(self) -> int:
        return self.head.out_features

    def path(self, tap: str) -> str:
        """The submodule behind a tap."""
        return self.taps.get(tap, tap)

    @property
    def last_block(self) -> str:
        """The last block with a kernel before the head: the innermost one of ``last_block``, or, if
        that has none, the last layer before it. Scales and offsets alone are no block."""
        path = self.path("last_block")
        part = self._find(path, "layer")
        if not _kernels(part.parameters()):
            named = list(self.module.named_modules())
            before = named[: [name for name, _ in named].index(path)]
            last: str = [name for name, m in before if _kernels(m.parameters(recurse=False))][-1]
            return last
        while type(part) is nn.Sequential:
            own = [pair for pair in part.named_children() if _kernels(pair[1].parameters())]
            path, part = f"{path}.{own[-1][0]}", own[-1][1]
        return path

    @property
    def ends_in_last_block(self) -> bool:
        """Does the head read the mean of what the last block gives, with nothing in between?"""
        path, last = self.path("last_block"), self.last_block
        while path != last:
            part = self._find(path, "layer")
            if type(part) is not nn.Sequential:
                return False
            path = f"{path}.{list(part.named_children())[-1][0]}"
        return self.pooled_linear

    def last_parameters(self) -> list[Tensor]:
        """Of the last block and of what is behind it, in order of registration, without head."""
        names = [name for name, _ in self.module.named_parameters()]
        first = next(i for i, name in enumerate(names) if name.startswith(f"{self.last_block}."))
        head = set(self.head.parameters())
        return [p for p in list(self.module.parameters())[first:] if p not in head]

    def check_tap(self, tap: str) -> None:
        if tap not in self.taps and tap != INPUT:
            self._find(tap, "layer")

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, taps: Sequence[str] = ()) -> Out: ...

    def retarget(self, layer: str | None) -> Net:
        """Let Grad-CAM's ``paper`` be another layer; None leaves it."""
        if layer is not None:
            self.check_tap(layer)
            self.target, self.taps["paper"] = layer, self.path(layer)
        return self

    def forward(self, x: Tensor, taps: Sequence[str] = ()) -> Out:
        caught: dict[str, tuple[Tensor, int]] = {}
        if INPUT in taps:
            x = x.detach().requires_grad_(torch.is_grad_enabled())  # a leaf of its own
            caught[INPUT] = (x, x._version)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with ExitStack() as hooks:  # hooks live for this call only
            for tap in dict.fromkeys(tap for tap in taps if tap != INPUT):
                layer = self._layer(tap)
                handle = layer.register_forward_hook(_catch_output(caught, tap, self.path(tap)))
                hooks.callback(handle.remove)
            last = self.module.get_submodule(self.head_name)
            handle = last.register_forward_pre_hook(_catch_input(caught))
            hooks.callback(handle.remove)
            logits = self.module(x)
        check_logits(logits, self.name)
        for tap in taps:
            if tap not in caught:
                raise UserError(
                    f"layer {self.path(tap)!r} was not called in the forward pass; choose another"
                )
            value, version = caught[tap]
            if value._version != version:
                raise UserError(
                    f"something after layer {self.path(tap)!r} writes into its output in place; "
                    "replace that operation by its out-of-place form"
                )
        z, _ = caught.pop("")
        maps = {tap: value for tap, (value, _) in caught.items()}
        return Out(logits, z.mean((2, 3)) if z.ndim == 4 else z, maps)

    def _layer(self, tap: str) -> nn.Module:
        try:
            return self.module.get_submodule(self.path(tap))
        except AttributeError:
            return self._find(self.path(tap), "layer")

    @torch.no_grad()
    def grow(self, classes: int, generator: torch.Generator | None = None) -> None:
        """Widen the head to so many classes: old rows kept, new ones drawn as nn.Linear does."""
        head, old = self.head, self.classes
        if classes < old:
            raise UserError(
                f"the head has {old} rows and cannot shrink to {classes}; a net that is to learn "
                "starts without classes, so leave out keep_head"
            )
        if classes == old:
            return
        bound = head.in_features**-0.5

        def more(rows: Tensor) -> nn.Parameter:
            new = torch.empty((classes - old, *rows.shape[1:]), dtype=torch.float32)
            new.uniform_(-bound, bound, generator=generator)
            return nn.Parameter(torch.cat([rows, new.to(rows)]))

        head.weight = more(head.weight)
        if head.bias is not None:
            head.bias = more(head.bias)
        head.out_features = classes

    @torch.no_grad()
    def resize(self, classes: int) -> None:
        """A head of so many rows whose values are yet to be loaded or grown."""
        head = self.head
        head.weight = nn.Parameter(head.weight.new_zeros(classes, head.in_features))
        if head.bias is not None:
            head.bias = nn.Parameter(head.bias.new_zeros(classes))
        head.out_features = classes

    def statistics(self, norm: str) -> AbstractContextManager[None]:
        """What BatchNorm does, inside: frozen, batch or train."""
        if norm == "train":
            return nullcontext()
        return self.frozen_statistics() if norm == "frozen" else self.batch_statistics()

    @contextmanager
    def frozen_statistics(self) -> Iterator[None]:
        """BatchNorm by its running statistics and nothing at random (dropout, stochastic depth),
        inside; weights stay trainable.

        A map then depends on its own image alone, not on its batch mates, and the running
        statistics are left as they are.
        """
        with _down(self._parts, "training"):
            yield

    @contextmanager
    def batch_statistics(self) -> Iterator[None]:
        """BatchNorm by the batch, running statistics as they are, nothing at random, inside."""
        norms = [part for part in self._parts if isinstance(part, _BN)]
        others = [part for part in self._parts if not isinstance(part, _BN)]
        with _down(norms, "track_running_stats"), _down(others, "training"):
            yield

    @property
    def _parts(self) -> list[nn.Module]:
        """What changes its mode for an explanation: a block may call dropout itself."""
        return list(self.modules())


def _kernels(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those that are no mere scale or offset of channels."""
    return [p for p in parameters if p.ndim > 1]


@contextmanager
def _down(parts: Sequence[nn.Module], flag: str) -> Iterator[None]:
    """A flag is down, inside, wherever it is up."""
    switched = [part for part in parts if getattr(part, flag)]
    for part in switched:
        setattr(part, flag, False)
    try:
        yield
    finally:
        for part in switched:
            setattr(part, flag, True)


class Pointwise(nn.Linear):
    """A 1x1 convolution as what it is: one linear layer at every place of a map (B,K,u,v)."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        bias = convolution.bias is not None
        super().__init__(convolution.in_channels, convolution.out_channels, bias)
        self.weight = nn.Parameter(convolution.weight.detach()[:, :, 0, 0].clone())
        if convolution.bias is not None:
            self.bias = nn.Parameter(convolution.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight[:, :, None, None], self.bias)


def is_pointwise(part: nn.Module) -> TypeGuard[nn.Conv2d]:
    return (
        isinstance(part, nn.Conv2d)
        and part.kernel_size == (1, 1)
        and part.stride == (1, 1)
        and part.padding in ((0, 0), "valid", "same")
        and part.groups == 1
    )


def out_of_place(module: nn.Module) -> nn.Module:
    """No part writes into its input: a tap must keep its value until it is read."""
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]
    return module


def check_logits(found: object, name: str) -> None:
    if not isinstance(found, Tensor) or found.ndim != 2:
        what = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UserError(
            f"{name} returns {what}, expected logits of shape (B,C); wrap it so that it does"
        )


def _catch_output(
    caught: dict[str, tuple[Tensor, int]], tap: str, path: str
) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.ndim != 4:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise UserError(
                f"layer {path!r} gives {shape}, expected maps of shape (B,K,u,v); "
                "choose a convolutional layer as target"
            )
        own = all(output is not given for given in args)  # not what somebody else has handed over
        if own and torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()  # behind frozen weights: a derivative at it begins here
        caught[tap] = (output, output._version)

    return hook


def _catch_input(caught: dict[str, tuple[Tensor, int]]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        caught[""] = (args[0], args[0]._version)

    return hook


def chunk(side: int, device: torch.device) -> int:
    """How many images of this side a forward takes at a time, where any number will do.

    >>> [chunk(side, torch.device("cpu")) for side in (16, 32, 64, 96, 224)]
    [256, 64, 16, 16, 16]
    """
    if device.type != "cpu":
        return MOST
    return min(MOST, max(LEAST, PIXELS // side**2))
