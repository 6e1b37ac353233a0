"""Jobs that only pretend, for workers that are real: ``python toil.py FOLDER JOB ...``.

What a job does is its name; files in the folder say how far it is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from rightreasons.errors import Stopped, UserError
from rightreasons.signals import requests
from rightreasons.sweep import Job, run_all

CONFIG = {"method": "er", "seed": 0, "stream": {"tasks": 1}, "train": {"threads": 1}}


def work(job: Job) -> None:
    here = job.folder.parent
    if job.name == "train":  # until it is asked to stop; then it saves
        with requests() as request:
            (here / "pid").write_text(str(os.getpid()))
            (here / "trains").touch()
            while not request.signal:
                time.sleep(0.01)
            (here / "told").touch()
            time.sleep(1)  # whoever else asks does so now
            (here / "saved").touch()
            raise Stopped(request.signal)
    if job.name == "evaluate":  # and hear nothing
        signal.signal(signal.SIGTERM, lambda *_: (here / "told").touch())
        (here / "trains").touch()
        while True:
            time.sleep(0.01)
    wait_for(here / "trains")
    if job.name == "fail":
        raise UserError("no such layer")


def done(job: Job) -> None:
    time.sleep(1)  # by now its worker waits for the next job
    (job.folder.parent / "idle").touch()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def stop(number: int, frame: object) -> None:
    raise Stopped(number)


def main(folder: str, *names: str) -> None:
    signal.signal(signal.SIGTERM, stop)  # as rrr does
    jobs = [Job(CONFIG, Path(folder) / name, None, name=name) for name in names]
    try:
        run_all(jobs, 2, work, done)
    except (KeyboardInterrupt, UserError) as error:
        print(f"ended by {type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
