"""Using a finished run: predict, and learn more classes as the run that had them from the start."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import rightreasons as rr
from rightreasons import model
from rightreasons.config import build, resolve
from rightreasons.data.folder import Folder
from rightreasons.errors import DataWarning
from rightreasons.memory import Ragged
from rightreasons.runfiles import read_config
from rightreasons.sweep.one import execute

CLASSES = ("a", "b", "c", "d", "e", "f")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six class folders of glyphs, all together, and cut into four known and two new."""
    base = tmp_path_factory.mktemp("pictures")
    stream = rr.stream("glyphs", tasks=1, classes=6, train=10, test=1, size=16)
    images = stream[0].train
    for i in range(len(images)):
        pixels = images.pixels(torch.tensor([i]))[0].permute(1, 2, 0).numpy()
        name = CLASSES[int(images.y[i])]
        for part in ("all", "known" if name in CLASSES[:4] else "new"):
            folder = base / part / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{i:03d}.png")
    return base


def learner():
    return rr.ER(memory=rr.Memory(12)) + rr.RRR(rows=4) + rr.Evidence(rows=4)


@pytest.fixture(scope="module")
def known(pictures, tmp_path_factory):
    """A finished run on the four known classes."""
    folder = tmp_path_factory.mktemp("runs") / "known"
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    train = rr.Train(epochs=2, batch=8, optimiser="adamw", augment=rr.Augment(2, False))
    rr.fit(learner(), rr.net("resnet8"), stream, train=train, run=folder, progress=False)
    return folder


def same_columns(a, b):
    for name, column in a.columns_.items():
        other = b.columns_[name]
        if isinstance(column, Ragged):
            assert torch.equal(column.values, other.values), name
            assert torch.equal(column.lengths, other.lengths), name
        else:
            assert torch.equal(column, other), name
    assert a.columns_.keys() == b.columns_.keys()


def test_extend_equals_the_run_that_listed_these_classes_last(pictures, known, tmp_path):
    groups = [["a", "b"], ["c", "d"], ["e", "f"]]
    stream = rr.stream(pictures / "all", tasks=groups, size=16)
    train = rr.Train(epochs=2, batch=8, optimiser="adamw", augment=rr.Augment(2, False))
    whole = rr.fit(learner(), rr.net("resnet8"), stream, train=train, progress=False)
    longer = rr.extend(known, pictures / "new", tmp_path / "longer", progress=False)
    state, other = whole.net.state_dict(), longer.net.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    same_columns(whole.learner.memory, longer.learner.memory)
    assert np.array_equal(whole.R, longer.R, equal_nan=True)
    assert rr.load(tmp_path / "longer").class_names == CLASSES


def test_extend_without_the_old_test_data_says_nan_and_learns_the_same(pictures, known, tmp_path):
    there = rr.extend(known, pictures / "new", tmp_path / "there", progress=False)
    hidden = pictures / "hidden"
    (pictures / "known").rename(hidden)
    try:
        gone = rr.extend(known, pictures / "new", tmp_path / "gone", progress=False)
    finally:
        hidden.rename(pictures / "known")
    assert np.isnan(gone.R[-1, :2]).all() and not np.isnan(gone.R[-1, 2])
    assert not np.isnan(there.R[-1]).any()
    assert gone.R[-1, 2] == there.R[-1, 2]
    state, other = there.net.state_dict(), gone.net.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)


def test_a_run_can_be_extended_twice(pictures, known, tmp_path):
    once = tmp_path / "once"
    (tmp_path / "e").mkdir()
    (tmp_path / "f").mkdir()
    shutil.copytree(pictures / "new" / "e", tmp_path / "e" / "e")
    shutil.copytree(pictures / "new" / "f", tmp_path / "f" / "f")
    rr.extend(known, tmp_path / "e", once, progress=False)
    twice = rr.extend(once, tmp_path / "f", tmp_path / "twice", progress=False)
    assert twice.R.shape == (4, 4)
    assert not np.isnan(twice.R[-1]).any()
    assert rr.load(tmp_path / "twice").class_names == CLASSES
    kept = sorted(path.name for path in (tmp_path / "twice" / "maps").iterdir())
    assert kept == [f"task-{k}.npz" for k in (1, 2, 3, 4)]  # the other runs may go


