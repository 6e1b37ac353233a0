"""What ``rrr compare`` prints, of runs that only pretend."""

from __future__ import annotations

from rightreasons.sweep import Where, compare

TINY = ["stream.tasks=2", "stream.classes=4", "data.train=10", "data.test=4"]


def test_a_folder_in_brackets_is_printed_as_it_is(made_up, monkeypatch, tmp_path, capsys):
    """Rich would take [v2] for markup and leave it out."""

    def run(where, jobs):
        for job in jobs:
            made_up.make_run(job.folder, job.config, 2, maps=False)

    monkeypatch.setattr(Where, "run", run)
    base = tmp_path / "ph [v2]"
    compare("glyphs-small", ["er", "er+rrr"], TINY, 2, base)
    assert f"records and checkpoints: {base}\n" in capsys.readouterr().out
