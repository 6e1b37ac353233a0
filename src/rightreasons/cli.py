"""rrr: the command line. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
)

from rightreasons import __version__
from rightreasons.errors import Stopped, UserError, printable
from rightreasons.heap import keep_heap
from rightreasons.launch import process, processes

NO_MEMORY = re.compile("can't allocate memory|out of memory", re.IGNORECASE)  # torch's words
DATA = "Folder of the data sets, each below it as its owners lay it out (default: RRR_DATA)."

app = App(
    name="rrr",
    version=__version__,
    help="Continual learning that remembers the reasons for its decisions.",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)


Data = Annotated[Path | None, Parameter(help=DATA)]
SkipBad = Annotated[
    bool, Parameter(negative="", help="Leave out image files that cannot be read, and count them.")
]


On = Annotated[
    str, Parameter(help="Where runs are made: local, processes of this machine; or ray, a cluster.")
]
Address = Annotated[
    str | None,
    Parameter(help="HOST:PORT of a Ray cluster, or auto (default: one of this machine's own)."),
]
Jobs = Annotated[
    int | None,
    Parameter(help="Runs at a time (default: two; on a cluster as many as it has room for)."),
]


@app.command
def demo(*, out: Path = Path("runs/demo"), seeds: int = 3) -> None:
    """Experience replay alone, with explanation replay and with evidence replay, on glyphs.

    Trains er, er+rrr and er+evidence on the embedded data set glyphs-small, matched, two runs at a
    time, about three minutes on two cores; prints what came out, leaves the runs in a folder and
    writes their page, as rrr report does. Their weights are the defaults, which a study chose on
    four data sets (docs/results/README.md).

    Example: rrr demo

    Parameters
    ----------
    out
        Folder of the runs; runs that are there already are gone on with.
    seeds
        How many seeds.
    """
    from rightreasons.sweep import compare

    # from seed 5 on: the benchmark's settings were chosen while looking at seeds 0 to 4
    compare("glyphs-small", ["er", "er+rrr", "er+evidence"], ["seed=5"], seeds=seeds, out=out)
    print("\nThe weights of rrr and evidence are those that a study chose on four data sets.")
    _write_report([out], None, paper=False, tensorboard=False)


@app.command
def run(
    benchmark: str | None = None,
    method: str | None = None,
    *overrides: str,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    out: Path | None = None,
    seeds: int = 1,
    checkpoint: int = 200,
    profile: bool = False,
    data: Data = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train one method on one benchmark; a folder that holds the run's beginning is gone on with.

    Example: rrr run glyphs-small er+rrr rrr.weight=3 train.epochs=2

    Example: rrr run --from runs/glyphs-small/er+rrr/0@task3 rrr.weight=10

    Parameters
    ----------
    benchmark
        A benchmark's name, such as glyphs-small, or a folder with one folder a class.
    method
        A learner with any terms: er, er+rrr, finetune+evidence, joint, ...
    overrides
        key=value words such as train.epochs=2 rrr.weight=30 memory.size=100 seed=5.
    from_
        Branch a run after a task: RUN@task3, and key=value words that change from there on.
    out
        Folder of the run (default: runs/BENCHMARK/METHOD/SEED; of a branch: beside its run).
    seeds
        Run so many seeds one after the other, from `seed` on.
    checkpoint
        Steps between two checkpoints inside a task: so many are lost, at most, if all goes wrong.
    profile
        Say at the end where the time went.
    """
    from rightreasons.sweep import run_branch, run_seeds
    from rightreasons.timing import profiled

    _place(data)
    given = [word for word in (benchmark, method, *overrides) if word is not None]
    words = _words(given, skip_bad)
    if from_ is not None:
        named = [word for word in words if "=" not in word]
        if named or seeds != 1:
            what = repr(named[0]) if named else "--seeds"
            raise UserError(
                f"{what} goes with a run of its own; --from has benchmark, method and seed of its "
                "run, type key=value words alone"
            )
        train = partial(run_branch, from_, words, out, checkpoint)
    elif len(given) < 2:
        raise UserError(
            f"rrr run has {len(given)} of two names; type for example rrr run glyphs-small er+rrr"
        )
    else:
        train = partial(run_seeds, words[0], words[1], words[2:], out, seeds, checkpoint)
    if not profile:
        train()
        return
    with profiled() as clock:
        train()
    if not process():
        print(clock.words())


