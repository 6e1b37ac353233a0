"""What each explainer shows of a finished run; what it costs in the loss is in `rrr bench terms`.

    python benchmarks/explainers.py --run RUN [--images 64] [--target last_block] [--steps 6]

On test images of the run's own data: the sanity check, the pointing game where there are masks, and
what rounding to uint8 and float16 takes of a map, right after storing. ``--target`` is the layer of
Grad-CAM in the pointing game and the storage.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import rightreasons as rr
from rightreasons.augment import middle
from rightreasons.config import build
from rightreasons.explainers import EXPLAINERS, Explainer, evidence, options_of
from rightreasons.pointing import point
from rightreasons.runfiles import read_yaml
from rightreasons.terms.base import decode, encode


@torch.no_grad()
def shown(run: Path, count: int, target: str, steps: int) -> None:
    """Tables of one run, on test images spread over all its classes."""
    model = rr.load(run)
    config = read_yaml(run / "config.yaml")
    # its weights file may be elsewhere now
    _, stream = build(config | {"net": config["net"] | {"weights": None}}).load()
    first, *rest = (task.test for task in stream)
    images = first.join(*rest)
    index = torch.linspace(0, len(images) - 1, min(count, len(images))).long()
    x = model.normal(middle(images.pixels(index), model.cut))
    y = model.net(x).logits.argmax(1)
    print(f"{len(x)} test images of {x.shape[2]} px, explained for the predicted class\n")
    if steps:
        checked = rr.sanity(model.net, x, y, explain=list(EXPLAINERS), steps=steps)
        print(checked.table() + "\n", flush=True)
    calls: dict[str, Explainer] = {
        name: partial(call, **options_of(name, {"target": target}))
        for name, call in EXPLAINERS.items()
    }
    found = {name: in_parts(call, model.net, x, y) for name, call in calls.items()}
    if images.masks is not None:
        masks = middle(images.masks[images.positions(index)], model.cut)
        masked = masks.flatten(1).any(1)  # an image may lack its mask
        area = 100 * masks[masked].float().mean()
        print(f"{int(masked.sum())} have a mask; the object covers {area:.0f} % of their pixels\n")
        print("| explainer | peak on the object | share of the map on it |\n|---|--:|--:|")
        for name, maps in found.items():
            hit, share = point(maps[masked], masks[masked])
            print(f"| {name} | {100 * hit.float().mean():.0f} % | {100 * share.mean():.0f} % |")
    print("\n| explainer | uint8 | float16 |\n|---|--:|--:|")
    for name, maps in found.items():
        lost = [rounding(maps, dtype) for dtype in ("uint8", "float16")]
        print(f"| {name} | {lost[0]:.1e} | {lost[1]:.1e} |")
    if model.net.pooled_linear:
        maps = in_parts(lambda net, x, y: evidence(net, x), model.net, x, y)
        lost = [rounding(maps, dtype, squared=True) for dtype in ("uint8", "float16")]
        print(f"| evidence, squared | {lost[0]:.1e} | {lost[1]:.1e} |")


def rounding(maps: Tensor, dtype: str, squared: bool = False) -> float:
    """The loss right after storing, a mean over cells, as a share of the mean absolute map."""
    gap = (decode(*encode(maps, dtype), maps) - maps).abs()
    return float((gap.square() if squared else gap).mean() / maps.abs().mean())


def in_parts(call: Explainer, net: rr.Net, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([call(net, a, b) for a, b in zip(x.split(16), y.split(16), strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--target", default="last_block")
    parser.add_argument("--steps", type=int, default=6, help="of the sanity check; 0: without it")
    chosen = parser.parse_args()
    shown(chosen.run, chosen.images, chosen.target, chosen.steps)


if __name__ == "__main__":
    main()
