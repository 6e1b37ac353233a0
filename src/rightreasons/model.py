"""A finished run put to use: predict, and learn more classes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rightreasons.augment import Augment, middle
from rightreasons.branch import check_changes
from rightreasons.checkpoints import by_task, load_checkpoint
from rightreasons.config import (
    NetFields,
    StreamFields,
    build_source,
    learner_of,
    make,
    override,
    sections,
)
from rightreasons.data.arrays import as_images
from rightreasons.data.folder import Folder
from rightreasons.data.splits import read_all
from rightreasons.errors import Damaged, UserError, unknown, why
from rightreasons.explainers import closed_form, find_explainer, gradcam, options_of
from rightreasons.learners.base import Learner
from rightreasons.nets import check_name
from rightreasons.nets import net as make_net
from rightreasons.nets.base import Net, chunk
from rightreasons.optimise import Train
from rightreasons.pointing import enlarge, peaks
from rightreasons.registry import LEARNERS, TERMS
from rightreasons.result import Result
from rightreasons.runfiles import read_config, share
from rightreasons.runs import Run
from rightreasons.state import restore, set_state
from rightreasons.streams import Stream, cut
from rightreasons.streams import stream as make_stream
from rightreasons.train import fit
from rightreasons.types import Images, Splits, Task
from rightreasons.wellformed import check_task

TARGET = "last_block"
EXPLAINED = 16  # images at a time: pixel maps hold the graph of the whole net


class Predictions(NamedTuple):
    """What the model says of N images, and where it looked."""

    names: list[str]
    confidence: NDArray[np.float32]  # (N,) softmax of the scores
    scores: NDArray[np.float32]  # (N,C)
    maps: NDArray[np.float32]  # (N,H,W) Grad-CAM of the predicted class, at image size
    peaks: NDArray[np.int64]  # (N,2) row and column of the map's peak


class Explanations(NamedTuple):
    """What the model says of N images, and one map an explainer."""

    names: list[str]
    confidence: NDArray[np.float32]  # (N,) softmax of the scores
    images: NDArray[np.uint8]  # (N,3,H,W) as the net saw them
    maps: dict[str, NDArray[np.float32]]  # (N,H,W) of each explainer


@dataclass
class Model:
    """A finished run's net, learner and memory, and what its images were like."""

    net: Net
    learner: Learner
    class_names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    size: tuple[int, int]
    config: dict[str, Any]
    state: dict[str, Any]

    @property
    def counts(self) -> list[int]:
        """How many classes each task had."""
        return list(self.state["stream"]["counts"])

    def read(self, images: Any) -> Tensor:
        """(N,3,H,W) uint8 from images ``(N,H,W,3)``, ``(N,3,H,W)``, or from image files."""
        if isinstance(images, (str, Path)):
            images = [images]
        square = self.size[0] == self.size[1]
        if isinstance(images, (list, tuple)) and all(isinstance(f, (str, Path)) for f in images):
            if not square:
                raise UserError(
                    f"the run was trained on images of {self.size[0]}x{self.size[1]}, and image "
                    "files are read as squares; use it from Python, with arrays of that size: "
                    "rr.load(RUN).predict(arrays)"
                )
            x = read_all([Path(f) for f in images], self.size[0])
        else:
            x = as_images(images, "predict")
        if tuple(x.shape[2:]) != self.size:
            instead = ", or pass image files" if square else ""
            raise UserError(
                f"images are {x.shape[2]}x{x.shape[3]}, and the run was trained on "
                f"{self.size[0]}x{self.size[1]}; resize them{instead}"
            )
        return x

    def predict(self, images: Any) -> Predictions:
        """Classes of uint8 images ``(N,H,W,3)``, ``(N,3,H,W)``, or of image files."""
        x = self.read(images)
        size = chunk(self.cut or x.shape[-1], x.device)
        parts = [self._chunk(part) for part in torch.split(x, size)]
        scores, maps = (torch.cat(column) for column in zip(*parts, strict=True))
        confidence, answer = scores.softmax(1).max(1)
        row, column = peaks(maps)
        return Predictions(
            [self.class_names[i] for i in answer.tolist()],
            confidence.numpy(),
            scores.numpy(),
            maps.numpy(),
            torch.stack([row, column], 1).numpy(),
        )

    @torch.no_grad()
    def explain(
        self,
        images: Any,
        explain: Sequence[str] = ("gradcam",),
        of: str | None = None,
        target: str = TARGET,
    ) -> Explanations:
        """Maps of the explainers named, of the predicted class or of the class ``of``.

        Images are those that `predict` takes; maps have their size. SmoothGrad averages 40 noisy
        copies, integrated gradients 50 points. ``target`` is Grad-CAM's layer.
        """
        if of is not None and of not in self.class_names:
            raise unknown("class", of, self.class_names)
        calls = {
            name: partial(find_explainer(name), **options_of(name, {"target": target}))
            for name in explain
        }
        x = middle(self.read(images), self.cut)
        scores, maps = [], []
        for part in torch.split(x, EXPLAINED):
            normal = self.normal(part)
            out = self.net(normal)
            scores.append(self.learner.predict(self.net, normal, out, self.learner.memory))
            y = scores[-1].argmax(1)
            if of is not None:
                y = torch.full_like(y, self.class_names.index(of))
            found = [enlarge(call(self.net, normal, y), x.shape[2:]) for call in calls.values()]
            maps.append(torch.stack(found))  # (E,B,H,W)
        confidence, answer = torch.cat(scores).softmax(1).max(1)
        return Explanations(
            [self.class_names[i] for i in answer.tolist()],
            confidence.numpy(),
            x.numpy(),
            dict(zip(calls, torch.cat(maps, 1).numpy(), strict=True)),
        )

    def normal(self, x: Tensor) -> Tensor:
        """uint8 images as the net takes them."""
        exact = x.to(next(self.net.parameters()).dtype)
        return (exact - self.mean.view(3, 1, 1)) / self.std.view(3, 1, 1)

    @torch.no_grad()
    def _chunk(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = middle(x, self.cut)
        normal = self.normal(x)
        with torch.set_grad_enabled(not closed_form(self.net, TARGET)):
            out = self.net(normal, taps=(TARGET,))
        scores = self.learner.predict(self.net, normal, out, self.learner.memory)
        maps = gradcam(self.net, out, scores.argmax(1), target=TARGET)
        return scores.detach(), enlarge(maps, x.shape[2:])

    def folder(self, path: str | Path, skip_bad: bool = False) -> Folder:
        """New class folders, read and split as the run's own folder was."""
        data = self.config.get("data") or {}
        kept = {
            k: data[k] for k in ("test", "seed") if data.get("source") == "folder" and k in data
        }
        own = {"path": str(path), "size": self.size[0], "skip_bad": skip_bad}
        return make(Folder, own | kept, "data")

    @property
    def cut(self) -> int | None:
        """The side of the middle that the net sees, if not all of the image."""
        return make(Augment, self.config["train"]["augment"], "train.augment").cut


def load(run: str | Path, net: Net | None = None, task: int | None = None) -> Model:
    """The model that a finished run left, or had after ``task`` (from 1 on).

    ``net`` is needed where it was a module of your own.
    """
    folder = Path(run)
    if not (folder / "config.yaml").exists():
        below = sorted(file.parent for file in folder.glob("*/config.yaml"))
        such = f", such as {below[0]}" if below else ""
        raise UserError(
            f"{folder} holds no run; pass the folder of a run, with its config.yaml{such}"
        )
    if not (folder / "result.json").exists():
        raise UserError(f"the run in {folder} is not finished; go on with it first")
    config = read_config(folder)
    state = _state(folder, task)
    learner = _learner_of(config)
    net = _net_of(config) if net is None else copy.deepcopy(net)
    try:
        kinds = [t.dtype for t in state["net"]["tensors"].values() if t.is_floating_point()]
        net.to(kinds[0])  # a net may be in float64
        restore(net, state["net"]).eval()
        set_state(learner, state["learner"], net)
        kept = state["stream"]
        known = (tuple(kept["class_names"]), kept["mean"], kept["std"], tuple(kept["size"]))
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder}: the last checkpoint is of another run than config.yaml ({why(error)}); put "
            "the run's own files back"
        ) from error
    return Model(net, learner, *known, config, state)


