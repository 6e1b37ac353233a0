"""A finished run as files that need nothing of this library: weights, a card, a program, ONNX."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from safetensors.torch import save as packed
from torch import Tensor, nn

from rightreasons import __version__
from rightreasons.augment import middle
from rightreasons.errors import UserError, printable, why
from rightreasons.learners.base import Learner
from rightreasons.model import Model, load
from rightreasons.nets.base import Net, Pointwise
from rightreasons.progress import Reporter
from rightreasons.runfiles import contents, load_json, whole, write

WEIGHTS, CARD, PROGRAM, ONNX = "model.safetensors", "card.json", "model.pt2", "model.onnx"
RESULTS = ("ACC", "accuracy", "average", "bwt", "forgetting", "task_aware_accuracy", "PG-ACC")


class Exported(NamedTuple):
    """What was written, and how far its answers are from the run's own."""

    folder: Path
    files: list[str]
    differences: dict[str, float]  # largest difference of a score, by file
    missing: dict[str, str]  # what could not be written, and why


class Scorer(nn.Module):
    """uint8 images (B,3,H,W) to scores (B,C), as `Model.predict` gives them."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = copy.deepcopy(model.net).eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.net.channels_last = False
        self.learner, self.cut = model.learner, model.cut
        exact = next(self.net.parameters()).dtype
        self.register_buffer("mean", model.mean.view(3, 1, 1).to(exact, copy=True))
        self.register_buffer("std", model.std.view(3, 1, 1).to(exact, copy=True))

    def forward(self, x: Tensor) -> Tensor:
        normal = (middle(x, self.cut).to(self.mean.dtype) - self.mean) / self.std
        return self.learner.predict(self.net, normal, self.net(normal), self.learner.memory)


def export(
    run: str | Path,
    out: str | Path | None = None,
    *,
    net: Net | None = None,
    onnx: bool = False,
    progress: bool = False,
) -> Exported:
    """Write a finished run's net for use without this library.

    ``model.safetensors`` has the tensors of the net under its module's own names, ``card.json``
    says what they are (classes, normalisation, layers, results), ``model.pt2`` is the whole way
    from uint8 images to scores as a program of ``torch.export``; with ``onnx`` so is `model.onnx`.
    The program is asked once more what the run's own model says, and the largest difference is
    returned. ``net`` is needed where it was a module of your own.
    """
    model = load(run, net)
    folder = Path(out) if out is not None else Path(run) / "export"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, expected a folder; pass another --out")
    if onnx:
        _needs_onnx()
    results = _results(Path(run))
    folder.mkdir(parents=True, exist_ok=True)
    scorer = Scorer(model).eval()
    with whole(folder / WEIGHTS) as sink:
        sink.write(packed(tensors(model.net), metadata={"format": "pt"}))
    files, differences, missing = [WEIGHTS, CARD], {}, {}
    reporter = Reporter("export", 2, show=progress)
    asked = torch.randint(
        0, 256, (3, 3, *model.size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    for name in (PROGRAM, ONNX):
        (folder / name).unlink(missing_ok=True)  # it would be that of another run
    for name, save in ((PROGRAM, _program), *(((ONNX, _onnx),) if onnx else ())):
        if not model.learner.one_program:
            missing[name] = (
                f"{model.learner.name} takes another way for each task, which no program has"
            )
            continue
        reporter.say(f"torch makes {name}; of a large net it takes minutes")
        try:
            with quiet():
                differences[name] = save(scorer, asked, folder / name)
            files.append(name)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            missing[name] = printable(why(error))
            (folder / name).unlink(missing_ok=True)
    write(folder / CARD, json.dumps(card(model, results, differences), indent=1) + "\n")
    return Exported(folder, files, differences, missing)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch says while it exports: its graphs, where it fails, over many lines."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def tensors(net: Net) -> dict[str, Tensor]:
    """Under the names of the module itself; a 1x1 convolution as head is one again."""
    found = {name: value.detach().cpu() for name, value in net.module.state_dict().items()}
    if isinstance(net.head, Pointwise):
        name = f"{net.head_name}.weight"
        found[name] = found[name][:, :, None, None]
    return {name: value.contiguous() for name, value in found.items()}


def _results(run: Path) -> dict[str, Any]:
    path = run / "result.json"
    try:
        return dict(load_json(contents(path)))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); remove it, and run the run's command once more"
        ) from error


def card(model: Model, results: dict[str, Any], differences: dict[str, float]) -> dict[str, Any]:
    """What a user of the weights must know."""
    own = type(model.learner).predict is not Learner.predict
    return {
        "rightreasons": __version__,
        "torch": str(torch.__version__),
        "benchmark": model.config.get("benchmark"),
        "method": model.config["method"],
        "seed": model.config["seed"],
        "net": {
            "name": model.net.name,
            "head": model.net.head_name,
            "target": {tap: model.net.path(tap) for tap in ("last_block", "paper")},
        },
        "classes": list(model.class_names),
        "input": {
            "shape": ["batch", 3, *model.size],
            "values": "RGB, 0..255",
            "middle": model.cut,
            "mean": model.mean.tolist(),
            "std": model.std.tolist(),
        },
        "answer": f"the scores of {model.learner.name}, not the logits" if own else "the logits",
        "results": {name: results[name] for name in RESULTS if name in results},
        "weights": WEIGHTS,
        "differences": differences,
    }


@torch.no_grad()
def _program(scorer: Scorer, x: Tensor, path: Path) -> float:
    batch = torch.export.Dim("batch")
    with mock.patch.object(torch, "cdist", _distances):
        made = torch.export.export(scorer, (x,), dynamic_shapes=({0: batch},), strict=False)
        torch.export.save(made, path)
        again = torch.export.load(path).module()
    return _largest(again(x), scorer(x))


def _needs_onnx() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"--onnx needs {', '.join(missing)}; type pip install 'rightreasons[onnx]'")


@torch.no_grad()
def _onnx(scorer: Scorer, x: Tensor, path: Path) -> float:
    import onnxruntime

    batch = torch.export.Dim("batch")
    with mock.patch.object(torch, "cdist", _distances):
        torch.onnx.export(
            scorer,
            (x,),
            path,
            input_names=["images"],
            output_names=["scores"],
            dynamic_shapes=({0: batch},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"images": x.numpy()})
    return _largest(torch.from_numpy(scores), scorer(x))


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """``torch.cdist``, which works in another way from 26 rows on: no program has both."""
    return (a[:, None] - b).square().sum(2).sqrt()


def _largest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def show_export(run: Path, out: Path | None, onnx: bool) -> None:
    """What ``rrr export`` prints."""
    done = export(run, out, onnx=onnx, progress=True)
    print(f"{done.folder}: {', '.join(done.files)}")
    for name, difference in done.differences.items():
        print(f"{name}: scores differ from the run's own by {difference:.2g} at most")
    for name, reason in done.missing.items():
        print(f"{name} could not be written: {reason}")
    if PROGRAM in done.files:
        print(f'load it with torch.export.load("{done.folder / PROGRAM}").module(): docs/export.md')