def test_predict_says_what_the_net_says(pictures, known):
    model = rr.load(known)
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    x = torch.cat([task.test.pixels(torch.arange(len(task.test))) for task in stream])
    found = model.predict(x)
    normal = (x.float() - stream.mean.view(3, 1, 1)) / stream.std.view(3, 1, 1)
    with torch.no_grad():
        logits = model.net(normal).logits
    assert found.names == [CLASSES[i] for i in logits.argmax(1)]
    assert np.allclose(found.confidence, logits.softmax(1).max(1).values)
    assert found.maps.shape == (len(x), 16, 16)
    row, column = found.peaks[0]
    assert found.maps[0, row, column] == pytest.approx(found.maps[0].max(), rel=1e-5)
    channels_last = x.permute(0, 2, 3, 1).numpy()
    assert model.predict(channels_last).names == found.names


def test_a_net_in_float64_is_loaded_and_exported_as_such(pictures, tmp_path):
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    train = rr.Train(epochs=1, batch=8)
    made = rr.net("resnet8").double()
    result = rr.fit(learner(), made, stream, train=train, run=tmp_path / "run", progress=False)
    x = stream[0].test.x[:3]
    for net in (None, made, rr.net("resnet8")):
        loaded = rr.load(tmp_path / "run", net=net)
        assert next(loaded.net.parameters()).dtype == torch.float64
        normal = (x.double() - stream.mean.view(3, 1, 1)) / stream.std.view(3, 1, 1)
        with torch.no_grad():
            logits = result.net.eval()(normal).logits
        assert np.allclose(loaded.predict(x).scores, logits.numpy(), rtol=0, atol=1e-12)
    assert rr.export(tmp_path / "run").differences["model.pt2"] < 1e-12


def test_predict_reads_files(pictures, known):
    file = next((pictures / "known" / "a").iterdir())
    model = rr.load(known)
    pixels = np.asarray(Image.open(file))[None]
    assert model.predict([file]).names == model.predict(pixels).names


def test_explain_gives_the_maps_of_the_explainers_for_the_predicted_class(pictures, known):
    from rightreasons.explainers import EXPLAINERS

    model = rr.load(known)
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    x = stream[0].test.x[:3]
    found = model.explain(x, list(EXPLAINERS))
    predicted = model.predict(x)
    assert found.names == predicted.names
    assert np.allclose(found.confidence, predicted.confidence)
    assert np.array_equal(found.images, x)
    assert np.allclose(found.maps["gradcam"], predicted.maps, atol=1e-6)
    assert list(found.maps) == list(EXPLAINERS)
    assert all(maps.shape == (3, 16, 16) and maps.max() > 0 for maps in found.maps.values())
    y = torch.full((3,), CLASSES.index("c"))
    expected = rr.backprop(model.net, model.normal(x), y).detach().numpy()
    assert np.allclose(model.explain(x, ["backprop"], of="c").maps["backprop"], expected)
    other = model.explain(x, ["gradcam"], target="stages.1").maps["gradcam"]
    assert not np.allclose(other, found.maps["gradcam"])


def test_the_model_of_an_earlier_task_knows_its_own_classes(pictures, known):
    first, last = rr.load(known, task=1), rr.load(known, task=2)
    assert first.class_names == CLASSES[:2] and last.class_names == CLASSES[:4]
    assert first.net.classes == 2
    state = rr.load(known).net.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in last.net.state_dict().items())
    file = next((pictures / "known" / "d").iterdir())
    assert first.explain([file]).names[0] in CLASSES[:2]
    for call, words in (
        (lambda: rr.load(known, task=3), "no checkpoint of task 3; it has 1, 2"),
        (lambda: first.explain([file], of="d"), "unknown class 'd'"),
        (lambda: first.explain([file], ["gradcm"]), "did you mean 'gradcam'"),
        (lambda: first.explain([file], target="stages.9"), "unknown layer"),
        (lambda: first.explain([file], target="fc"), "expected maps of shape"),
    ):
        with pytest.raises(rr.UserError, match=words):
            call()


def test_a_net_of_ones_own_is_given_to_load_and_left_as_it_is(pictures, tmp_path):
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, 2, 1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(6, 2),
    )  # fmt: skip
    net = rr.net(module, size=16)
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    train = rr.Train(epochs=1, batch=8, augment=rr.Augment(2, False))
    rr.fit(learner(), net, stream, train=train, run=tmp_path / "run", progress=False)
    first, last = (rr.load(tmp_path / "run", net, task=k) for k in (1, 2))
    assert (first.net.classes, last.net.classes, net.classes) == (2, 4, 0)
    with pytest.raises(rr.UserError, match="pass net=rr.net"):
        rr.load(tmp_path / "run")


