"""What each explainer costs in the loss, and what it shows of a finished run.

    python benchmarks/explainers.py [--pairs 200] [--net resnet8]
    python benchmarks/explainers.py --run RUN [--images 64]

The first form measures steps by the protocol of `step.py`. The second takes test images of the
run's own data: the sanity check, the pointing game where there are masks, and what rounding to
uint8 and float16 takes of a map, right after storing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from step import flops, measure, ratio, steps

import rightreasons as rr
from rightreasons.augment import middle
from rightreasons.config import build
from rightreasons.explainers import EXPLAINERS
from rightreasons.pointing import point
from rightreasons.runfiles import read_yaml
from rightreasons.terms.base import decode, encode


def cost(net: str, pairs: int) -> None:
    """FLOPs and time of a step with each explainer, canonical view, over a step of plain replay."""
    torch.set_num_threads(1)
    stream = rr.stream("glyphs", tasks=[90, 10], train=4, test=1)
    print(f"torch {torch.__version__}, 1 thread, {pairs} alternated pairs, {net}\n")
    print("| er + rrr | FLOPs / er | time / er | 95 % interval |\n|---|--:|--:|--:|")
    base = steps(net, [], stream)
    plain = flops(base)
    cases = {"er again (A/A)": []} | {name: [rr.RRR(explain=name)] for name in EXPLAINERS}
    for name, terms in cases.items():
        joined = steps(net, terms, stream)
        share = flops(joined) / plain
        r, low, high = ratio(measure(base, joined, pairs))
        print(f"| {name} | {share:.2f} | {r:.2f} | {low:.2f} to {high:.2f} |", flush=True)


@torch.no_grad()
def shown(run: Path, count: int) -> None:
    """Tables of one run, on test images spread over all its classes."""
    model = rr.load(run)
    _, stream = build(read_yaml(run / "config.yaml")).load()
    first, *rest = (task.test for task in stream)
    images = first.join(*rest)
    index = torch.linspace(0, len(images) - 1, min(count, len(images))).long()
    x = model.normal(middle(images.pixels(index), model.cut))
    y = model.net(x).logits.argmax(1)
    print(f"{len(x)} test images of {x.shape[2]} px, explained for the predicted class\n")
    print(rr.sanity(model.net, x, y, explain=list(EXPLAINERS)).table() + "\n")
    found = {
        name: torch.cat(
            [call(model.net, a, b) for a, b in zip(x.split(16), y.split(16), strict=True)]
        )
        for name, call in EXPLAINERS.items()
    }
    if images.masks is not None:
        masks = middle(images.masks[images.positions(index)], model.cut)
        area = masks.float().mean()
        print(f"the object covers {100 * area:.0f} % of the pixels\n")
        print("| explainer | peak on the object | share of the map on it |\n|---|--:|--:|")
        for name, maps in found.items():
            hit, share = point(maps, masks)
            print(f"| {name} | {100 * hit.float().mean():.0f} % | {100 * share.mean():.0f} % |")
    print("\n| explainer | uint8 | float16 |\n|---|--:|--:|")
    for name, maps in found.items():
        lost = [
            float((decode(*encode(maps, dtype), maps) - maps).abs().mean() / maps.abs().mean())
            for dtype in ("uint8", "float16")
        ]
        print(f"| {name} | {lost[0]:.1e} | {lost[1]:.1e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--net", default="resnet8", choices=["resnet8", "resnet18-cifar"])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int, default=64)
    chosen = parser.parse_args()
    if chosen.run is None:
        cost(chosen.net, chosen.pairs)
    else:
        shown(chosen.run, chosen.images)


if __name__ == "__main__":
    main()
