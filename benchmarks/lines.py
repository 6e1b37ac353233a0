"""How long a learner is: code lines and all lines of its file, beside other libraries' files.

    python benchmarks/lines.py > docs/lines.md

A code line holds something other than blanks, comments and docstrings. Shared parts have their own
rows: in other libraries they are part of each file or of what it derives from.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "rightreasons"
LIBRARIES = ("Mammoth", "Avalanche", "FACIL", "PyCIL", "LibContinual")
PEERS = {  # code / all lines, counted in the same way on the libraries' source
    "ER": ("29 / 67", "71 / 123", "40 / 61", "165 / 193", "-"),
    "EWC": ("59 / 81", "155 / 233", "96 / 147", "229 / 254", "106 / 229"),
    "LwF": ("60 / 82", "216 / 390", "97 / 146", "179 / 205", "67 / 81"),
    "iCaRL": ("159 / 222", "215 / 311", "120 / 191", "178 / 205", "158 / 287"),
    "EEIL": ("-", "-", "115 / 171", "-", "-"),
    "BiC": ("137 / 192", "298 / 484", "206 / 298", "176 / 206", "781 / 896"),
    "base class": ("270 / 528", "779 / 1287", "163 / 214", "322 / 384", "461 / 720"),
}
OURS = {
    "ER": "learners/er.py",
    "EWC": "learners/ewc.py",
    "LwF": "learners/lwf.py",
    "iCaRL": "learners/icarl.py",
    "EEIL": "learners/eeil.py",
    "BiC": "learners/bic.py",
    "base class": "learners/base.py",
    "EWC's Fisher information": "learners/fisher.py",
    "the same layer by layer": "learners/by_layer.py",
    "distillation, shared": "learners/distil.py",
    "memory with herding, shared": "memory.py",
}
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
NOTES = """
Avalanche's ER is a plugin, and its LwF a plugin (10 / 34) beside losses (206 / 356). Our LwF's file
holds LwF.MC too. Others have the Fisher information in the file of EWC: add those rows to ours. The
base class is what the author of a learner derives from; LibContinual's figure is its trainer, which
knows methods by name, and ours does not hold the loop.
"""


def count(source: str) -> tuple[int, int]:
    """Code lines and all lines of a module."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*LAYOUT, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # a string on its own documents what stands before it
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            code.difference_update(range(text.lineno, (text.end_lineno or 0) + 1))
    return len(code), len(source.splitlines())


def table() -> str:
    """The table in Markdown."""
    lines = [
        f"| code / all lines | **rightreasons** | {' | '.join(LIBRARIES)} |",
        "|---" * (2 + len(LIBRARIES)) + "|",
    ]
    for name, file in OURS.items():
        code, total = count((PACKAGE / file).read_text("utf-8"))
        others = PEERS.get(name, ("-",) * len(LIBRARIES))
        lines.append(f"| {name} (`{file}`) | **{code} / {total}** | {' | '.join(others)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    print(f"# Lines of code\n\n`python benchmarks/lines.py` prints this page. {about}\n")
    print(table())
    print(NOTES, end="")
