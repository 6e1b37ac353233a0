"""Where the jobs of a command are worked on: ``--on``, ``--jobs`` and ``--address``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rightreasons.errors import UserError, unknown
from rightreasons.sweep.jobs import Job
from rightreasons.sweep.local import WORKERS, run_all

PLACES = ("local", "ray")


@dataclass(frozen=True)
class Where:
    """This machine, or a cluster."""

    on: str = "local"
    jobs: int | None = None
    """runs at a time; None: two on this machine, and all that a cluster has room for"""
    address: str | None = None

    def check(self) -> None:
        """Refuse before anything is made."""
        if self.on not in PLACES:
            raise unknown("--on", self.on, PLACES)
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs is {self.jobs}, expected at least 1")
        if self.address is not None and self.on != "ray":
            raise UserError("--address goes with a cluster; type --on ray as well")
        if self.on == "ray":
            from rightreasons.sweep.connect import check_address, need_ray

            if self.address is not None:
                check_address(self.address)
            need_ray()

    def run(self, jobs: Sequence[Job]) -> None:
        if self.on == "local":
            run_all(jobs, self.jobs or WORKERS)
            return
        from rightreasons.sweep.cluster import run_on_ray

        run_on_ray(jobs, self.address, self.jobs)


HERE = Where()
