"""Every submodule imports, every public name is what it says, the example runs."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rightreasons as rr

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(rr.__path__, "rightreasons.")
    if not m.name.endswith("__main__")
)
NEEDS = {"rightreasons.integrations.avalanche": "avalanche"}
MODULES = [m for m in MODULES if m not in NEEDS or importlib.util.find_spec(NEEDS[m])]


@pytest.mark.parametrize("name", MODULES)
def test_submodules_import(name):
    importlib.import_module(name)


def test_public_names_stay_what_they_are_when_every_submodule_is_imported():
    """A module that bears the name of a public function would replace it."""
    for name in MODULES:
        importlib.import_module(name)
    for name in rr.__all__:
        if name != "__version__":
            assert callable(getattr(rr, name)), name
    assert set(rr.__all__) <= set(dir(rr))
    with pytest.raises(AttributeError):
        rr.nothing  # noqa: B018


def test_the_readme_shows_the_example_and_it_runs(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"```python\n(.*?)```", readme, re.S)
    assert block is not None
    example = ROOT / "examples" / "start.py"
    assert block.group(1) == example.read_text("utf-8")
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_doctests_pass():
    import doctest

    for name in ("rightreasons.stats", "rightreasons.nets", "rightreasons.streams"):
        found = doctest.testmod(importlib.import_module(name))
        assert found.attempted and not found.failed, name


def test_the_arrays_of_the_data_page_are_learned():
    page = (ROOT / "docs" / "your-data.md").read_text("utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.S)
    done = subprocess.run(
        [sys.executable, "-c", block.group(1)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[")
