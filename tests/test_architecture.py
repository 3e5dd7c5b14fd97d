"""The shape of the code is what ARCHITECTURE.md says: layers, torch-free files, one page per system, sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "polyplay"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FILES = sorted(PACKAGE.rglob("*.py"))


def layers() -> list[list[str]]:
    """The numbered lines of the section "The layers"."""
    block = TEXT.split("## The layers")[1].split("```")[1]
    lines: list[list[str]] = []
    for line in block.strip().splitlines():
        number, *names = line.split()
        if number.isdigit():
            lines.append(names)
        else:  # a line goes on
            lines[-1] += [number, *names]
    return lines


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def place(module: str) -> tuple[int, int]:
    """(line, column) of a module in the table; within a folder's line the column says nothing."""
    for i, line in enumerate(layers()):
        for j, pattern in enumerate(line):
            if fnmatch(module, pattern) or (pattern.endswith("/*") and module.startswith(pattern[:-1])):
                return i, j
    raise AssertionError(f"{module} stands in no layer of ARCHITECTURE.md")


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    inside = {m.removeprefix("polyplay.").replace(".", "/") for m in found if m.startswith("polyplay.")}
    known = {name(p) for p in FILES}
    return {m if m in known else f"{m}/__init__" for m in inside if m in known or f"{m}/__init__" in known}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_imports_upward(path):
    mine = place(name(path))
    for other in imports(path) - {name(path)}:
        theirs = place(other)
        same_folder = theirs[0] == mine[0] and "/" in name(path)
        assert theirs < mine or same_folder, f"{name(path)} imports {other}, which stands above or beside it"


def test_these_import_no_torch():
    listed = re.search(r"These import no torch: (.*?)\. So", TEXT, re.S)
    assert listed
    names = [n.strip("` \n") for n in listed[1].split(",")]
    assert {"shared", "tree", "stream", "envs/*"} <= set(names)
    modules = [name(p) for p in FILES if any(fnmatch(name(p), n) for n in names)]
    code = "import sys\n" + "".join(
        f"import polyplay.{m.removesuffix('/__init__').replace('/', '.')}\nassert 'torch' not in sys.modules, {m!r}\n"
        for m in modules
        if not m.endswith("preload")
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "systems" and p.stem != "__init__"], ids=name)
def test_every_system_is_one_page_of_wiring(path):
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 120
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    assert [c.name for c in classes] == ["Config"]
    assert len([n for n in classes[0].body if isinstance(n, ast.AnnAssign)]) <= 25
    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert "build" in functions
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.While)], (
        "a loop that acts or learns belongs to the parts"
    )


def test_files_stay_short():
    lengths = {name(p): len(p.read_text().splitlines()) for p in FILES}
    assert not {k: v for k, v in lengths.items() if v > 450}


def test_nothing_pickled_is_ever_read_from_a_file_or_a_socket():
    for path in FILES:
        text = path.read_text()
        assert "torch.load" not in text, path
        assert "pickle.load(" not in text, path
