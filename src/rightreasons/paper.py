"""The paper's tables as data, and which command reproduces which cell.

Values are those of the LaTeX source of Ebrahimi et al., "Remembering for the Right Reasons", ICLR
2021. They are for orientation: sign and rough size of a gain, not targets for single cells.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rightreasons.config import resolve
from rightreasons.errors import UserError

RUNS = 3  # averaged in the paper
NETS = {"RN18": "resnet18", "Alex": "alexnet", "SQ": "squeezenet1_1"}
EXPLAINERS = {"GCam": "gradcam", "BP": "backprop", "Smooth": "smoothgrad"}
SHORT = {"RRR": "er+rrr", "FT": "finetune", "Finetune": "finetune", "JT": "joint"}


DEFAULT = ("net.name=resnet18", "rrr.explain=gradcam")


@dataclass(frozen=True)
class Row:
    """One line of a table: the paper's name, its values, and what to type for them."""

    name: str
    method: str
    words: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def cell(self, i: int) -> str:
        return _number(self.mean[i]) + (f" ± {_number(self.std[i])}" if self.std else "")


@dataclass(frozen=True)
class PaperTable:
    key: str
    title: str
    label: str
    benchmark: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def over_tasks(self) -> bool:
        """A curve over tasks, and not the pointing game."""
        return self.columns[0].isdigit()

    def command(self, row: Row) -> str:
        needed = [word for word in row.words if word not in DEFAULT]
        words = " ".join([self.benchmark, row.method, *needed])
        weights = " net.weights=FILE" if self.benchmark.startswith("cub200") else ""
        return f"rrr run {words}{weights} --seeds {RUNS}"

    def lacking(self, row: Row) -> str:
        """Why this version cannot run a row; nothing if it can."""
        try:
            resolve(self.benchmark, row.method, row.words)
        except UserError as error:
            return str(error).split(";")[0]
        return ""


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """Every table of the paper that a run can fill."""
    text = (resources.files("rightreasons") / "presets" / "paper.json").read_text("utf-8")
    return tuple(
        PaperTable(
            key,
            table["title"],
            table["label"],
            table["benchmark"],
            tuple(table["columns"]),
            tuple(_row(table["benchmark"], name, **v) for name, v in table["rows"].items()),
        )
        for key, table in json.loads(text).items()
    )


def _number(value: float) -> str:
    return f"{value:.1f}" if round(value, 1) == value else f"{value:g}"


def _row(benchmark: str, name: str, mean: list[float], std: list[float] | None = None) -> Row:
    """``Alex-RRR-GCam`` -> er+rrr with AlexNet; ``EWC+RRR`` -> ewc+rrr."""
    words: list[str] = []
    method = name
    match = re.fullmatch(r"(RN18|Alex|SQ)-(ER|Finetune|RRR)(?:-(\w+))?", name)
    if match:
        net, method, explainer = match.groups()
        words.append(f"net.name={NETS[net]}")
        words += [f"rrr.explain={EXPLAINERS[explainer]}"] if explainer else []
    ours = SHORT.get(method, method.lower())
    if benchmark.startswith("cub200") and ours.split("+")[0] in ("icarl", "eeil"):
        ours = "+".join([f"{ours.split('+')[0]}-fscil", *ours.split("+")[1:]])
    if benchmark.startswith("imagenet100"):  # the level of its LwF row is that of LwF.MC
        ours = ours.replace("lwf", "lwf-mc")
    return Row(name, ours, tuple(words), tuple(mean), tuple(std or ()))


def listing() -> list[str]:
    """Each table, row and cell with the command that trains it, as lines of text."""
    lines = [
        "The tables of Ebrahimi et al., Remembering for the Right Reasons, ICLR 2021; mean ± std "
        f"of {RUNS} runs where the paper gives it.",
        "A command gives all cells of its row; rrr report RUNS --paper sets its curve beside them. "
        "FILE: torchvision's ImageNet weights.",
    ]
    for table in paper_tables():
        what = "accuracy on all classes seen after task" if table.over_tasks else "measure"
        lines += ["", f"{table.title} ({table.label}), %, by {what}"]
        for row in table.rows:
            lack = table.lacking(row)
            note = f"   (not in this version: {lack})" if lack else ""
            lines.append(f"  {row.name}: {table.command(row)}{note}")
            cells = [f"{c}: {row.cell(i)}" for i, c in enumerate(table.columns)]
            lines += [f"      {'   '.join(cells[i : i + 5])}" for i in range(0, len(cells), 5)]
    return lines


# --- what is not the same ------------------------------------------------------------------------

ALWAYS = (
    "The paper averages three runs and does not say which deviation it prints; ours is that of a "
    "sample (n - 1).",
    "Ours is the model after the last epoch. The authors' public code keeps the epoch with the "
    "best test accuracy on the current task.",
    "The paper leaves open which class is explained, by which statistics, on which view of the "
    "image and with which weight. rrr show rrr prints what ours does.",
    "As we read it, the authors' public code never applies its explanation loss. Ours follows the "
    "paper's equation 2.",
    "Our head grows with the classes; that of the authors' public code has all outputs from the "
    "start.",
)
BY_BENCHMARK = {
    "cifar100": (
        "The paper states no optimiser, rate or epochs for CIFAR-100; ours are those it states for "
        "CUB-200 (RAdam, 0.001, times 0.2 at epochs 20, 40 and 60, 70 epochs, batches of 128).",
        "The paper names a ResNet18; ours has the stem for small images and a 4x4 map.",
    ),
    "imagenet100": (
        "The paper does not say whether it reports top-1 or top-5; its level is that of top-5 in "
        "the literature. Ours is shown as both. Top-5 is 1 by definition up to five classes.",
        "The paper does not list its 100 classes.",
    ),
    "cub200": (
        "Our base test set has 2,864 images; the paper's has 2,834, for one class is missing.",
        "The rows FT, JT, iCaRL, EEIL and TOPIC of the paper equal, cut to one decimal, those that "
        "the authors of the few-shot split published: their iCaRL and EEIL keep anchor images and "
        "are not those of the learners' own papers.",
        "The paper's nets start from ImageNet weights; ours do with net.weights=FILE only.",
    ),
}
POINTING = (
    "The paper's pointing game cannot stem from single-head prediction in this setting: precision, "
    "recall and PG-ACC together imply far more right answers than its accuracy table has. Ours is "
    "given for prediction over all classes and within the image's task.",
    "Ours counts images that have a mask.",
)
ITAML = (
    "The paper's iTAML is tested on batches of 20 images of one task, the others on single images."
)


def differences(benchmark: str) -> list[str]:
    """What sets our protocol apart from the paper's, for a benchmark."""
    own = next((d for name, d in BY_BENCHMARK.items() if benchmark.startswith(name)), ())
    return [*own, *ALWAYS]
