"""Config: YAML and ``key=value`` words to dataclasses and back, with every key checked."""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from importlib import resources
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rightreasons.errors import UserError, unknown
from rightreasons.registry import LEARNERS, SOURCES, TERMS, find, split_method
from rightreasons.runfiles import load_yaml

T = TypeVar("T")
LARGEST = 2**63  # what a tensor of whole numbers can hold
RESETS = ("data.source", "rrr.profile")


@dataclass(frozen=True)
class StreamFields:
    """How a data source is cut into tasks."""

    tasks: int | list[Any] = 5
    """a number of equal tasks, a list of class counts, or lists of class names"""
    classes: int | None = None
    """use the first so many classes of the order"""
    order: str | list[str] = "seed"
    """natural, seed (drawn by the run's seed), or class names"""
    shots: int | None = None
    """train images a class from the second task on"""
    pool: str | None = None
    """draw the classes from this pool of `pools`"""
    pools: dict[str, Any] = field(default_factory=dict)
    """named lists of classes: what is tuned on one is reported on another"""
    validation: float = 0.0
    """test on this share of the train images, which then do not train: to tune without test data"""

    def __post_init__(self) -> None:
        if self.pool is not None and not self.pools:
            raise UserError(
                f"stream.pool is {self.pool!r}, and this benchmark has no pools of classes; leave "
                "it out"
            )
        if self.pool is not None and self.pool not in self.pools:
            raise unknown("stream.pool", self.pool, self.pools)
        if self.shots is not None:
            check_shots(self.shots)
        check_validation(self.validation)

    def cut(self, source: Any, seed: int) -> Any:
        """The stream of a source that these fields describe."""
        from rightreasons.streams import stream

        among = None if self.pool is None else self.pools[self.pool]
        return stream(
            source,
            self.tasks,
            classes=self.classes,
            order=self.order,
            among=among,
            shots=self.shots,
            validation=self.validation,
            seed=seed,
        )


def check_shots(shots: int) -> None:
    if shots < 1:
        raise UserError(f"stream.shots is {shots}, expected at least 1")


def check_validation(share: Any) -> None:
    """Refuse what is no share of the train images."""
    if not isinstance(share, Real) or not 0 <= float(share) < 1:
        raise UserError(
            f"stream.validation is {share}, expected a share such as 0.2, or 0 to test on test "
            "images"
        )


@dataclass(frozen=True)
class NetFields:
    """The network."""

    name: str = "resnet8"
    target: str | None = None
    """the layer that Grad-CAM explains, if not the paper's"""
    weights: str | None = None
    """a torchvision file of weights, whole or of the trunk alone"""
    flatten: int | None = None
    """the side of the images, for the paper's authors' head on the flattened last map"""


# --- what there is ---------------------------------------------------------------------------


def benchmarks() -> dict[str, dict[str, Any]]:
    """The benchmarks that ship, by name."""
    return copy.deepcopy(_presets("benchmarks"))


def methods() -> dict[str, dict[str, Any]]:
    """What a learner has of its own, by learner and benchmark."""
    return copy.deepcopy(_presets("methods"))


@cache
def _presets(kind: str) -> dict[str, dict[str, Any]]:
    folder = resources.files("rightreasons") / "presets" / kind
    found = {f.name.removesuffix(".yaml"): f for f in folder.iterdir() if f.name.endswith(".yaml")}
    return {name: yaml.safe_load(found[name].read_text("utf-8")) for name in sorted(found)}


