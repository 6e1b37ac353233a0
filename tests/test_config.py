"""Config: overrides, completeness, refusals with the nearest name, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import rightreasons as rr
from rightreasons.config import (
    NetFields,
    StreamFields,
    benchmarks,
    build,
    complete,
    configurable,
    convert,
    make,
    methods,
    plain,
    resolve,
)
from rightreasons.data.cifar100 import Cifar100
from rightreasons.data.cub200 import Cub200
from rightreasons.data.folder import Folder
from rightreasons.data.glyphs import Glyphs
from rightreasons.errors import UserError
from rightreasons.memory import Memory
from rightreasons.registry import LEARNERS, SOURCES, TERMS, find, split_method

METHODS = ["finetune", "er", "joint", "er+rrr", "er+evidence", "finetune+logits+rrr"]


def refusal(*words, benchmark="glyphs-small", method="er+rrr"):
    with pytest.raises(UserError) as caught:
        resolve(benchmark, method, words)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- what comes out ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("benchmark", list(benchmarks()))
def test_a_complete_config_stays_as_it_is(benchmark, method):
    config = resolve(benchmark, method, ["train.epochs=3"], seed=4)
    assert complete(config) == config
    assert complete(yaml.safe_load(yaml.safe_dump(config))) == config


@pytest.mark.parametrize("method", METHODS)
def test_a_complete_config_names_every_field(method):
    config = resolve("glyphs-small", method)
    learner, terms = split_method(method)
    assert list(config) == [
        *("benchmark", "method", "seed", "data", "stream", "net", "train", "memory"),
        *(learner, *terms),
    ]
    kinds = {"stream": StreamFields, "net": NetFields, "train": rr.Train, "memory": Memory}
    kinds |= {term: find("term", TERMS, term) for term in terms}
    for section, kind in kinds.items():
        assert list(config[section]) == [f.name for f in configurable(kind)]
    assert set(config["data"]) == {"source", *(f.name for f in fields(Glyphs))}


def test_the_benchmark_goes_over_defaults_and_overrides_over_the_benchmark():
    preset = benchmarks()["glyphs-small"]
    config = resolve("glyphs-small", "er", ["train.batch=5"])
    assert config["train"]["batch"] == 5 != preset["train"]["batch"]
    assert config["train"]["lr"] == preset["train"]["lr"] != rr.Train().lr
    assert config["train"]["gamma"] == rr.Train().gamma


def test_dotted_overrides_reach_every_section():
    words = [
        "seed=7",
        "data.train=9",
        "stream.tasks=[1,2]",
        "stream.order=[latin-A, latin-B, digit-3]",
        "net.name=resnet20",
        "train.augment.crop=3",
        "train.milestones=[1,2]",
        "train.replay=null",
        "memory.per_class=[4,1]",
        "er.replay=concat",
        "rrr.signed=true",
        "rrr.weight=3",
    ]
    config = resolve("glyphs-small", "er+rrr", words)
    assert config["seed"] == 7 and config["data"]["train"] == 9
    assert config["stream"]["tasks"] == [1, 2]
    assert config["stream"]["order"] == ["latin-A", "latin-B", "digit-3"]
    assert config["net"]["name"] == "resnet20"
    assert config["train"]["augment"] == {
        "crop": 3,
        "flip": False,
        "cut": None,
        "brightness": 0.0,
        "contrast": 0.0,
    }  # the preset's flip stays
    assert config["train"]["milestones"] == [1, 2] and config["train"]["replay"] is None
    assert config["memory"]["per_class"] == [4, 1]
    assert config["er"] == {"replay": "concat"}
    assert config["rrr"]["signed"] is True
    assert config["rrr"]["weight"] == 3.0 and isinstance(config["rrr"]["weight"], float)
    parts = build(config)
    assert parts.learner == rr.ER(Memory(60, per_class=(4, 1)), replay="concat") + rr.RRR(
        **{k: v for k, v in config["rrr"].items()}
    )
    assert parts.train.milestones == (1, 2) and parts.train.augment == rr.Augment(3, False)
    assert parts.source == Glyphs(train=9)
    assert parts.seed == 7


def test_the_last_of_two_overrides_counts():
    config = resolve("glyphs-small", "er", ["train.epochs=2", "train.epochs=3", "seed=1"], seed=5)
    assert config["train"]["epochs"] == 3 and config["seed"] == 1


def test_a_nested_override_after_null_starts_from_defaults():
    config = resolve("glyphs-small", "er", ["train.augment=null", "train.augment.crop=1"])
    plain_colours = {"brightness": 0.0, "contrast": 0.0}
    assert config["train"]["augment"] == {"crop": 1, "flip": False, "cut": None} | plain_colours


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E-4", 1e-4), ("5", 5.0), ("2.5e-3", 0.0025), ("1.0e+2", 100.0)],
)
def test_numbers_as_people_write_them(text, value):
    found = resolve("glyphs-small", "er", [f"train.lr={text}"])["train"]["lr"]
    assert found == value and isinstance(found, float)


def test_a_profile_fills_what_is_not_given():
    config = resolve("glyphs-small", "er+rrr", ["rrr.profile=released", "rrr.distance=l2"])
    released = rr.RRR(profile="released")
    assert config["rrr"]["distance"] == "l2"
    assert config["rrr"]["schedule"] == released.schedule == "alternate"
    assert config["rrr"]["weight"] == released.weight


def test_every_benchmark_says_what_it_is_and_can_be_built():
    known = benchmarks()
    assert {"glyphs", "glyphs-small", "glyphs-spurious"} <= set(known)
    for name, preset in known.items():
        assert preset["about"]
        assert build(resolve(name, "er+rrr")).learner.method == "er+rrr"


# --- the way back --------------------------------------------------------------------------------

MADE = [
    rr.Train(),
    rr.Train(epochs=2, replay=3, milestones=(1, 4), clip=0.5, augment=rr.Augment(1, False)),
    Memory(),
    Memory(7, per_class=3),
    Memory(9, per_class=(4, 1)),
    rr.RRR(),
    rr.RRR(profile="released", weight=2, dtype="uint8"),
    rr.RRR(profile="recommended", only_correct=True),
    rr.Evidence(weight=0.5, bias=False),
    rr.Logits(rows=3),
    rr.Activations(rows=3),
    StreamFields([["a"], ["b"]], 3, ["a", "b"]),
    NetFields("resnet20", "stages.1"),
    Glyphs(size=20, spurious=0.5),
    Folder(".", size=16, test=0.5),
    Cifar100("there"),
    Cub200("there", size=64, lists="lists"),
    rr.Train(later={"batch": 10, "lr": 0.1}, freeze_bn=True),
]


@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)
def test_plain_and_make_are_inverse(made):
    text = yaml.safe_dump(plain(made))
    again = make(type(made), yaml.safe_load(text), "x")
    assert again == made
    assert plain(again) == plain(made)


@pytest.mark.parametrize("name", LEARNERS)
def test_plain_and_make_are_inverse_for_learners(name):
    kind = find("method", LEARNERS, name)
    learner = kind(memory=Memory(7))
    values = {k: v for k, v in plain(learner).items() if k not in ("memory", "terms")}
    assert make(kind, values, name, memory=Memory(7)) == learner


def test_every_term_and_source_is_among_them():
    kinds = {type(made) for made in MADE}
    for registry in (TERMS, SOURCES):
        for name in registry:
            assert find("name", registry, name) in kinds


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            {"benchmark": "glyph-small"},
            "unknown benchmark 'glyph-small'; did you mean 'glyphs-small'?",
        ),
        ({"method": "ere"}, "unknown method 'ere'; did you mean 'er'?"),
        ({"method": "fintune"}, "unknown method 'fintune'; did you mean 'finetune'?"),
        ({"method": "er+rr"}, "unknown term 'rr'; did you mean 'rrr'?"),
        ({"method": "er+evidance"}, "unknown term 'evidance'; did you mean 'evidence'?"),
    ],
)
def test_unknown_names_suggest_the_nearest(call, said):
    assert refusal(**call) == said


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.epoch=2", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ("rrr.wieght=2", "unknown key 'rrr.wieght'; did you mean 'rrr.weight'?"),
        ("memory.sise=2", "unknown key 'memory.sise'; did you mean 'memory.size'?"),
        ("data.trian=2", "unknown key 'data.trian'; did you mean 'data.train'?"),
        ("stream.task=2", "unknown key 'stream.task'; did you mean 'stream.tasks'?"),
        ("er.reply=2", "unknown key 'er.reply'; did you mean 'er.replay'?"),
        ("train.augment.crup=2", "unknown key 'train.augment.crup'; did you mean 'train.augment.c"),
        ("trian.epochs=2", "unknown section 'trian'; did you mean 'train'?"),
        ("memry.size=2", "unknown section 'memry'; did you mean 'memory'?"),
        ("sead=2", "unknown key 'sead'; did you mean 'seed'?"),
        ("net.name=resnet9", "unknown net 'resnet9'; did you mean 'resnet"),
        ("data.source=glyps", "unknown data.source 'glyps'; did you mean 'glyphs'?"),
        ("train.optimiser=adam", "unknown train.optimiser 'adam'; did you mean '"),
        ("rrr.view=canonicle", "unknown rrr.view 'canonicle'; did you mean 'canonical'?"),
        ("rrr.profile=papre", "unknown rrr.profile 'papre'; did you mean 'paper'?"),
        ("er.replay=pared", "unknown er.replay 'pared'; did you mean 'paired'?"),
        ("memory.pick=randm", "unknown memory.pick 'randm'; did you mean 'random'?"),
    ],
)
def test_unknown_words_suggest_the_nearest(word, said):
    assert refusal(word).startswith(said)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.epochs=two", "train.epochs is 'two', expected a whole number"),
        ("train.epochs=2.5", "train.epochs is 2.5, expected a whole number"),
        ("train.epochs=true", "train.epochs is True, expected a whole number"),
        ("train.epochs=", "train.epochs is None, expected a whole number"),
        ("train.epochs=1e3", "train.epochs is '1e3', expected a whole number"),
        ("train.lr=fast", "train.lr is 'fast', expected a number"),
        ("train.lr=true", "train.lr is True, expected a number"),
        ("train.clip=[1]", "train.clip is [1], expected a number or null"),
        ("train.milestones=3", "train.milestones is 3, expected a list such as [1,2]"),
        ("train.milestones=[a]", "train.milestones is 'a', expected a whole number"),
        (
            "train.augment=4",
            "train.augment is 4, expected keys crop, flip, cut, brightness, contrast or null",
        ),
        ("train.augment.flip=7", "train.augment.flip is 7, expected true or false"),
        ("rrr.signed=yess", "rrr.signed is 'yess', expected true or false"),
        ("rrr.view=3", "rrr.view is 3, expected a word"),
        ("rrr.cells=-2", "rrr.cells is -2, expected full, or a number above 0"),
        ("rrr.view=", "rrr.view is None, expected a word ('' for an empty one)"),
        ("memory.per_class=[1,2,3]", "memory.per_class is [1, 2, 3], expected a whole number or"),
        ("memory.per_class=[a,b]", "memory.per_class is 'a', expected a whole number"),
        ("memory.per_class=0", "memory.per_class is 0, expected at least 1"),
        ("memory.size=0", "memory.size is 0, expected at least one row"),
        ("stream.tasks=five", "stream.tasks is 'five', expected a whole number or a list"),
        ("net.name=[resnet8]", "net.name is ['resnet8'], expected a word"),
        ("seed=x", "seed is 'x', expected a whole number"),
        ("train.epochs=0", "train.epochs is 0, expected at least 1"),
        ("train.lr=-1", "train.lr is -1.0, expected a number above 0"),
        ("train.lr=.nan", "train.lr is nan, expected a number above 0"),
        ("train.lr=.inf", "train.lr is inf, expected a number above 0"),
        ("rrr.weight=-1", "rrr.weight is -1.0, expected 0 or more"),
        ("rrr.rows=0", "rrr.rows is 0, expected at least 1"),
        ("data.size=3", "glyphs need a size of at least 16"),
        ("train.augment.crop=-1", "train.augment.crop is -1, expected 0 or more"),
        ("train.weight_decay=-1", "train.weight_decay is -1.0"),
        ("train.momentum=-1", "train.momentum is -1.0"),
        ("train.clip=-1", "train.clip is -1.0"),
        ("train.gamma=.nan", "train.gamma is nan"),
        ("rrr.weight=.inf", "rrr.weight is inf"),
        ("rrr.alternate_lr=-1", "rrr.alternate_lr is -1.0"),
    ],
)
def test_values_of_another_type_or_range_say_what_was_expected(word, said):
    assert refusal(word).startswith(said)


@pytest.mark.parametrize("word", ["train.epochs", "", "=3", "rrr"])
def test_words_without_a_value_show_how_to_type(word):
    text = refusal(word)
    assert text.startswith(repr(word)) and "key=value" in text


@pytest.mark.parametrize("section", ["train", "data", "rrr"])
def test_a_section_is_no_key_and_is_not_suggested_in_its_own_place(section):
    text = refusal(f"{section}=3")
    assert f"did you mean {section!r}" not in text
    assert f"{section}." in text  # what to type


@pytest.mark.parametrize("word", ["method=er", "benchmark=glyphs"])
def test_method_and_benchmark_are_no_overrides(word):
    assert refusal(word).startswith(f"unknown key {word.split('=')[0]!r}")


def test_a_term_that_the_method_lacks():
    assert refusal("evidence.weight=3") == (
        "method 'er+rrr' has no evidence, so no evidence.weight; leave it out, or type "
        "er+rrr+evidence"
    )
    assert refusal("icarl.scoring=nme").endswith("or type icarl+rrr")
    assert "joint" in refusal("er.replay=concat", method="joint")


def test_a_term_named_twice():
    assert refusal(method="er+rrr+rrr") == "method 'er+rrr+rrr' names a term twice; name each once"


def test_joint_takes_no_term():
    assert "use er+rrr" in refusal(method="joint+rrr")


@pytest.mark.parametrize(
    "word",
    [
        "train.lr=[1",
        "train.lr={",
        "train.lr=: :",
        "train.lr=2020-13-45",  # looks like a date to YAML
        "train.lr=0b_",  # and like a number
        "train.lr=!!python/name:os.system",
    ],
)
def test_values_that_are_no_yaml(word):
    assert "train.lr" in refusal(word)


@pytest.mark.parametrize(
    "word",
    ["data.source=[glyphs]", "data.source={a: 1}", "data.source.size=3", "data.source=null"],
)
def test_a_source_that_is_no_name(word):
    assert "data.source" in refusal(word)


@pytest.mark.parametrize("word", ["er.terms=[]", "er.terms=[{}]", "er.memory.size=3"])
def test_terms_and_memory_of_a_learner_have_sections_of_their_own(word):
    assert refusal(word).startswith(f"unknown key '{word.split('=')[0].removesuffix('.size')}'")


def test_another_source_leaves_the_benchmark_s_keys_of_the_old_one_behind(tmp_path):
    words = ["data.source=folder", f"data.path={tmp_path}"]
    config = resolve("glyphs-small", "er", words)
    assert config["data"]["path"] == str(tmp_path) and "train" not in config["data"]


def test_a_source_that_needs_a_path_says_so():
    assert "data.path" in refusal("data.source=folder")
    with pytest.raises(UserError, match="data.path"):
        build({"method": "er", "seed": 0, "data": {"source": "folder"}})


def test_the_source_is_missing():
    with pytest.raises(UserError, match="data.source is missing; type data.source=glyphs"):
        build({"method": "er", "seed": 0, "data": {}})


@pytest.mark.parametrize("values", [[1], 3, "x"])
def test_a_section_that_holds_no_keys(values):
    with pytest.raises(UserError, match="memory is .*, expected keys"):
        make(Memory, values, "memory")


def test_convert_takes_the_first_type_that_fits():
    assert convert(3, int | None, "a") == 3
    assert convert(None, int | None, "a") is None
    assert convert([1, 2], tuple[int, int] | None, "a") == (1, 2)
    assert convert([1, 2, 3], tuple[int, ...], "a") == (1, 2, 3)
    assert convert("1e-3", float | None, "a") == 0.001

    @dataclass
    class Inner:
        b: int = 1

    assert convert({"b": 2}, Inner | None, "a") == Inner(2)


# --- any words -----------------------------------------------------------------------------------

KEYS = [f"train.{f.name}" for f in fields(rr.Train)]
KEYS += [f"rrr.{f.name}" for f in fields(rr.RRR)]
KEYS += [f"memory.{f.name}" for f in fields(Memory)]
KEYS += [f"data.{f.name}" for f in fields(Glyphs)] + ["data.source", "data.names", "data.flip"]
KEYS += ["stream.tasks", "stream.classes", "stream.order", "net.name", "net.target", "seed"]
KEYS += ["er.replay", "er.terms", "er.memory", "train.augment.crop", "train.augment.flip.x", "."]
VALUES = [
    *("3", "0", "-1", "2.5", "1e-3", ".nan", ".inf", "true", "null", "", "word", "paper", "off"),
    *("[1,2]", "[]", "[[a],[b]]", "[1,[a]]", "{}", "{a: 1}", "{crop: 2}", "[{}]", "2020-01-01"),
    *("2020-99-99", "0b_", "1_0", "12:30:45", "!!binary aGk=", "!!set {a}", "- 1", "'", "\t", "@"),
]
WORDS = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)).map("=".join),
    st.tuples(st.sampled_from(KEYS), st.text(max_size=8)).map("=".join),
    st.tuples(st.text("abert.rn_", max_size=9), st.sampled_from(VALUES)).map("=".join),
    st.text(max_size=12),
)


@given(st.lists(WORDS, min_size=1, max_size=3))
@settings(max_examples=120, deadline=None)
def test_any_words_give_a_config_or_a_sentence(words):
    try:
        config = resolve("glyphs-small", "er+rrr", words)
    except UserError as error:
        assert str(error)
        return
    assert complete(config) == config
    assert yaml.safe_load(yaml.safe_dump(config)) == config


# --- what a learner has of its own ---------------------------------------------------------------


@pytest.mark.parametrize("learner", list(methods()))
def test_a_learners_presets_are_of_benchmarks_and_resolve_with_every_term(learner):
    preset = methods()[learner]
    assert set(preset) <= set(benchmarks())
    for benchmark in benchmarks():
        terms = TERMS if learner != "joint" else ()
        for method in (learner, *(f"{learner}+{term}" for term in terms)):
            config = resolve(benchmark, method)
            assert complete(config) == config


def test_a_learners_preset_goes_over_the_benchmarks_and_under_the_words():
    assert resolve("cifar100-10", "er")["train"]["optimiser"] == "radam"
    config = resolve("cifar100-10", "icarl", ["train.epochs=3"])
    assert config["train"]["optimiser"] == "sgd" and config["train"]["lr"] == 2.0
    assert config["train"]["epochs"] == 3 and config["train"]["batch"] == 128
    assert config["net"]["name"] == "resnet32"
    assert config["memory"] == {"size": 2000, "pick": "herding", "per_class": None}


def test_the_learners_memory_stays_what_it_is_unless_the_config_says_so():
    assert resolve("glyphs-small", "er")["memory"]["pick"] == "random"
    assert resolve("glyphs-small", "bic")["memory"]["pick"] == "herding"
    typed = resolve("glyphs-small", "bic", ["memory.pick=random"])
    assert typed["memory"] == {"size": 60, "pick": "random", "per_class": None}


@pytest.mark.parametrize("learner", ["finetune", "ewc", "lwf", "lwf-mc"])
@pytest.mark.parametrize("term", sorted(TERMS))
def test_terms_of_learners_without_replay_have_a_forward_of_their_own(learner, term):
    assert resolve("glyphs-small", f"{learner}+{term}")[term]["view"] == "canonical"


def test_a_long_path_with_spaces_stays_whole(tmp_path):
    folder = tmp_path / " ".join(["pictures"] * 12)
    folder.mkdir()
    assert resolve(str(folder), "er")["data"]["path"] == str(folder)