def _state(folder: Path, task: int | None) -> dict[str, Any]:
    """The checkpoint of a task, or of the last one."""
    kept = by_task(folder)
    if not kept:
        raise UserError(f"{folder} has lost its checkpoints; run it again")
    if task is not None and task not in kept:
        raise UserError(
            f"{folder} has no checkpoint of task {task}; it has {', '.join(map(str, kept))}"
        )
    path = kept[max(kept) if task is None else task]
    try:
        return check_task(load_checkpoint(path), path)
    except Damaged as error:
        raise UserError(
            f"{error}; type the command of the run once more, it goes on from the one before"
        ) from error


def _learner_of(config: dict[str, Any]) -> Learner:
    """The learner of a run, which may be of a package that is not there any more."""
    missing = [n for n in config["method"].split("+") if n not in LEARNERS and n not in TERMS]
    if missing:
        raise UserError(
            f"the run's {missing[0]!r} is not known here; install the package that it came with"
        )
    learner: Learner = learner_of(config)
    return learner


def _net_of(config: dict[str, Any]) -> Net:
    """The net by its name; its tensors are yet to be restored."""
    described = make(NetFields, config.get("net"), "net")
    try:
        check_name(described.name)
    except UserError:
        raise UserError(
            f"the run's net {described.name!r} is a module of your own; pass net=rr.net(module) "
            f"from Python, or for commands register it as {described.name!r} of rightreasons.nets"
        ) from None
    return make_net(described.name, target=described.target, flatten=described.flatten)


