"""The table of code lines: how it counts, and that the page is what the script prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import lines  # noqa: E402

sys.path.pop(0)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", 0),
        ("a = 1\n\n# why\nb = 2  # why\n", 2),
        ('"""About."""\n\nx: int = 1\n"""of x"""\n', 1),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return """a\nb"""\n', 3),
        ("f(\n    1,\n\n    # why\n    2,\n)\n", 4),
    ],
)
def test_what_is_a_code_line(source, code):
    assert lines.count(source) == (code, len(source.splitlines()))


def test_the_page_is_what_the_script_prints():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "lines.py"], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr
    page = (ROOT / "docs" / "lines.md").read_text("utf-8")
    assert done.stdout == page, "type: python benchmarks/lines.py > docs/lines.md"
