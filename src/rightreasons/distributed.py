"""One run in several processes, each with a share of every batch; one process is left as it is.

Every process draws the same batches and holds the same memory. It forwards its `own` images of a
batch and gets the answers to all of them back (`whole`), so that the same loss is computed by
everybody. The gradient of an answer goes back to the process that gave it, times the number of
processes; `average` then makes of all gradients their mean, which is the gradient of that loss:
what comes by the answers is a sum over processes, what a loss takes from the weights themselves is
there in each of them, and equal.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rightreasons import __version__
from rightreasons.checkpoints import load_plain, mark
from rightreasons.errors import UserError, why
from rightreasons.launch import processes
from rightreasons.memory import Column, Ragged
from rightreasons.nets.base import Net
from rightreasons.runfiles import differences
from rightreasons.state import pack, unpack
from rightreasons.timing import EXCHANGE, span
from rightreasons.types import Batch, Out

LEAST = 2  # images of a batch for each process, or all of them forward all: BatchNorm needs two
T = TypeVar("T")
Item = TypeVar("Item")


class Lost(UserError):
    """Processes of one run that cannot reach each other any more."""


class Group(NamedTuple):
    rank: int = 0
    size: int = 1


ALONE = Group()
_group = ALONE


def group() -> Group:
    """The processes of the run that is under way."""
    return _group


# --- coming together -----------------------------------------------------------------------------


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Inside, the processes that torchrun has started are one run's; without it, this one is."""
    global _group
    if _group.size > 1 or _started() == 1:
        yield _group
        return
    if not dist.is_initialized():
        _initialise(device)
    needed, given = _backend(device), str(dist.get_backend_config())
    if not all(word.rpartition(":")[2] in given for word in needed.split(",")):
        raise UserError(
            f"the process group has {given}, expected {needed}; type "
            f"init_process_group({needed!r}), or leave that to rr.fit"
        )
    _group = Group(dist.get_rank(), dist.get_world_size())
    try:
        yield _group
    finally:
        _group = ALONE


def _backend(device: str) -> str:
    """What carries numbers: on a GPU nccl, and gloo for what stays on the CPU."""
    return "cpu:gloo,cuda:nccl" if device_type(device) == "cuda" else "gloo"


def _started() -> int:
    """How many processes there are, by torch or by the environment that torchrun makes."""
    if not dist.is_available() and processes() > 1:
        raise UserError(
            f"this torch has no torch.distributed for {processes()} processes; start one"
        )
    there = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if there else processes()


def _initialise(device: str) -> None:
    missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE is {processes()} and {', '.join(missing)} is missing in the "
            "environment; start the run with torchrun, or unset WORLD_SIZE"
        )
    try:
        dist.init_process_group(_backend(device))
    except (RuntimeError, ValueError) as error:
        raise Lost(
            f"the processes of the run did not come together ({why(error)}); look at the address "
            "and port that torchrun was given"
        ) from error
    atexit.register(_leave)  # and not before: there may be another run


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def device_type(name: str) -> str:
    """cpu, cuda, ...: what a name such as auto or cuda:1 stands for here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


def place(name: str) -> str:
    """The device of this process: with several, each has a GPU of its own."""
    kind = device_type(name)
    if _group.size == 1 or kind != "cuda":
        return name if name != "auto" else kind
    if ":" in name:
        raise UserError(
            f"train.device is {name!r} for {_group.size} processes, expected a GPU for each; type "
            "train.device=cuda"
        )
    local, there = int(os.environ.get("LOCAL_RANK", _group.rank)), torch.cuda.device_count()
    if local >= there:
        raise UserError(
            f"this machine has {there} GPUs and process {local + 1} needs one of its own; type "
            f"torchrun --nproc-per-node {max(there, 1)}, or train.device=cpu"
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def agree(config: Mapping[str, Any]) -> None:
    """Refuse processes that were started with different versions or configs; all say the same."""
    mine = {"rightreasons": __version__, "torch": str(torch.__version__), **config}
    first, *others = gathered(mine)
    for number, other in enumerate(others, 2):
        different = differences(first, other)
        if different:
            raise UserError(
                f"process {number} was started otherwise than process 1 "
                f"({'; '.join(different[:4])}); start all with the same version and the same words"
            )


# --- a batch -------------------------------------------------------------------------------------


def own(batch: Batch) -> Batch:
    """The images of a batch that this process forwards: each one in turn gets one.

    So new and remembered images, which lie one behind the other, are in every share alike. A batch
    too small to share is forwarded by all.
    """
    count = len(batch.y)
    if _group.size == 1 or count < LEAST * _group.size:
        return batch
    return batch.where(torch.arange(_group.rank, count, _group.size, device=batch.y.device))


def whole(out: Out, count: int) -> Out:
    """Logits and embeddings of all ``count`` images of a batch, from what came of a share."""
    if len(out.logits) == count:
        return out
    both: Tensor = _Whole.apply(torch.cat([out.logits, out.z], 1), count)  # type: ignore[no-untyped-call]
    logits, z = torch.split(both, [out.logits.shape[1], out.z.shape[1]], 1)
    return Out(logits, z, {})


def forward(net: Net, batch: Batch) -> Out:
    """What a net says of a batch, each process of its share."""
    out = net(own(batch).x)
    settle(net)
    return whole(out, len(batch.y))


class _Whole(torch.autograd.Function):
    """Rows (n,D) of each process, in turns, as the rows (count,D) of all."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        longest = -(-count // _group.size)
        padded = rows.new_zeros(longest, rows.shape[1])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(_group.size)]
        with _exchange():
            dist.all_gather(parts, padded)
        return torch.stack(parts, 1).flatten(0, 1)[:count]  # what pads lies at the end

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope[_group.rank :: _group.size] * _group.size, None


