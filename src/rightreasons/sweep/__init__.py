"""Many runs: one after the other, matched runs side by side, and grids that choose.

`one` makes a run. `jobs` says what is to be made and `drive` in which order, on a `board` that
shows how far it is; `local` has the processes of this machine, `cluster` those of Ray. `matched`
and `grid` are the commands.
"""

from rightreasons.sweep.board import Board
from rightreasons.sweep.grid import choose_in_grid
from rightreasons.sweep.jobs import Job, prefix_of
from rightreasons.sweep.local import run_all
from rightreasons.sweep.matched import compare
from rightreasons.sweep.one import execute, run_branch, run_seeds
from rightreasons.sweep.place import Where

__all__ = [
    "Board",
    "Job",
    "Where",
    "choose_in_grid",
    "compare",
    "execute",
    "prefix_of",
    "run_all",
    "run_branch",
    "run_seeds",
]