def test_bad_input_is_refused_in_one_sentence(pictures, known, tmp_path):
    model = rr.load(known)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    cases = [
        (lambda: rr.load(tmp_path), "holds no run"),
        (lambda: model.predict(np.zeros((1, 8, 8, 3), np.uint8)), "trained on 16x16"),
        (lambda: model.predict(np.zeros((1, 16, 16, 3))), "expected uint8"),
        (lambda: model.predict([broken]), "cannot be read as an image"),
        (lambda: model.predict([tmp_path / "none.png"]), "there is no image"),
        (lambda: rr.extend(known, pictures / "known", tmp_path / "x"), "bears the name"),
        (lambda: rr.extend(known, tmp_path / "nowhere", tmp_path / "x"), "is not a folder"),
    ]
    for call, words in cases:
        with pytest.raises(rr.UserError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()
    unfinished = tmp_path / "unfinished"
    shutil.copytree(known, unfinished)
    (unfinished / "result.json").unlink()
    with pytest.raises(rr.UserError, match="not finished"):
        rr.load(unfinished)


def test_images_are_read_upright_in_rgb(tmp_path):
    """Grey, transparent and rotated by EXIF: all become the same upright square."""
    from rightreasons.data.image import read

    upright = np.zeros((20, 20), np.uint8)
    upright[:10] = 255  # bright above
    Image.fromarray(upright).save(tmp_path / "grey.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees to the right when reading
    turned = np.rot90(upright)  # 90 degrees to the left
    Image.fromarray(turned.copy()).convert("RGB").save(tmp_path / "turned.jpg", exif=exif)
    alpha = np.zeros((20, 20, 4), np.uint8)
    alpha[10:, :, 3] = 255  # black below, nothing above: white shows through
    Image.fromarray(alpha).save(tmp_path / "alpha.png")
    for name in ("grey.png", "turned.jpg", "alpha.png"):
        image = read(tmp_path / name, 10)
        assert image.shape == (3, 10, 10) and image.dtype == np.uint8
        assert image[:, :4].min() > 200 and image[:, 6:].max() < 55, name


@pytest.mark.parametrize("options", [{"test": 0.5}, {"seed": 7}, {"target": "stages.1"}, "joint"])
def test_extend_keeps_the_settings_of_the_run(pictures, tmp_path, options):
    """The share that is held out, its seed, the explained layer, and what joint trains on."""
    joint = options == "joint"
    data = {} if joint else {k: v for k, v in options.items() if k != "target"}
    net = rr.net("resnet8", target=None if joint else options.get("target"))
    made = rr.Joint() if joint else learner()
    train = rr.Train(epochs=1, batch=8, optimiser="adamw", augment=rr.Augment(2, False))
    known = Folder(str(pictures / "known"), size=16, **data)
    every = Folder(str(pictures / "all"), size=16, **data)
    groups = [["a", "b"], ["c", "d"], ["e", "f"]]
    rr.fit(made, net, rr.stream(known, tasks=2), train=train, run=tmp_path / "a", progress=False)
    whole = rr.fit(made, net, rr.stream(every, tasks=groups), train=train, progress=False)
    longer = rr.extend(tmp_path / "a", pictures / "new", tmp_path / "b", progress=False)
    state, other = whole.net.state_dict(), longer.net.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert np.array_equal(whole.R, longer.R, equal_nan=True)
    assert longer.records[-1]["steps"] == whole.records[-1]["steps"]


def test_extend_takes_words_for_the_new_task_and_keeps_them(pictures, known, tmp_path):
    words = ["train.epochs=3", "train.lr=0.01"]
    longer = rr.extend(known, pictures / "new", tmp_path / "b", changes=words, progress=False)
    assert longer.records[-1]["steps"] == 3 * longer.records[0]["steps"] // 2  # the run has two
    kept = rr.load(tmp_path / "b").config["train"]
    assert (kept["epochs"], kept["lr"], kept["batch"]) == (3, 0.01, 8)
    assert rr.load(known).config["train"]["epochs"] == 2


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("epochs=3", "unknown key 'epochs'"),
        ("train.epoch=3", "unknown key 'train.epoch'; did you mean 'train.epochs'"),
        ("trian.epochs=3", "unknown section 'trian'; did you mean 'train'"),
        ("net.name=resnet20", "an extension keeps"),
        ("logits.weight=3", "has no logits"),
        ("train.epochs", "is not key=value"),
    ],
)
def test_wrong_words_for_an_extension_are_refused(pictures, known, tmp_path, word, says):
    """Of a run that was started from Python, too, whose config has no benchmark."""
    with pytest.raises(rr.UserError, match=says):
        rr.extend(known, pictures / "new", tmp_path / "b", changes=[word], progress=False)
    assert not (tmp_path / "b").exists()


