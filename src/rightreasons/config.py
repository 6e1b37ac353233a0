"""Config."""

from typing import Any


def plain(x: Any) -> Any:
    return repr(x)
