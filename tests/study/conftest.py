"""A tiny study on glyphs, as data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml


@pytest.fixture
def tiny():
    """The content of its file, to be changed at will."""
    return yaml.safe_load((Path(__file__).parent / "tiny.yaml").read_text("utf-8"))
