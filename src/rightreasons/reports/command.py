"""The shortest command that repeats a run, from its complete config."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from rightreasons.config import RESETS, complete, resolve
from rightreasons.errors import UserError

_ABSENT = object()


def command(config: Mapping[str, Any]) -> str | None:
    """``rrr run BENCHMARK METHOD words``, or how a run was extended or branched; None if no command
    leads to this config."""
    extensions = config.get("extensions")
    if extensions:
        last = extensions[-1]
        skips = ["--skip-bad"] if last.get("skip_bad") else []
        return shlex.join(
            ["rrr", "extend", last["run"], last["folder"], *last.get("words", ()), *skips]
        )
    found = words(config)
    if found is None:
        return None
    if "branch" in config:
        start = f"{config['branch']['run']}@task{config['branch']['task']}"
        return shlex.join(["rrr", "run", "--from", start, *found])
    benchmark = str(config["benchmark"])
    path = next((word for word in found if word.startswith("data.path=")), None)
    if benchmark == "folder" and path is not None:
        benchmark = str(config["data"]["path"])
        found = [word for word in found if word != path]
    seed = [f"seed={config['seed']}"] if config["seed"] else []
    return shlex.join(["rrr", "run", benchmark, str(config["method"]), *found, *seed])


def today(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the defaults of keys that the version that wrote it did not know."""
    if "benchmark" not in config:
        return dict(config)
    try:
        return {**config, **complete(config)}
    except UserError:  # a learner or a key that this version does not know
        return dict(config)


def words(config: Mapping[str, Any]) -> list[str] | None:
    """The ``key=value`` words, seed apart, that make this config out of its benchmark's own."""
    if "benchmark" not in config or "extensions" in config:
        return None
    config = {key: value for key, value in today(config).items() if key != "branch"}
    name, method = str(config["benchmark"]), str(config["method"])
    base = _resolved(name, method, ())
    found: list[str] = []
    for reset in RESETS:  # another source or profile brings its own values first
        section, key = reset.split(".")
        value = config.get(section, {}).get(key)
        if base is not None and value != base.get(section, {}).get(key):
            found.append(f"{reset}={_word(value)}")
    base = _resolved(name, method, tuple(found))
    if base is None:
        return None
    found += [f"{key}={_word(value)}" for key, value in _differences(base, config)]
    made = _resolved(name, method, tuple(found))
    repeats = made is not None and not list(_differences(made, config))
    return found if repeats else None


@lru_cache(maxsize=1024)
def _resolved(benchmark: str, method: str, found: tuple[str, ...]) -> dict[str, Any] | None:
    """The config that the words give; None where this version cannot read them."""
    if benchmark == "folder" and not any(word.startswith("data.path=") for word in found):
        found = ("data.path=.", *found)
    try:
        return resolve(benchmark, method, found)
    except UserError:
        return None


def _differences(base: Any, config: Any, where: str = "") -> list[tuple[str, Any]]:
    """Keys of the config whose values are not the base's."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{where}.{key}".lstrip(".")
        if path in ("benchmark", "method", "seed"):
            continue
        other = base.get(key, _ABSENT)
        if isinstance(value, Mapping) and isinstance(other, Mapping) and set(other) <= set(value):
            found += _differences(other, value, path)
        elif other != value:
            found.append((path, value))
    return found


def _word(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
        value = int(value)  # as one types it
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