@app.command
def compare(
    benchmark: str,
    methods: str,
    *overrides: str,
    seeds: int = 5,
    out: Path | None = None,
    table: Path | None = None,
    share: bool = True,
    checkpoint: int = 200,
    on: On = "local",
    address: Address = None,
    jobs: Jobs = None,
    data: Data = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train several methods on one benchmark, matched, two runs at a time with one thread each.

    Runs of one seed share classes, batches, initial weights where the net is the same, and
    remembered images where the choice is random; the table shows every seed, and the paired
    differences with their t intervals.

    Example: rrr compare glyphs-small er,er+rrr,er+evidence --seeds 5

    Parameters
    ----------
    benchmark
        A benchmark's name, or a folder with one folder a class.
    methods
        Methods with commas between them.
    overrides
        key=value words for all methods; those of a term go to the methods that carry it.
    seeds
        How many seeds, from `seed` on.
    out
        Folder of the runs (default: runs/BENCHMARK).
    table
        Also write the tables to this file, as Markdown.
    share
        Train the first task of each learner and seed once for all its terms.
    checkpoint
        Steps between two checkpoints inside a task.
    """
    from rightreasons import sweep

    _place(data)
    words = _words(overrides, skip_bad)
    where = sweep.Where(on, jobs, address)
    sweep.compare(benchmark, methods.split(","), words, seeds, out, share, table, checkpoint, where)


@app.command(name="sweep")
def sweep_(
    benchmark: str,
    method: str,
    *overrides: str,
    seeds: int = 3,
    out: Path | None = None,
    checkpoint: int = 200,
    on: On = "local",
    address: Address = None,
    jobs: Jobs = None,
    data: Data = None,
    skip_bad: SkipBad = False,
) -> None:
    """Try every combination of some values, and choose the best on a validation split.

    A fifth of the train images (or stream.validation=SHARE) trains nothing and is tested on
    instead of the test images, which a sweep never looks at. The highest average accuracy as the
    mean over seeds wins, of equal ones the first.

    Example: rrr sweep glyphs-small er+rrr rrr.weight=1,10,100 train.lr=1e-3,3e-3 --seeds 3

    Parameters
    ----------
    benchmark
        A benchmark's name, or a folder with one folder a class.
    method
        A learner with any terms.
    overrides
        key=value words; those with several values, commas between them, make the grid.
    seeds
        How many seeds of every try, from `seed` on.
    out
        Folder of the runs (default: runs/sweep/BENCHMARK).
    checkpoint
        Steps between two checkpoints inside a task.
    """
    from rightreasons import sweep

    _place(data)
    words = _words(overrides, skip_bad)
    where = sweep.Where(on, jobs, address)
    sweep.choose_in_grid(benchmark, method, words, seeds, out, checkpoint, where)


@app.command
def study(
    name: str = "reasons",
    *,
    only: str = "",
    out: Path = Path("runs/study"),
    records: Path = Path("docs/results/records"),
    jobs: int = 2,
    plan: Annotated[bool, Parameter(negative="")] = False,
    report: Annotated[bool, Parameter(negative="")] = False,
    keep: Annotated[bool, Parameter(negative="")] = False,
    data: Data = None,
    weights: Path | None = None,
) -> None:
    """Fill a grid of matched runs, a small record each; then its tables and page, from records.

    Runs that have a record are skipped, so a grid can be filled bit by bit and on several machines:
    the same command goes on. First it tunes, by one rule for all sides, then it runs the rows.

    Example: rrr study --plan

    Example: rrr study --only tuning --data datasets --weights weights

    Parameters
    ----------
    name
        A study that ships, or a YAML file of one.
    only
        Parts, with commas between them; tuning: what must be tuned for all parts.
    out
        Folder of the runs; of a finished one the checkpoints are removed.
    records
        Folder of the records; beside it are tuned.json, what was chosen, and README.md, the page
        (of another study than reasons: tuned-NAME.json and NAME.md).
    jobs
        How many runs at a time, with one thread each.
    plan
        Print how many runs and hours are left, and end.
    report
        Write the page from the records, and end.
    keep
        Keep the checkpoints of finished runs.
    weights
        Folder of the files that net.weights names (default: RRR_WEIGHTS, then the data's).
    """
    from rightreasons.study.drive import Folders, run_study

    _place(data)
    if weights is not None:
        if not weights.is_dir():
            raise UserError(f"--weights {weights} is not a folder; pass the one with the files")
        os.environ["RRR_WEIGHTS"] = str(weights.absolute())
    parts = [word for word in only.split(",") if word]
    folders = Folders(out, records)
    run_study(name, parts, folders, jobs, plan=plan, report=report, keep=keep)


@app.command
def predict(run: Path, images: list[Path], *, pictures: Path | None = None, top: int = 3) -> None:
    """Classify images with a finished run, and say where the model looked.

    Example: rrr predict runs/glyphs-small/er+evidence/0 photo.png --pictures looks

    Parameters
    ----------
    run
        The folder of a finished run.
    images
        Image files.
    pictures
        A folder for one picture an image, the map laid over it and its peak marked.
    top
        How many classes to name.
    """
    from rightreasons.use import show_predictions

    show_predictions(run, images, pictures, top)


@app.command
def explain(
    run: Path,
    images: list[Path],
    *,
    explainers: str = "gradcam,backprop,smoothgrad,guided",
    tasks: str = "last",
    of: str | None = None,
    target: str = "last_block",
    out: Path = Path("explain.png"),
) -> None:
    """Draw where a finished run looks: maps of several explainers over the images, as one picture.

    Example: rrr explain runs/glyphs-small/er+rrr/0 photo.png --tasks all --out looks.png

    Parameters
    ----------
    run
        The folder of a finished run.
    images
        Image files.
    explainers
        Explainers with commas between them, or all; `rrr list` names them.
    tasks
        last, all (a row for every task's checkpoint), or the number of a task.
    of
        The class that is explained (default: the predicted one).
    target
        The layer of Grad-CAM: last_block, paper, or a layer's name.
    out
        The picture.
    """
    from rightreasons.explainers import explainer_names
    from rightreasons.use import explain_images

    names = [word.strip() for word in explainers.split(",")]
    names = explainer_names() if names == ["all"] else names
    explain_images(run, images, names, tasks, of, target, out)


@app.command
def extend(
    run: Path, folder: Path, *changes: str, out: Path | None = None, skip_bad: SkipBad = False
) -> None:
    """Learn new class folders as the next task of a finished run, from its weights and memory.

    Example: rrr extend runs/birds/er+evidence/0 new-birds

    Example: rrr extend runs/birds/er+evidence/0 new-birds train.epochs=20

    Parameters
    ----------
    run
        The folder of a finished run; it stays as it is.
    folder
        One folder a class, or train/CLASS and val/CLASS.
    changes
        key=value words, such as train.epochs=20; all else is as in the run.
    out
        Folder of the longer run (default: RUN+K, K its number of tasks).
    """
    from rightreasons.use import extend_run

    extend_run(run, folder, changes, out, skip_bad)


@app.command
def export(run: Path, *, out: Path | None = None, onnx: bool = False) -> None:
    """Write a finished run's net for use without this library: weights, a card, a program.

    Example: rrr export runs/glyphs-small/er+evidence/0

    Parameters
    ----------
    run
        The folder of a finished run.
    out
        Folder of the files (default: RUN/export).
    onnx
        Also write ONNX, and measure how far its answers are from the run's own.
    """
    from rightreasons.exports import show_export

    show_export(run, out, onnx)


@app.command
def report(
    *runs: Path,
    out: Path | None = None,
    paper: bool = False,
    follow: bool = False,
    tensorboard: bool = False,
) -> None:
    """Write one page of all runs below a folder: curves, maps over tasks, pointing game, costs.

    The page needs no network; tables (Markdown, LaTeX, CSV) and figures (SVG, PNG) lie beside it.

    Example: rrr report runs

    Parameters
    ----------
    runs
        Folders that rrr run or rrr compare wrote, such as runs or runs/glyphs-small.
    out
        The page, such as report.html, or a folder for it (default: RUNS/report).
    paper
        Set the paper's numbers beside ours, with what is different in the protocol.
    follow
        Say how far the runs are and write the page anew as tasks end, until all have ended.
    tensorboard
        Also write TensorBoard events, in the folder tensorboard beside the page.
    """
    if follow:
        from rightreasons.reports.write import follow as follow_runs

        follow_runs(runs, out, paper, tensorboard)
    else:
        _write_report(list(runs), out, paper, tensorboard)


def _write_report(runs: list[Path], out: Path | None, paper: bool, tensorboard: bool) -> None:
    from rightreasons.reports import charts, write

    target = write.report(runs, out, paper=paper, tensorboard=tensorboard)
    if not charts.available():
        print(charts.MISSING)
    print(f"page: {target}; tables and figures beside it; open it with a browser")


@app.command
def bench(*only: str, pairs: int = 200, out: Path | None = None) -> None:
    """Measure how fast this is on this machine: ratios, as a Markdown table.

    One thread, CPU time, pairs in turns in one process, ratio of medians with its 95 % interval.
    All of it takes two hours; a section some minutes.

    Example: rrr bench hand tasks --pairs 50

    Parameters
    ----------
    only
        Sections: terms, hand, avalanche, tasks, maps, herding, fisher, optimiser, learners,
        evaluation, growth, memory, start (default: all).
    pairs
        Alternated pairs of each ratio; fewer give a wider interval.
    out
        Also write the table to this file, section by section; those that it has are not measured
        again, so that a table can be gone on with.
    """
    from rightreasons.bench import bench as measure

    measure(list(only), pairs, out)


@app.command(name="list")
def list_(*, paper: bool = False) -> None:
    """Name benchmarks, learners, terms, explainers, nets and data sources.

    Example: rrr list

    Parameters
    ----------
    paper
        Instead print the paper's tables, each row with the command that trains it.
    """
    if paper:
        from rightreasons.paper import listing as paper_listing

        print("\n".join(paper_listing()))
        return
    from rightreasons.show import listing

    listing()


@app.command
def show(name: str) -> None:
    """Show the fields and defaults of a benchmark, method, learner, term, data source or section.

    Example: rrr show rrr

    Parameters
    ----------
    name
        Any name that `rrr list` prints, a method such as er+rrr, or train or memory.
    """
    from rightreasons.show import show as show_name

    show_name(name)


data_app = App(name="data", help="Look at data sets.")
app.command(data_app)


@data_app.command(name="check")
def data_check(path: Path, *, classes: str = "") -> None:
    """Is a data set complete and readable? Counts, what is missing, and what to do about it.

    Example: rrr data check datasets

    Parameters
    ----------
    path
        A data set's folder, class folders, or the folder above several data sets.
    classes
        A file with one class name a line: read only these of the class folders; imagenet100.txt,
        the list of imagenet100-10, ships.
    """
    from rightreasons.data.check import check

    report = check(str(path), classes)
    print("\n".join(printable(line) for line in report.lines))
    if not report.passed:
        sys.exit(2)


def _words(overrides: Sequence[str], skip_bad: bool) -> list[str]:
    return [*overrides, *(["data.skip_bad=true"] if skip_bad else [])]


def _place(data: Path | None) -> None:
    """Let the sources find their folders below ``--data``; workers inherit it."""
    if data is not None:
        if not data.is_dir():
            raise UserError(f"--data {data} is not a folder; pass the folder above the data sets")
        os.environ["RRR_DATA"] = str(data.absolute())


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the place in the source; of one process, if there are more."""
    if process():
        return
    print(f"rrr: {printable(str(message))}", file=sys.stderr)


def _terminate(number: int, frame: Any) -> None:
    """SIGTERM ends a command as Ctrl-C does; while a run trains, `signals` has it."""
    raise Stopped(number)


def main() -> None:
    """The console script: a sentence and exit code 2 for bad input, no traceback."""
    warnings.showwarning = _warn
    keep_heap()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _check_launch(sys.argv[1:])
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _end(2, _misread(error))
    except UserError as error:
        _end(2, str(error))
    except OSError as error:  # a full disk, a folder that cannot be written
        if isinstance(error, BrokenPipeError) and not _again():  # as in rrr list | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)  # as if SIGPIPE had ended it
        why = f"{error.filename or 'a file'}: {error.strerror or error}"
        again = _again() if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else ""
        _end(1, f"{why}; nothing that was saved is lost{again}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
            raise
        _end(1, f"there is not enough memory; nothing that was saved is lost{_again()}")
    except KeyboardInterrupt as error:
        number = error.signal if isinstance(error, Stopped) else int(signal.SIGINT)
        _end(128 + number, f"{str(error) or 'stopped'}{_again()}")


def _check_launch(words: Sequence[str]) -> None:
    """Refuse to do in several processes what is not one run."""
    if processes() > 1 and words[:1] != ["run"]:
        raise UserError(
            f"torchrun has started {processes()} processes, and they share one run: type "
            f"torchrun --nproc-per-node {processes()} -m rightreasons run BENCHMARK METHOD, and "
            f"{shlex.join(['rrr', *words[:1]])} without torchrun"
        )


def _misread(error: CycloptsError) -> str:
    """Words that are not a command's, in one sentence that names the page with its words."""
    command = " ".join(["rrr", *(error.command_chain or ())])
    sentence = " ".join(str(error).split())
    option = error.argument.name if error.argument is not None else ""
    if isinstance(error, CoercionError) and error.token is not None and error.target_type is int:
        sentence = f"{option} is {error.token.value!r}, expected a whole number"
    elif isinstance(error, MissingArgumentError):
        typed = any(word.partition("=")[0] == option for word in sys.argv)
        word = f"a value after {option}" if typed else option.lstrip("-").upper()  # as in the help
        sentence = f"{command} needs {word}"
    elif isinstance(error, UnknownOptionError) and (key := _setting(error.token)):
        sentence = f"--{key} is no option, settings are words: type {key}=VALUE"
    elif type(error) is UnusedCliTokensError:
        sentence = f"{command} does not take {shlex.join(error.unused_tokens or ())}"
    if not sentence.endswith("..."):
        sentence = sentence.removesuffix(".")
    end = "" if sentence.endswith("?") else ";"
    shows = "its words" if error.command_chain else "all"
    return f"{sentence}{end} {command} --help shows {shows}"


def _setting(token: Token) -> str:
    """The key that an option looks like, or nothing."""
    name = (token.keyword or token.value).lstrip("-").partition("=")[0]
    return name if name == "seed" or "." in name else ""


def _again() -> str:
    """The command to go on with, if it is one that goes on."""
    if sys.argv[1:2] and sys.argv[1] in ("run", "compare", "sweep", "demo", "extend", "study"):
        several = ["torchrun", "--nproc-per-node", str(processes()), "-m", "rightreasons"]
        command = ["rrr"] if processes() == 1 else several
        return f"; go on with: {shlex.join([*command, *sys.argv[1:]])}"
    return ""


def _end(code: int, sentence: str) -> NoReturn:
    print(f"rrr: {_who()}{printable(sentence)}", file=sys.stderr)
    sys.exit(code)


def _who() -> str:
    try:
        return f"process {process() + 1}: " if process() else ""
    except UserError:  # that is the sentence
        return ""
