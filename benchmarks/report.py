"""How large the page is, how long it takes to write, and how long a browser takes to open it.

    python benchmarks/report.py

On made-up runs of 20 tasks with 96 px pictures and 8x8 maps: 20 runs for size and opening, 100 for
writing. Seconds by the clock count what other programs take; seconds of computing do not. Opening
needs the extra ``browser`` and chromium; without them that row says so.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rightreasons.config import resolve
from rightreasons.reports.write import report
from rightreasons.runfiles import dump_yaml
from rightreasons.watch import IMAGES, TASKS

METHODS = ("er", "er+rrr", "er+evidence", "er+logits")


def make_run(
    folder: Path,
    config: dict[str, Any],
    tasks: int,
    upto: int | None = None,
    *,
    masks: bool = True,
    maps: bool = True,
    side: int = 32,
    cells: int = 8,
    names: Sequence[str] | None = None,
) -> Path:
    """A run folder as a run leaves it, with made-up numbers; ``upto`` tasks if it is unfinished."""
    rng = np.random.default_rng([config["seed"], *config["method"].encode()])
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_yaml(config), "utf-8")
    (folder / "environment.json").write_text('{"python": "3"}\n', "utf-8")
    done = tasks if upto is None else upto
    records = [make_record(rng, k, masks) for k in range(done)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "records.jsonl").write_text(lines, "utf-8")
    if upto is None:
        (folder / "result.json").write_text("{}\n", "utf-8")
    if maps:
        (folder / "maps").mkdir()
        pictures = np.random.default_rng(config["seed"])  # matched runs watch the same images
        for k in range(done):
            arrays = make_maps(rng, pictures, k, side, cells, masks, names)
            np.savez_compressed(folder / "maps" / f"task-{k + 1}.npz", **arrays)
    return folder


def make_record(rng: np.random.Generator, k: int, masks: bool) -> dict[str, Any]:
    """The record of task k (from 0): accuracy falls with age, and differs by run."""
    level = np.clip(0.9 - 0.04 * (k - np.arange(k + 1)) + rng.normal(0, 0.03, k + 1), 0, 1)
    counts = rng.integers(1, 40, (4, k + 1))
    game = dict(zip(("tp", "fp", "fn", "tn"), counts.tolist(), strict=True))
    game["share"] = rng.uniform(0, 1, k + 1).tolist()
    record: dict[str, Any] = {
        "accuracy": {
            "class": level.tolist(),
            "task": np.clip(level + 0.05, 0, 1).tolist(),
            "top5": np.clip(level + 0.08, 0, 1).tolist(),
        },
        "test_images": [50] * (k + 1),
        "drift": {
            "cosine": np.clip(1 - 0.02 * (k - np.arange(k + 1)), 0, 1).tolist(),
            "iou": np.clip(1 - 0.04 * (k - np.arange(k + 1)), 0, 1).tolist(),
            "displacement": (0.1 * (k - np.arange(k + 1))).tolist(),
        },
        "task": k + 1,
        "classes": 5,
        "rows": 100,
        "bytes": {"images": 307200, "maps": 12800, "model": 1 << 20, "learner": 2048},
        "losses": {"task": float(rng.uniform(0.2, 0.6))},
        "steps": 40,
        "seconds": float(rng.uniform(5, 6)),
        "seconds_a_step": float(rng.uniform(0.1, 0.12)),
        "cpu_a_step": 0.05 + k / 1000 if k else None,  # a first task may be another run's
    }
    if masks:
        sizes = counts.sum(0).tolist()
        record["pointing"] = {"images": sizes, "class": game, "task": game}
    return record


def make_maps(
    rng: np.random.Generator,
    pictures: np.random.Generator,
    k: int,
    side: int,
    cells: int,
    masks: bool,
    names: Sequence[str] | None,
) -> dict[str, Any]:
    """What `rightreasons.watch` keeps after task k (from 0); five classes a task."""
    places = [(i, j) for i in range(min(k + 1, TASKS)) for j in range(IMAGES)]
    count = len(places)
    label = np.array([5 * i + j for i, j in places], np.int32)
    wrong = rng.uniform(size=count) < 0.04 * (k + 1)
    found: dict[str, Any] = {
        "image": np.array(places, np.int16),
        "label": label,
        "answer": np.where(wrong, (label + 1) % (5 * (k + 1)), label).astype(np.int32),
        "peak": rng.uniform(0, 1, (count, 2)).astype(np.float32),
        "hit": rng.uniform(size=count) < 0.5,
        "names": np.array(names or [f"class {5 * k + c}" for c in range(5)]),
    }
    for name in ("", "label_"):
        found[f"{name}maps"] = rng.uniform(0, 1, (count, cells, cells)).astype(np.float16)
        found[f"{name}tops"] = np.ones(count, np.float32)
    if k < TASKS:
        coarse = pictures.uniform(0, 255, (IMAGES, side // 8, side // 8, 3))
        fine = np.kron(coarse, np.ones((1, 8, 8, 1))) + pictures.normal(
            0, 8, (IMAGES, side, side, 3)
        )
        found["pixels"] = np.clip(fine, 0, 255).astype(np.uint8)
        if masks:
            found["masks"] = pictures.uniform(size=(IMAGES, side, side)) < 0.4
    return found


def make_runs(folder: Path, seeds: int, methods: Sequence[str] = METHODS) -> Path:
    for method in methods:
        for seed in range(seeds):
            config = resolve("cifar100-20", method, seed=seed)
            make_run(folder / method / str(seed), config, 20, side=96)
    return folder


IN_WINDOW = """() => document.readyState === 'complete' &&
    ![...document.querySelectorAll('.chart:not([data-ready]), .evolution:not([data-drawn])')]
    .some(node => node.getBoundingClientRect().top < innerHeight)"""
DRAWN = "!document.querySelector('.chart:not([data-ready]), .evolution:not([data-drawn])')"


def opening(page: Path) -> str:
    """From disk, the best of three: seconds until what the window shows is drawn and until all is,
    and what of the latter the page's own thread has computed."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "opening was not measured: pip install 'rightreasons[browser]'"
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return "opening was not measured: apt-get install chromium"
    times = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(3):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            tab = context.new_page()
            meter = context.new_cdp_session(tab)
            meter.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not the clock
            begun = time.perf_counter()
            tab.goto(page.absolute().as_uri())
            tab.wait_for_function(IN_WINDOW)
            first = time.perf_counter() - begun
            tab.wait_for_function(DRAWN)
            whole = time.perf_counter() - begun
            found = {m["name"]: m["value"] for m in meter.send("Performance.getMetrics")["metrics"]}
            times.append((first, whole, found["TaskDuration"]))
            context.close()
        browser.close()
    first, whole, busy = (min(column) for column in zip(*times, strict=True))
    return f"opened in {first:.2f} s, all drawn in {whole:.2f} s, {busy:.2f} s of them computing"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        small = report(make_runs(Path(name) / "small", 5))
        print(f"20 runs of 20 tasks: page of {small.stat().st_size / 1e6:.2f} MB")
        print(f"20 runs of 20 tasks: {opening(small)}")
        large = make_runs(Path(name) / "large", 25)
        begun, busy = time.perf_counter(), time.process_time()
        page = report(large)
        took, busy = time.perf_counter() - begun, time.process_time() - busy
        size = page.stat().st_size / 1e6
        print(
            f"100 runs of 20 tasks: written in {took:.1f} s, {busy:.1f} s of them computing; "
            f"page of {size:.2f} MB"
        )


if __name__ == "__main__":
    main()
