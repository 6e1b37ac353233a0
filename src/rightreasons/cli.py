"""rrr: the command line. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from rightreasons import __version__
from rightreasons.errors import UserError

app = App(
    name="rrr",
    version=__version__,
    help="Continual learning that remembers the reasons for its decisions.",
    help_format="plaintext",
)


@app.command
def demo(*, out: Path = Path("runs/demo"), seeds: int = 3) -> None:
    """Experience replay alone, with explanation replay and with evidence replay, on glyphs.

    Trains er, er+rrr and er+evidence on the embedded data set glyphs-small, matched, two runs at a
    time, about three minutes on two cores; prints what came out and leaves the runs in a folder.

    Example: rrr demo

    Parameters
    ----------
    out
        Folder of the runs; runs that are there already are gone on with.
    seeds
        How many seeds.
    """
    from rightreasons.sweep import compare

    compare("glyphs-small", ["er", "er+rrr", "er+evidence"], seeds=seeds, out=out)


@app.command
def run(
    benchmark: str,
    method: str,
    *overrides: str,
    out: Path | None = None,
    seeds: Annotated[int, Parameter(name="--seeds")] = 1,
) -> None:
    """Train one method on one benchmark; a folder that holds the run's beginning is gone on with.

    Example: rrr run glyphs-small er+rrr rrr.weight=3 train.epochs=2

    Parameters
    ----------
    benchmark
        A benchmark's name, such as glyphs-small.
    method
        A learner with any terms: er, er+rrr, finetune+evidence, joint, ...
    overrides
        key=value words such as train.epochs=2 rrr.weight=30 memory.size=100 seed=5.
    out
        Folder of the run (default: runs/BENCHMARK/METHOD/SEED).
    seeds
        Run so many seeds one after the other, from `seed` on.
    """
    from rightreasons.sweep import run_seeds

    run_seeds(benchmark, method, overrides, out, seeds)


def main() -> None:
    """The console script: a sentence and exit code 2 for bad input, no traceback."""
    try:
        app(exit_on_error=False)
    except CycloptsError:
        sys.exit(2)
    except UserError as error:
        print(f"rrr: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("rrr: stopped; the same command goes on from the last finished task", file=sys.stderr)
        sys.exit(130)