def resolve(
    benchmark: str, method: str, overrides: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """The complete config of a run: the benchmark's, the learner's, overrides, then defaults.

    A folder of class folders is a benchmark too.
    """
    known = _presets("benchmarks")
    if benchmark and benchmark not in known and Path(benchmark).is_dir():
        path = yaml.safe_dump(benchmark, width=10**6).splitlines()[0]
        overrides = [f"data.path={path}", *overrides]
        benchmark = "folder"
    if benchmark not in known:
        raise _no_benchmark(benchmark, list(known))
    learner, terms = split_method(method)
    own = _presets("methods").get(learner, {})
    layers = copy.deepcopy([known[benchmark], own.get(benchmark, {})])
    config: dict[str, Any] = {"benchmark": benchmark, "method": method, "seed": seed}
    for section in ("data", "stream", "net", "train", "memory", learner, *terms):
        config[section] = {k: v for layer in layers for k, v in (layer.get(section) or {}).items()}
    for word in sorted(overrides, key=lambda word: word.partition("=")[0] not in RESETS):
        override(config, word)
    return complete(config)


def words_for(method: str, words: Sequence[str]) -> list[str]:
    """The words that speak of this method: those of a term that it lacks are for others."""
    absent = set(TERMS) - set(split_method(method)[1])
    return [word for word in words if word.split(".")[0] not in absent]


def _no_benchmark(name: str, known: list[str]) -> UserError:
    """For a word that is no benchmark and no folder: mistyped, out of place, or a wrong path."""
    if Path(name).is_file():
        return UserError(
            f"{name} is a file, expected a benchmark or a folder with one folder a class"
        )
    if name.split("+")[0] in LEARNERS:
        return UserError(
            f"{name!r} is a method, and the benchmark comes first; type it before {name}"
        )
    error = unknown("benchmark", name, known, likeness=0.7)  # it may be the name of a folder
    if "did you mean" in str(error) and Path(name).name == name:
        return error
    return UserError(
        f"{name!r} is no folder and no benchmark; check the path, or choose one of: "
        f"{', '.join(known)}."
    )


def override(config: dict[str, Any], word: str) -> None:
    """Put one ``section.key=value`` in its place."""
    path, equals, text = word.partition("=")
    if not equals or not path:
        raise UserError(f"{word!r} is not key=value; type for example train.epochs=2")
    try:
        value = load_yaml(text)
    except ValueError:  # such as a date that does not exist
        raise UserError(
            f"{text!r} is no value for {path}; quote it, or write lists as [1,2]"
        ) from None
    *sections, key = path.split(".")
    if not sections and key != "seed":
        raise unknown("key", key, _keys(config))
    place = config
    for i, section in enumerate(sections):
        if not i and not isinstance(config.get(section), dict):
            names = [s for s in config if isinstance(config[s], dict)]
            if section in LEARNERS or section in TERMS:
                base, *terms = str(config["method"]).split("+")
                having = [base, *terms, section] if section in TERMS else [section, *terms]
                raise UserError(
                    f"method {config['method']!r} has no {section}, so no {path}; leave it out, or "
                    f"type {'+'.join(having)}"
                )
            raise unknown("section", section, names)
        if not isinstance(place.get(section), dict):
            place[section] = {}
        place = place[section]
    if path in RESETS and value != place.get(key):
        place.clear()  # another source or profile brings its own fields and values
    place[key] = value


def _keys(config: Mapping[str, Any]) -> list[str]:
    """Every key that can be set, as it is typed; the nearest to ``epochs`` is ``train.epochs``."""
    full = complete(config) if "benchmark" in config else config  # from Python: all are there
    found = ["seed"]
    for section, values in full.items():
        if isinstance(values, dict):
            found += [f"{section}.{key}" for key in values]
    return found


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key with its value, checked."""
    parts = build(config)
    return {
        "benchmark": config["benchmark"],
        "method": config["method"],
        "seed": parts.seed,
        "data": {"source": config["data"]["source"], **plain(parts.source)},
        "stream": plain(parts.stream),
        "net": plain(parts.net),
        "train": plain(parts.train),
        **sections(parts.learner),
    }


def sections(learner: Any) -> dict[str, Any]:
    """Memory, learner and terms as sections of a config."""
    own = {k: v for k, v in plain(learner).items() if k not in ("memory", "terms")}
    terms = {term.name: plain(term) for term in learner.terms}
    return {"memory": plain(learner.memory), learner.name: own, **terms}


def learner_of(config: Mapping[str, Any]) -> Any:
    """The learner that a config's method and sections describe."""
    from rightreasons.memory import Memory

    learner, terms = split_method(config["method"])
    kind = find("method", LEARNERS, learner)
    given = config.get("memory")
    if given is None or isinstance(given, Mapping):  # what it does not say is the learner's default
        given = plain(kind().memory) | dict(given or {})
    memory = make(Memory, given, "memory")
    made = make(kind, config.get(learner), learner, memory=memory, terms=())
    for term in terms:
        made = made + make(find("term", TERMS, term), config.get(term), term)
    return made


def build_source(config: Mapping[str, Any]) -> Any:
    """The data source of a config."""
    data = dict(config.get("data") or {})
    if "source" not in data:
        raise UserError("data.source is missing; type data.source=glyphs")
    return make(find("data.source", SOURCES, data.pop("source")), data, "data")


@dataclass
class Parts:
    """What a config describes, as objects; images are not loaded yet."""

    seed: int
    source: Any
    stream: StreamFields
    net: NetFields
    train: Any
    learner: Any

    def load(self) -> tuple[Any, Any]:
        """Net and stream."""
        from rightreasons.nets import net

        n = self.net
        made = self.stream.cut(self.source, self.seed)
        return net(n.name, target=n.target, weights=n.weights, flatten=n.flatten), made


def build(config: Mapping[str, Any]) -> Parts:
    """Objects of a config; anything unknown or of another type is refused."""
    from rightreasons.nets import check_name
    from rightreasons.optimise import Train

    learner = learner_of(config)
    source = build_source(config)
    net = make(NetFields, config.get("net"), "net")
    check_name(net.name)
    train = make(Train, config.get("train"), "train").on(source.flip)
    return Parts(
        convert(config["seed"], int, "seed"),
        source,
        make(StreamFields, config.get("stream"), "stream"),
        net,
        train,
        learner,
    )


# --- dataclasses -----------------------------------------------------------------------------


# by class; a study reads a thousand configs
_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


def make(kind: type[T], values: Any, where: str, *, hint: str = "type {}=VALUE", **given: Any) -> T:
    """A dataclass from a mapping of its fields; the hint is for one that is missing."""
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        raise UserError(f"{where} is {values!r}, expected keys; type for example {where}.KEY=VALUE")
    hints = _hints(kind)
    names = [f.name for f in configurable(kind) if f.name not in given]
    built = {}
    for name, value in values.items():
        if name not in names:
            raise unknown("key", f"{where}.{name}", [f"{where}.{n}" for n in names])
        built[name] = convert(value, hints[name], f"{where}.{name}")
    for f in configurable(kind):
        needed = f.default is MISSING and f.default_factory is MISSING
        if needed and f.name not in built and f.name not in given:
            key = f"{where}.{f.name}"
            raise UserError(f"{key} is missing; {hint.format(key)}")
    return kind(**built, **given)


def check_types(owner: Any, where: str, skip: tuple[str, ...] = ()) -> None:
    """Every field of a dataclass as its annotation says, or a sentence; for ``__post_init__``."""
    hints = _hints(type(owner))
    for f in configurable(owner):
        if f.name not in skip:
            value = convert(getattr(owner, f.name), hints[f.name], f"{where}.{f.name}")
            object.__setattr__(owner, f.name, value)


def check_choice(owner: Any, name: str, choices: tuple[str, ...]) -> None:
    if getattr(owner, name) not in choices:
        raise unknown(f"{owner.name}.{name}", getattr(owner, name), choices)


def configurable(kind: Any) -> list[Any]:
    """The fields of a dataclass that are configuration."""
    return [f for f in fields(kind) if f.init and not f.name.endswith("_")]


def convert(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotated type, or a sentence about it."""
    value = value.item() if type(value).__module__ == "numpy" and not value.ndim else value
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        kind = typing.get_origin(option) or option
        inner = typing.get_args(option)
        if option is type(None) and value is None:
            return None
        if is_dataclass(kind) and isinstance(kind, type):
            if isinstance(value, kind):
                return value
            if isinstance(value, Mapping):
                return make(kind, value, where)
        if kind is tuple and isinstance(value, (list, tuple)):
            every = inner[0] if inner else Any
            if len(inner) == 2 and inner[1] is not Ellipsis and len(value) != 2:
                continue
            return tuple(convert(v, every, where) for v in value)
        if kind is list and isinstance(value, (list, tuple)):
            return [convert(v, inner[0], where) for v in value] if inner else list(value)
        if kind is dict and isinstance(value, Mapping):
            return dict(value)
        if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)  # YAML reads 1e-3 as a string
            except (ValueError, OverflowError):
                continue
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            if abs(value) >= LARGEST:
                raise UserError(f"{where} is {value}, expected a whole number below 2^63")
            return value
        if kind in (bool, str) and isinstance(value, kind):
            return value
        if option is Any:
            return value
    expected = " or ".join(_say(option) for option in options)
    if value is None and str in options:
        expected += " ('' for an empty one)"
    raise UserError(f"{where} is {value!r}, expected {expected}")


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _say(option: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    if option is type(None):
        return "null"
    if (typing.get_origin(option) or option) in (tuple, list):
        return "a list such as [1,2]"
    if (typing.get_origin(option) or option) is dict:
        return "keys such as {a: 1}"
    if is_dataclass(option):
        return "keys " + ", ".join(f.name for f in fields(option))
    return words.get(option, str(option))


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries of their configuration, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in configurable(value)}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value  # a NumPy number
