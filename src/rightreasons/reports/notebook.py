"""Tables for notebooks."""

from __future__ import annotations

from typing import Any

from rightreasons.errors import unknown
from rightreasons.metrics import GROUPS
from rightreasons.reports.measures import MEASURES
from rightreasons.reports.sources import one_group
from rightreasons.reports.table import Table
from rightreasons.tables import every, means


def table(runs: Any, what: str | list[str] = "final") -> Table:
    """A table of runs: methods in rows, mean and deviation over seeds.

    ``runs`` is a folder of runs, a result, or ``{method: result}`` with ``(method, seed)`` for
    several seeds. ``what`` is the name of a table (final, pairs, seen, seeds, pointing,
    pointing-task-aware, pointing-seen, drift, costs, settings, runs) or a list of measures such as
    ``["accuracy", "PG-ACC"]``. The table has ``head`` and ``rows`` as plain lists, and
    ``markdown()``, ``latex()`` and ``csv()``.
    """
    found = one_group(runs)
    if isinstance(what, list):
        for key in what:
            if key not in MEASURES and not GROUPS.fullmatch(key):
                raise unknown("measure", key, MEASURES)
        return means(found, what)
    made = every(found)
    if what not in made:
        raise unknown("table", what, made)
    return made[what]
