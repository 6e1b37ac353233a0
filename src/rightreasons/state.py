"""State by naming rule: attributes that end in ``_``, as tensors and plain containers.

What comes out of `pack` is saved by ``torch.save`` and read with ``weights_only=True``: nothing in
it can execute.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rightreasons.memory import Memory, Ragged
from rightreasons.nets.base import Net


def get_state(owner: Any) -> dict[str, Any]:
    """The state of a learner, and below it that of its memory and terms."""
    state = {k: pack(v) for k, v in sorted(vars(owner).items()) if k.endswith("_")}
    for name, part in _parts(owner):
        inner = get_state(part)
        if inner:
            state[name] = inner
    return state


def nbytes(*owners: Any) -> int:
    """Of the tensors in their own state, without that of parts such as a memory."""
    return sum(_size(v) for owner in owners for k, v in vars(owner).items() if k.endswith("_"))


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Net):
        value = value.state_dict()
    inside = value.values() if isinstance(value, dict) else value
    return sum(map(_size, inside)) if isinstance(value, (dict, list, tuple)) else 0


def set_state(owner: Any, state: dict[str, Any], net: Net) -> None:
    """Put a state back; a `Net` inside is rebuilt as a copy of ``net`` of its own size."""
    parts = dict(_parts(owner))
    for name, value in state.items():
        if name in parts:
            set_state(parts[name], value, net)
        elif isinstance(owner, Memory):  # rows stay on the CPU and move with their batch
            setattr(owner, name, unpack(value, net))
        else:
            setattr(owner, name, unpack(value, net, next(net.parameters()).device))


def _parts(owner: Any) -> list[tuple[str, Any]]:
    """Fields that are dataclasses, and those inside tuples, by a name that is not a state's."""
    parts = []
    for f in fields(owner):
        value = getattr(owner, f.name)
        if f.name.endswith("_"):
            continue
        if is_dataclass(value):
            parts.append((f.name, value))
        elif isinstance(value, tuple):
            parts += [(f"{f.name}.{i}", v) for i, v in enumerate(value) if is_dataclass(v)]
    return parts


def pack(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Ragged):
        return {"ragged!": [value.values.cpu(), value.lengths.cpu()]}
    if isinstance(value, Net):
        trains = any(p.requires_grad for p in value.parameters())
        return {
            "net!": value.classes,
            "tensors": pack(dict(value.state_dict())),
            "training": value.training,
            "trains": trains,
        }
    if isinstance(value, dict):
        return {k: pack(v) for k, v in value.items()}
    if type(value) is tuple:
        return {"tuple!": [pack(v) for v in value]}
    if isinstance(value, list):
        return [pack(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()  # a NumPy number is a float, and yet not one that loads again
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"state holds a {type(value).__name__}; use tensors, nets and plain containers")


def unpack(value: Any, net: Net | None = None, device: torch.device | None = None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        if "ragged!" in value:
            return Ragged(*value["ragged!"])
        if "tuple!" in value:
            return tuple(unpack(v, net, device) for v in value["tuple!"])
        if "net!" in value:
            assert net is not None
            made = restore(copy.deepcopy(net), value)
            return made.train(value["training"]).requires_grad_(value["trains"])
        return {k: unpack(v, net, device) for k, v in value.items()}
    if isinstance(value, list):
        return [unpack(v, net, device) for v in value]
    return value


def restore(net: Net, packed: dict[str, Any]) -> Net:
    """Give a net the classes and tensors of a packed one."""
    net.resize(packed["net!"])
    net.load_state_dict(packed["tensors"])
    return net
