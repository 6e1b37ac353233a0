"""A growing neural gas over embeddings: nodes, edges with ages, and the losses that hold them.

The rule is Martinetz and Schulten's (1991) with their Hebbian edges (1994), as TOPIC uses it (Tao
et al., CVPR 2020). docs/topic.md says where each formula is from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

NONE = -1  # the age of an edge that is not there
REACH = 20  # ranks, in alphas, from which on exp(-k / alpha) is nothing


class Gas(TypedDict):
    """N nodes; the row of each is that of its anchor image in memory."""

    centroid: Tensor  # (N,D) m_j
    variance: Tensor  # (N,D) the diagonal of Lambda_j
    label: Tensor  # (N,) c_j
    image: Tensor  # (N,2) z_j, the anchor: its task, and its place among the task's images
    ages: Tensor  # (N,N) of the edges


@dataclass(frozen=True)
class Rule:
    """How nodes follow images; rate and alpha go from the first to the second number."""

    rate: tuple[float, float]  # eta
    alpha: tuple[float, float]  # how far in rank an image reaches
    age: int  # edges that are older go
    passes: int  # over all images

    def at(self, done: float) -> tuple[float, float]:
        """Rate and alpha when this share of the images has been seen."""
        now = [first * (last / first) ** done for first, last in (self.rate, self.alpha)]
        return now[0], now[1]


def empty(like: Tensor) -> Gas:
    """No node, for embeddings such as ``like`` (n,D)."""
    none = like.new_zeros(0, like.shape[1])
    whole = torch.zeros(0, dtype=torch.int64)
    return Gas(
        centroid=none,
        variance=none,
        label=whole,
        image=whole.view(0, 2),
        ages=whole.view(0, 0),
    )


def part(gas: Gas, nodes: Tensor) -> Gas:
    """Some of the nodes, in this order, and the edges between them."""
    return Gas(
        centroid=gas["centroid"][nodes],
        variance=gas["variance"][nodes],
        label=gas["label"][nodes],
        image=gas["image"][nodes],
        ages=gas["ages"][nodes][:, nodes],
    )


def moved(gas: Gas, device: torch.device) -> Gas:
    return Gas(
        centroid=gas["centroid"].to(device),
        variance=gas["variance"].to(device),
        label=gas["label"].to(device),
        image=gas["image"].to(device),
        ages=gas["ages"].to(device),
    )


def planted(gas: Gas, z: Tensor, y: Tensor) -> Gas:
    """The gas with one more node at each of these embeddings, without edges."""
    old, count = len(gas["label"]), len(y)
    ages = F.pad(gas["ages"], (0, count, 0, count), value=NONE)
    return Gas(
        centroid=torch.cat([gas["centroid"], z]),
        variance=torch.cat([gas["variance"], torch.zeros_like(z)]),
        label=torch.cat([gas["label"], y]),
        image=torch.cat([gas["image"], torch.full((count, 2), NONE)]),
        ages=ages.view(old + count, old + count),
    )


def attract(
    gas: Gas, f: Tensor, rate: float, alpha: float, age: int, free: Tensor | None = None
) -> None:
    """One image: nodes move towards it by rank, and its two nearest get an edge; in place.

    ``m_j += eta exp(-k_j / alpha) (f - m_j)`` with the rank ``k_j`` of node j, 0 for the nearest;
    only ``free`` nodes (N,) move, ranked among themselves. The edge between the two nearest nodes
    gets the age 0, other edges of the nearest age by 1, and go when they are older than ``age``.
    """
    near = far(f[None], gas["centroid"])[0].argsort(stable=True)  # (N,) nodes, nearest first
    movers = near if free is None else near[free[near]]
    movers = movers[: math.ceil(REACH * alpha) + 1]
    step = rate * torch.exp(-torch.arange(len(movers), dtype=f.dtype) / alpha)
    there = gas["centroid"][movers]
    gas["centroid"][movers] = there + step[:, None] * (f - there)
    if len(near) < 2:
        return
    first, second = int(near[0]), int(near[1])
    ages = gas["ages"][first]
    ages = torch.where(ages == NONE, NONE, ages + 1)
    ages[second] = 0
    ages[ages > age] = NONE
    gas["ages"][first] = gas["ages"][:, first] = ages


def fit(
    gas: Gas, z: Tensor, y: Tensor, rule: Rule, draw: torch.Generator, fixed: int | None = None
) -> None:
    """All images, a few times over, in random order; in place.

    Without ``fixed`` every node follows every image. Otherwise the first ``fixed`` nodes stay, and
    a later one follows the images of its own class.
    """
    late = torch.arange(len(gas["label"])) >= (fixed or 0)
    total = rule.passes * len(z)
    for done in range(total):
        if done % len(z) == 0:
            order = torch.randperm(len(z), generator=draw).tolist()
        image = order[done % len(z)]
        free = None if fixed is None else late & (gas["label"] == y[image])
        attract(gas, z[image], *rule.at(done / total), rule.age, free)


def base(z: Tensor, y: Tensor, start: Tensor, rule: Rule, draw: torch.Generator) -> Gas:
    """A gas over the images of the first task, with as many nodes a class as ``start`` has.

    Nodes start at the images ``start``, follow all images, and bear the label of most images that
    are nearest to them. A class that has got more nodes than its share keeps those with the most
    images; one that has got fewer grows some.
    """
    gas = planted(empty(z), z[start], y[start])
    fit(gas, z, y, rule, draw)
    votes = torch.zeros(len(start), int(y.max()) + 1)
    cell = far(z, gas["centroid"]).argmin(1)  # (n,)
    votes.index_put_((cell, y), torch.ones(len(y)), accumulate=True)
    gas["label"] = votes.argmax(1)
    fullest = votes.amax(1).argsort(descending=True, stable=True)
    share = torch.bincount(y[start], minlength=votes.shape[1])
    kept = []
    for label, count in enumerate(share.tolist()):
        kept += [node for node in fullest.tolist() if gas["label"][node] == label][:count]
    filled = votes.amax(1)[kept] > 0  # a node without images has no class
    gas = part(gas, torch.tensor(kept)[filled])
    lacking = share - torch.bincount(gas["label"], minlength=len(share))
    spare = torch.cat([start[y[start] == c][:n] for c, n in enumerate(lacking.tolist())])
    return grown(gas, z, y, spare, rule, draw) if len(spare) else gas


def grown(
    gas: Gas, z: Tensor, y: Tensor, start: Tensor, rule: Rule, draw: torch.Generator,
    free: bool = False,
) -> Gas:  # fmt: skip
    """The gas with new nodes for the classes of the images ``start``; old ones stay.

    With ``free`` the old nodes follow the images too.
    """
    old = len(gas["label"])
    made = planted(gas, z[start], y[start])
    chosen = torch.isin(y, y[start])
    fit(made, z[chosen], y[chosen], rule, draw, fixed=None if free else old)
    return made


def settle(gas: Gas, z: Tensor, y: Tensor, task: int, first: int, floor: float) -> Gas:
    """Variance and anchor of the nodes from ``first`` on, by the images of a task.

    ``Lambda_j`` is the spread about the centroid of those images of the node's class that are
    nearest to it, at least ``floor`` times the mean of all nodes'. The anchor is the image of the
    class nearest to the centroid, each image once. New nodes are put in the order of their labels,
    the one with the most images first.
    """
    new = torch.arange(first, len(gas["label"]))
    m, label = gas["centroid"][new], gas["label"][new]
    apart = far(m, z).masked_fill(label[:, None] != y, math.inf)  # (N,n)
    cell = apart.argmin(0)  # (n,)
    count = torch.bincount(cell, minlength=len(new))
    spread = torch.zeros_like(m).index_add(0, cell, (z - m[cell]).square())
    variance = spread / count.clamp_min(1)[:, None]
    mean = spread.sum() / max(len(z), 1) / z.shape[1]
    variance[count == 0] = mean
    gas["variance"][new] = variance.clamp_min(floor * float(mean))
    order = (label * (len(z) + 1) - count).argsort(stable=True)
    for node in order.tolist():
        image = int(apart[node].argmin())
        gas["image"][first + node] = torch.tensor([task, image])
        apart[:, image] = math.inf
    return part(gas, torch.cat([torch.arange(first), new[order]]))


def anchor_loss(f: Tensor, target: Tensor, variance: Tensor) -> Tensor:
    """(n,): ``(f_j - m_j)^T Lambda_j^-1 (f_j - m_j)`` for anchors f_j and nodes of a gas."""
    return ((f - target).square() / variance).sum(1)


def minmax_loss(f: Tensor, y: Tensor, gas: Gas, margin: float) -> Tensor:
    """(n,): the distance to the nearest node of the image's class, and for each of that node's
    neighbours of another class how much nearer than ``margin`` it is.

    ``d(f, m_j) + sum_i max(0, margin - d(f, m_i))``, i over nodes with an edge to j, ``c_i != y``.
    """
    apart = far(f, gas["centroid"].to(f))
    own = gas["label"] == y[:, None]  # (n,N)
    pull, match = apart.masked_fill(~own, math.inf).min(1)
    near = (gas["ages"][match] != NONE) & ~own  # (n,N)
    return pull + ((margin - apart).clamp_min(0) * near).sum(1)


def far(a: Tensor, b: Tensor) -> Tensor:
    """(n,N) distances, from differences: a matrix product would lose digits."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def widest(gas: Gas) -> float:
    """The largest distance between two nodes."""
    return float(far(gas["centroid"], gas["centroid"]).max())
