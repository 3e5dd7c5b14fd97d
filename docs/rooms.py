"""The rooms of the package, drawn from its code: their order, files, lines of code, and what each imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "polyplay"
sys.path.append(str(ROOT / "bench"))

from code_size import measure  # noqa: E402

IMPORTS = re.compile(r"^ *(?:from|import) polyplay(?:\.(\w+)| import ([\w, ]+))", re.MULTILINE)


def layers() -> list[list[str]]:
    """The rooms in order, from ARCHITECTURE.md's "The layers"; those of one layer don't import each other."""
    block = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## The layers")[1].split("```")[1]
    return [layer.replace(",", " ").split() for layer in block.split("·")]


def rooms_imported(text: str) -> set[str]:
    """Rooms of the package that import statements name, within functions too."""
    return {name for found in IMPORTS.findall(text) for name in re.findall(r"\w+", " ".join(found))}


def rows() -> Iterator[list[str]]:
    """A row for each room: name, what it is, its files, lines of code to the nearest hundred, rooms that it imports."""
    order = [room for line in layers() for room in line]
    for room in order:
        files = sorted(p for p in (PACKAGE / room).rglob("*.py") if p.stem != "__init__")
        named = {name for p in files for name in rooms_imported(p.read_text(encoding="utf-8"))}
        code = sum(measure(p)["code"] for p in (PACKAGE / room).rglob("*.py"))
        about = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
        names = [str(p.relative_to(PACKAGE / room).with_suffix("")) for p in files]
        below = [other for other in order if other in named - {room}]
        what = " ".join(about.split("\n\n")[0].split()).removesuffix(" Imports no torch.")
        yield [f"`{room}/`", what, " ".join(names), f"{round(code, -2):,}", " ".join(below) or "–"]
