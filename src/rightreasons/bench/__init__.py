"""`rrr bench`: how fast this is, in ratios measured in one process (docs/performance.md)."""

from __future__ import annotations

from pathlib import Path

from rightreasons.errors import UserError, unknown


def bench(only: list[str], pairs: int, out: Path | None) -> None:
    """Measure and print; ``only`` names sections, none means all."""
    import torch

    from rightreasons.bench import loops, parts, peers, process, terms
    from rightreasons.bench.table import Section, show

    sections = {
        "terms": Section("a step with a term / a step of er", terms.rows),
        "hand": Section("our loop / a loop written by hand", loops.hand_rows),
        "avalanche": Section("our epoch / Avalanche's", peers.rows),
        "tasks": Section("later tasks, 2,000 rows of memory", loops.task_rows),
        "maps": Section("reference maps", parts.map_rows),
        "herding": Section("herding", parts.herd_rows),
        "fisher": Section("EWC's Fisher information", parts.fisher_rows),
        "optimiser": Section("the optimiser's step", parts.optimiser_rows),
        "learners": Section("a step of each learner / a step of er", parts.learner_rows),
        "evaluation": Section("evaluation", parts.evaluation_rows),
        "growth": Section("cost when a size is doubled", loops.growth_rows),
        "memory": Section("peak memory", process.memory_rows),
        "start": Section("starting up", process.start_rows),
    }
    for name in only:
        if name not in sections:
            raise unknown("section", name, sections)
    if pairs < 3:
        raise UserError(f"--pairs is {pairs}, expected at least 3 (200 for figures to quote)")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise UserError(f"--out {out} cannot be a file there; pass one in a folder that exists")
    torch.set_num_threads(1)
    show(sections, only, pairs, out)