def extend(
    run: str | Path,
    folder: str | Path,
    out: str | Path,
    *,
    changes: Sequence[str] = (),
    net: Net | None = None,
    skip_bad: bool = False,
    progress: bool = True,
) -> Result:
    """Learn the class folders of ``folder`` as the next task of a finished run, into ``out``.

    It goes on from the run's weights and memory, with its settings but for ``changes``, words such
    as ``train.epochs=10``. Old classes are tested on the images that the run tested them on, where
    its data is found; where it is not, their accuracy is unknown (NaN).
    """
    model = load(run, net)
    if model.size[0] != model.size[1]:
        raise UserError(
            f"the run's images are {model.size}, expected square ones for class folders"
        )
    source = model.folder(folder, skip_bad)
    for name in source.names:
        if name in model.class_names:
            raise UserError(
                f"class folder {name!r} bears the name of a class that the run knows; rename it"
            )
    old = _old_tasks(model)
    changed = copy.deepcopy(model.config)
    for word in changes:
        override(changed, word)
    check_changes(model.config, changed, "an extension")
    learner = learner_of(changed)
    changed |= sections(learner)
    if any(s.pool.past for s in learner.stages(old[-1])) and not all(len(t.train) for t in old):
        raise UserError(
            f"{learner.name} trains on the images of all tasks, and those of the run were not "
            "found; put its data back"
        )
    count = len(model.class_names)
    names = (*model.class_names, *source.names)
    new = cut(source.load(range(len(source.names))), [len(source.names)], source.names, False)
    labels = tuple(range(count, len(names)))
    task = Task(len(old), labels, *(_shift(part, count) for part in (new[0].train, new[0].test)))
    flip = make(Augment, model.config["train"]["augment"], "train.augment").flip
    stream = Stream((*old, task), names, model.mean, model.std, flip is not False)
    done: dict[str, Any] = {"run": str(run), "folder": str(folder), "classes": list(source.names)}
    done |= {"skip_bad": True} if skip_bad else {}
    done |= {"words": list(changes)} if changes else {}
    config = changed | {"extensions": [*model.config.get("extensions", []), done]}
    result = fit(
        learner,
        model.net,
        stream,
        train=make(Train, changed["train"], "train"),
        run=Run(Path(out), config),
        seed=int(model.config["seed"]),
        progress=progress,
        start=model.state,
    )
    for k in range(len(old)):  # the report shows them, wherever the run has gone by then
        share(Path(run) / "maps" / f"task-{k + 1}.npz", Path(out) / "maps")
    return result


def _shift(images: Images, by: int) -> Images:
    return Images(images.x, images.y + by, images.masks, images.rows)


def _old_tasks(model: Model) -> list[Task]:
    """The tasks that the run has learned, with their images as far as its data is found."""
    nothing = Images(torch.zeros((0, 3, *model.size), dtype=torch.uint8), torch.zeros(0).long())
    parts: list[Splits] = []
    try:
        parts += _own_data(model)
        for step in model.config.get("extensions", []):
            parts.append(_added(model, step, sum(model.counts[: len(parts)])))
    except UserError:  # what is gone is unknown, and so is what came after it
        pass
    parts += [Splits(nothing, nothing)] * (len(model.counts) - len(parts))
    ends = list(accumulate(model.counts))
    return [
        Task(index, tuple(range(end - count, end)), *part)
        for index, (count, end, part) in enumerate(zip(model.counts, ends, parts, strict=True))
    ]


def _own_data(model: Model) -> list[Splits]:
    """Train and test images of each task of the run's config, the very ones that it had."""
    fields, source = model.config["stream"], build_source(model.config)
    own = model.counts[: len(model.counts) - len(model.config.get("extensions", []))]
    ends = list(accumulate(own))
    names = [list(model.class_names[end - n : end]) for n, end in zip(own, ends, strict=True)]
    if "images" in fields:  # started from Python: how its stream was cut is not told
        stream = make_stream(source, names)
        cut_alike = [[len(t.train), len(t.test)] for t in stream] == fields["images"][: len(own)]
    else:
        whole = make(StreamFields, fields, "stream")
        stream = replace(whole, tasks=names).cut(source, int(model.config["seed"]))
        tasks = whole.tasks if isinstance(whole.tasks, int) else len(whole.tasks)
        cut_alike = not whole.validation or tasks == len(own)  # a share of all the stream's images
    if not cut_alike:
        raise UserError("which of its images the run trained and tested on cannot be told")
    return [Splits(task.train, task.test) for task in stream]


def _added(model: Model, step: dict[str, Any], count: int) -> Splits:
    """The images of an earlier extension, whose labels begin at ``count``."""
    source = model.folder(step["folder"], step.get("skip_bad", False))
    if list(source.names) != step["classes"]:
        raise UserError("the folder of an extension has other classes by now")
    part = source.load(range(len(source.names)))
    return Splits(_shift(part.train, count), _shift(part.test, count))