def settle(net: nn.Module) -> None:
    """BatchNorm's running statistics, which each process has moved by its share: their mean."""
    if _group.size == 1:
        return
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    moved = [m for m in norms if m.training and m.running_mean is not None]
    # .data: the graph holds them, as BatchNorm moves them itself, and does not read them
    statistics = [t.data for m in moved for t in (m.running_mean, m.running_var) if t is not None]
    if statistics:
        torch._foreach_copy_(statistics, _means(statistics))


def average(parameters: Sequence[Tensor]) -> None:
    """The mean of all processes' gradients, in one exchange.

    Where one has none it counts as zero; where all have none it stays none, and the optimiser
    leaves the parameter alone.
    """
    if _group.size == 1:
        return
    has = [p.grad is not None for p in parameters]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    *means, had = _means([*grads, torch.tensor(has).to(grads[0])])
    torch._foreach_copy_(grads, means)
    if not all(has):  # to look costs a wait on a GPU
        has = (had > 0).tolist()
    for p, grad, given in zip(parameters, grads, has, strict=True):
        p.grad = grad if given else None


def share(mean: Tensor, counted: Tensor, of: Tensor) -> Tensor:
    """A mean over rows of this process, by their number: over processes it becomes that of all.

    (b,) and (B,) say which rows count, here and of all that the processes share.
    """
    return mean * (_group.size * counted.sum()) / of.sum().clamp_min(1)


def means(values: Sequence[Tensor]) -> list[Tensor]:
    """The mean over processes, number by number."""
    if _group.size == 1 or not values:
        return list(values)
    return _means([value.detach() for value in values])


def _means(tensors: Sequence[Tensor]) -> list[Tensor]:
    flat = torch.cat([t.flatten() for t in tensors])
    with _exchange():
        dist.all_reduce(flat)
    flat /= _group.size
    parts = torch.split(flat, [t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def total(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sum over processes."""
    if _group.size == 1:
        return dict(tensors)
    found = _means(list(tensors.values()))
    return {name: _group.size * mean for name, mean in zip(tensors, found, strict=True)}


# --- all else ------------------------------------------------------------------------------------


def dealt(call: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """``call`` of each item, in order, dealt out to the processes; all get all of what came out."""
    if _group.size == 1:
        return [call(item) for item in items]
    parts = gathered([call(item) for item in items[_group.rank :: _group.size]])
    return [parts[i % _group.size][i // _group.size] for i in range(len(items))]


def gathered(value: T) -> list[T]:
    """What each process has, tensors on the CPU."""
    data = _bytes(pack(value))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(_group.size)]
    with _exchange():
        dist.all_gather(sizes, torch.tensor([len(data)]))
        longest = int(max(sizes))
        padded = torch.cat([data, data.new_zeros(longest - len(data))])
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
    return [unpack(_value(part[: int(size)])) for part, size in zip(parts, sizes, strict=True)]


def from_first(call: Callable[[], T]) -> T:
    """What ``call`` gives the first process, for all; or the sentence with which it refuses.

    It is of tensors and plain containers, as a checkpoint is.
    """
    if _group.size == 1:
        return call()
    found, refusal = None, None
    if _group.rank == 0:
        try:
            found = call()
        except UserError as error:
            refusal = error
    data = _bytes([None if refusal is None else str(refusal), found])
    size = torch.tensor([len(data)])
    with _exchange():
        dist.broadcast(size, 0)
        data = data if _group.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0)
    if refusal is not None:
        raise refusal
    sentence, there = _value(data)
    if sentence is not None:
        raise UserError(sentence)
    return there if _group.rank else found  # type: ignore[return-value]


def most(number: int) -> int:
    """The largest of all processes' numbers."""
    if _group.size == 1:
        return number
    largest = torch.tensor([number])
    with _exchange():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def checksum(columns: Mapping[str, Column]) -> str:
    """SHA-256 of columns, by name; stops the run where one of the processes has another."""
    digest = hashlib.sha256()
    for name, column in sorted(columns.items()):
        parts = (column.values, column.lengths) if isinstance(column, Ragged) else (column,)
        digest.update(" ".join([name, *map(mark, parts), ""]).encode())
    found = digest.hexdigest()
    if _group.size > 1 and len(set(gathered(found))) > 1:
        raise UserError(
            "the processes of the run no longer hold the same memory and weights; is the data the "
            "same on all machines, and torch of one build?"
        )
    return found


def _bytes(value: Any) -> Tensor:
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _value(data: Tensor) -> Any:
    return load_plain(io.BytesIO(data.numpy().tobytes()))


@contextmanager
def _exchange() -> Iterator[None]:
    with span(EXCHANGE):
        try:
            yield
        except RuntimeError as error:
            raise Lost(
                f"the processes of the run have lost each other ({why(error)}): one has ended, or "
                "cannot be reached; what was saved is there, and the same command goes on with it"
            ) from error
