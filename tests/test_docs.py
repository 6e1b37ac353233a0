"""The docs: links and anchors lead somewhere, commands are what rrr takes, code runs."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import cyclopts
import pytest

from rightreasons.cli import app
from rightreasons.config import benchmarks, build, override, resolve
from rightreasons.errors import UserError
from rightreasons.loop import Loop
from rightreasons.registry import split_method

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
OWN = ("slow", "hirescam", "smooth")  # of examples/own-parts, and of the page on learners
RUN = {  # pages whose Python runs as it stands, block by block
    "start.md": (0,),
    "your-learner.md": (0,),
    "your-explainer.md": (0, 1),
    "paper-and-code.md": (0,),
    "your-network.md": (-1,),
}


def name(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """Of every heading, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    slugs = [re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")) for head in heads]
    return {slug.strip().replace(" ", "-") for slug in slugs}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(found), f"{target}: no such heading"


def test_every_page_is_reached_from_the_first():
    """From the README, by links."""
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
            if not re.match(r"[a-z]+:", target):
                ahead.append((page.parent / target).resolve())
    assert set(PAGES) - seen == set()


def commands():
    """Every line of docs that begins with rrr, in a block or between backticks."""
    for page in PAGES:
        if page.name in ("errors.md", "CHANGELOG.md"):  # refusals, which another test types
            continue
        text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))  # lines that go on
        blocks = re.findall(r"^(?:    |\t)(?:\$ )?(rrr .+)$", text, re.M)
        inline = [" ".join(code.split()) for code in re.findall(r"`(rrr [^`]+)`", text)]
        for line in dict.fromkeys([*blocks, *inline]):
            words = shlex.split(line, comments=True)[1:]
            if "|" not in line and not any("{" in w and "}" in w for w in words):
                yield pytest.param(words, id=f"{page.name}: {line[:60]}")


def is_placeholder(word):
    return bool(re.fullmatch(r"[A-Z][A-Z_]*(@task\d)?(\.\.\.)?|\[.*|.*\.\.\.\]?|K", word))


@pytest.mark.parametrize("words", list(commands()))
def test_commands_are_what_the_command_line_takes(words):
    if words[0] in ("--help", "--version") or is_placeholder(words[0]):
        return
    typed = [w for w in words if not w.startswith("[") and w != "..."]
    typed = ["3" if is_placeholder(w) and before == "--seeds" else w
             for before, w in zip(["", *typed], typed, strict=False)]  # fmt: skip
    if typed[-1] in ("--from", "--out", "--seeds"):  # an option that is spoken of
        typed.append("3")
    if len(typed) > 1 or typed[0] in ("demo", "list", "report"):
        app.parse_args(typed, exit_on_error=False, print_error=False)  # names and options
    else:  # a command that is spoken of
        assert typed[0] in app, typed[0]
    if typed[0] not in ("run", "compare") or "--from" in typed or len(typed) < 3:
        return
    positional = [w for w in typed[1:] if not w.startswith("-")]
    benchmark, methods, *rest = positional
    overrides = [w for w in rest if "=" in w and not is_placeholder(w)]
    for method in methods.split(","):
        if is_placeholder(method) or any(part in OWN for part in method.split("+")):
            continue
        learner, terms = split_method(method)
        if is_placeholder(benchmark):
            continue
        own = [w for w in overrides if _concerns(w, terms) and w.partition("=")[2] not in OWN]
        known = benchmark if benchmark in benchmarks() else None
        if known:
            config = resolve(known, method, own)
            if known.startswith("glyphs"):
                _would_start(config)
        else:  # a folder of the reader's: its keys at least
            config = {"method": method} | {s: {} for s in SECTIONS} | {learner: {}}
            for word in own:
                override(config | {term: {} for term in terms}, word)


def _would_start(config):
    """Whatever a run refuses before it trains."""
    small = {"data": config["data"] | {"train": 8, "test": 2}}
    parts = build(config | small)
    net, stream = parts.load()
    Loop(parts.learner, net, stream, parts.train, parts.seed).check()


SECTIONS = ("data", "stream", "net", "train", "memory")


def _concerns(word, terms):
    section = word.partition(".")[0]
    return section not in ("rrr", "evidence", "logits", "activations") or section in terms


def test_a_wrong_command_would_be_found():
    for words in (["runn", "glyphs", "er"], ["run", "glyphs", "er", "--sed", "3"]):
        with pytest.raises(cyclopts.CycloptsError):
            test_commands_are_what_the_command_line_takes(words)
    for words in (["run", "glyphs", "err"], ["run", "glyphs", "er", "train.epoch=2"]):
        with pytest.raises(UserError):
            test_commands_are_what_the_command_line_takes(words)


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile(page):
    if page.name != "api.md":
        for block in blocks_of(page):
            compile(block, str(page), "exec")


@pytest.mark.parametrize(
    ("page", "number"), [(page, i) for page, numbers in RUN.items() for i in numbers]
)
def test_python_blocks_run(page, number, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(blocks_of(ROOT / "docs" / page)[number])
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    if page == "paper-and-code.md":
        assert "skipped:" in done.stdout and "gradient of the weights: None" in done.stdout
    if page == "your-explainer.md" and number == 1:
        assert float(re.search(r"tensor\(([\d.e+-]+)", done.stdout).group(1)) < 1e-5


@pytest.mark.filterwarnings("ignore")  # Avalanche's own
def test_the_avalanche_page_runs(tmp_path):
    if importlib.util.find_spec("avalanche") is None:
        pytest.skip("avalanche-lib is not installed")
    script = tmp_path / "block.py"
    script.write_text(blocks_of(ROOT / "docs" / "avalanche.md")[0])
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "PointingGame_Stream" in done.stdout


def test_the_notebook_runs(tmp_path, monkeypatch):
    """Its code cells one after the other, as a kernel would; the last expression is not shown."""
    notebook = json.loads((ROOT / "examples" / "start.ipynb").read_text("utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 5
    monkeypatch.chdir(tmp_path)
    place: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        exec(compile(cell, "start.ipynb", "exec"), place)
    assert all(not c.get("outputs") for c in notebook["cells"])  # nothing that could be stale
    assert (tmp_path / "runs" / "notebook" / "result.json").exists()


def test_the_api_page_is_what_the_docstrings_say():
    spec = importlib.util.spec_from_file_location("api", ROOT / "docs" / "api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert module.page() == written, "type make docs"


def test_the_api_page_has_every_public_name():
    import rightreasons as rr

    written = (ROOT / "docs" / "api.md").read_text("utf-8")
    for word in rr.__all__:
        assert word == "__version__" or f"### {word}\n" in written, word
