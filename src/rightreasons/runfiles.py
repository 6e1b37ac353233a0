"""Files of a run folder that need no torch: whole or absent, plain YAML, what differs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from rightreasons.errors import UserError


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """All of a file or nothing: temporary name, sync, rename."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write(path: Path, text: str) -> None:
    with whole(path) as file:
        file.write(text.encode())


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no keys, expected `key: value` lines")
    return content


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Keys whose values differ, as ``key: old there, new asked``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        found = [differences(old.get(k), new.get(k), f"{where}.{k}".lstrip(".")) for k in keys]
        return [text for part in found for text in part]
    return [] if old == new else [f"{where}: {old} there, {new} asked"]
