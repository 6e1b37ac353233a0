"""What each command refuses: the list in refusals.yaml, where it is typed, and the page about it.

`test_refusals.py` types it all; ``make errors`` writes docs/errors.md.
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

TINY = [
    *("stream.tasks=2", "stream.classes=4", "data.train=8", "data.test=4"),
    *("train.epochs=1", "train.batch=8", "memory.size=8"),
]


class Refusal(NamedTuple):
    words: str  # as they are typed
    says: str
    code: int = 2
    leaves: str = ""  # a folder that is there afterwards

    def typed(self) -> list[str]:
        """The words as a shell would pass them to ``rrr``."""
        found = []
        for word in shlex.split(self.words)[1:]:
            found += TINY if word == "..." else [word]
        return found

    def fits(self, said: str) -> bool:
        parts = [re.escape(part) for part in self.says.split("{nn}")]
        return re.fullmatch(".*".join(parts), said) is not None


def refusals() -> dict[str, list[Refusal]]:
    text = (Path(__file__).parent / "refusals.yaml").read_text("utf-8")
    return {
        title: [
            Refusal(one["type"], one["says"], one.get("code", 2), one.get("leaves", ""))
            for one in some
        ]
        for title, some in yaml.safe_load(text).items()
    }


def world(folder: Path, rrr) -> None:
    """Where the words are typed: runs, good and bad, class folders, files."""
    import torch
    from PIL import Image

    import rightreasons as rr
    from rightreasons.checkpoints import load_checkpoint, save_checkpoint

    done = rrr("run", "glyphs-small", "er+rrr", *TINY, "--out", "done", cwd=folder)
    assert done.returncode == 0, done.stderr
    stream = rr.stream("glyphs", tasks=1, train=6, test=1)
    images = stream[0].train
    for place in range(0, 12):
        inside = folder / "new" / f"class-{place // 6}"
        inside.mkdir(parents=True, exist_ok=True)
        pixels = images.pixels(torch.tensor([place]))[0].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(inside / f"{place}.png")
    names = ("unfinished", "broken", "lost", "other", "extended", "busy", "linked", "foreign")
    for name in names:
        shutil.copytree(folder / "done", folder / name)
    (folder / "unfinished" / "result.json").unlink()
    (folder / "unfinished" / "checkpoints" / "task-2.pt").unlink()
    for path in (folder / "broken" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(folder / "lost" / "checkpoints")
    (folder / "other" / "config.yaml").write_bytes(b"method: [er\n")
    config = (folder / "extended" / "config.yaml").read_text("utf-8")
    extension = "extensions:\n- {run: done, folder: new, classes: [a]}\n"
    (folder / "extended" / "config.yaml").write_text(config + extension, "utf-8")
    for path in (folder / "foreign" / "checkpoints").iterdir():
        save_checkpoint(path, load_checkpoint(path) | {"records": 3})
    (folder / "notes").mkdir()
    shutil.rmtree(folder / "linked" / "maps")
    (folder / "linked" / "maps").symlink_to("../notes")
    (folder / "notes" / "mine.txt").write_text("not a run\n")
    (folder / "one").mkdir()
    (folder / "one" / "a").mkdir()
    shutil.copy(folder / "new" / "class-0" / "0.png", folder / "one" / "a")
    (folder / "empty" / "a").mkdir(parents=True)
    (folder / "odd" / "a").mkdir(parents=True)
    (folder / "odd" / "a" / "1.png").write_bytes(b"no image")
    (folder / "odd" / "a" / "2.png").write_bytes(b"none either")
    bad_masks(folder)
    (folder / "weights.pt").write_bytes(b"no weights")
    (folder / "folder.png").mkdir()
    image = (folder / "new" / "class-0" / "0.png").read_bytes()
    (folder / "cut.png").write_bytes(image[: len(image) // 2])
    bad_weights(folder)


def bad_masks(folder: Path) -> None:
    """Masks and boxes of `new` that cannot be used, and classes with masks among them."""
    from PIL import Image

    for name in ("dark", "double"):
        (folder / name / "class-0").mkdir(parents=True)
    Image.new("L", (32, 32), 3).save(folder / "dark" / "class-0" / "0.png")
    for ending in ("bmp", "gif"):
        Image.new("L", (32, 32), 255).save(folder / "double" / "class-0" / f"0.{ending}")
    (folder / "boxes.txt").write_text("class-0/0.png nan 2 3 4\n")
    for i, name in enumerate(("a", "b")):
        for place in (folder / "few" / name, folder / "few" / "masks" / name):
            place.mkdir(parents=True)
        for j in (0, 1):
            image = folder / "new" / f"class-{i}" / f"{6 * i + j}.png"
            shutil.copy(image, folder / "few" / name)
            Image.new("L", (32, 32), 255).save(folder / "few" / "masks" / name / image.name)


class Harmful:
    """Would make a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("was-here",)


def bad_weights(folder: Path) -> None:
    import torch

    from rightreasons.nets.zoo import torchvision_model

    state = torchvision_model("squeezenet1_1").state_dict()
    wrong = {"features.0.weight": torch.zeros(2, 2), "features.0.bias": torch.zeros(1)}
    torch.save(state | wrong, folder / "shapes.pth")
    data = (folder / "shapes.pth").read_bytes()
    (folder / "cut.pth").write_bytes(data[: len(data) // 2])
    torch.save({"features.0.weight": Harmful()}, folder / "code.pth")
    (folder / "code.pkl").write_bytes(pickle.dumps(Harmful()))


def page() -> str:
    """docs/errors.md."""
    lines = [
        "# What each command refuses",
        "",
        "Bad input is answered with one sentence: what was seen, what was expected, what to type.",
        "The exit code is 2, or 1 where the fault is not in the words, such as a full disk. A",
        "process that a signal stops ends with 128 and the signal's number, as shells expect, and",
        "says which command goes on.",
        "",
        "This page is made by `make errors` from the list that the tests type and compare, word by",
        "word; `...` stands for the settings of a tiny run, `{nn}` for what differs from",
        "machine to machine.",
    ]
    for title, some in refusals().items():
        lines += ["", f"## {title}", "", "| you type | it says |", "|---|---|"]
        for one in some:
            code = "" if one.code == 2 else f" (exit code {one.code})"
            says = one.says.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| `{one.words}` | {says}{code} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