def test_joint_cannot_be_extended_without_its_images(pictures, tmp_path):
    train = rr.Train(epochs=1, batch=8, augment=rr.Augment(2, False))
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    rr.fit(rr.Joint(), rr.net("resnet8"), stream, train=train, run=tmp_path / "a", progress=False)
    hidden = pictures / "hidden"
    (pictures / "known").rename(hidden)
    try:
        with pytest.raises(rr.UserError, match="were not found"):
            rr.extend(tmp_path / "a", pictures / "new", tmp_path / "b", progress=False)
    finally:
        hidden.rename(pictures / "known")


def known_run(out, benchmark, words, method="er"):
    config = resolve(str(benchmark), method, ["train.epochs=1", "train.batch=8", *words])
    execute(config, out, show=False)
    return out


@pytest.mark.parametrize("word", ["stream.validation=0.3", "stream.shots=3"])
def test_old_classes_keep_the_images_that_the_run_had(pictures, tmp_path, monkeypatch, word):
    words = ["data.size=16", "stream.tasks=2", "memory.size=8", word]
    run = known_run(tmp_path / "a", pictures / "known", words)
    _, stream = build(read_config(run)).load()
    seen = []
    monkeypatch.setattr(model, "fit", lambda learner, net, stream, **_: seen.append(stream))
    rr.extend(run, pictures / "new", tmp_path / "b", progress=False)
    for old, new in zip(stream, seen[0], strict=False):
        for part in ("train", "test"):
            a, b = getattr(old, part), getattr(new, part)
            every = torch.arange(len(a))
            assert torch.equal(a.y, b.y) and torch.equal(a.pixels(every), b.pixels(every))


def test_a_run_whose_cut_cannot_be_told_has_unknown_old_classes(pictures, tmp_path):
    """Started from Python, with images held out: testing on others would look like forgetting."""
    stream = rr.stream(pictures / "known", tasks=2, size=16, validation=0.3)
    train = rr.Train(epochs=1, batch=8, augment=rr.Augment(2, False))
    rr.fit(learner(), rr.net("resnet8"), stream, train=train, run=tmp_path / "a", progress=False)
    longer = rr.extend(tmp_path / "a", pictures / "new", tmp_path / "b", progress=False)
    assert np.isnan(longer.R[-1, :2]).all() and not np.isnan(longer.R[-1, 2])


@pytest.mark.parametrize(
    "made", [rr.BiC(memory=rr.Memory(12)), rr.TOPIC(memory=rr.Memory(per_class=2))]
)
def test_learners_that_count_images_are_extended_without_the_old_ones(pictures, tmp_path, made):
    stream = rr.stream(pictures / "known", tasks=2, size=16)
    train = rr.Train(epochs=1, batch=8, augment=rr.Augment(2, False))
    rr.fit(made, rr.net("resnet8"), stream, train=train, run=tmp_path / "a", progress=False)
    hidden = pictures / "hidden"
    (pictures / "known").rename(hidden)
    try:
        longer = rr.extend(tmp_path / "a", pictures / "new", tmp_path / "b", progress=False)
    finally:
        hidden.rename(pictures / "known")
    assert np.isnan(longer.R[-1, :2]).all() and not np.isnan(longer.R[-1, 2])


def test_bad_images_of_an_extension_can_be_left_out(pictures, known, tmp_path):
    shutil.copytree(pictures / "new", tmp_path / "new")
    (tmp_path / "new" / "e" / "bad.png").write_bytes(b"no image")
    with pytest.raises(rr.UserError, match="skip_bad=True"):
        rr.extend(known, tmp_path / "new", tmp_path / "b", progress=False)
    with pytest.warns(DataWarning, match="1 of .* left out"):
        rr.extend(known, tmp_path / "new", tmp_path / "b", skip_bad=True, progress=False)
