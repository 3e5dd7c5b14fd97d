"""The shape of the code is what ARCHITECTURE.md says: layers, torch-free files, one page per system, sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from code_size import measure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "polyplay"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FILES = sorted(PACKAGE.rglob("*.py"))


def rooms() -> list[list[str]]:
    """The rooms in the order of the section "The layers", lines from the bottom of the package up."""
    block = TEXT.split("## The layers")[1].split("```")[1]
    return [line.split() for line in block.strip().splitlines()]


ORDER = {room: i for i, line in enumerate(rooms()) for room in line}
TORCH_FREE = ("core", "envs", "buffers", "games")
TOP = ["__init__", "__main__", "api"]


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imports(path: Path) -> set[str]:
    """Rooms that a file imports from, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{a.name}" for a in node.names}
    return {m.split(".")[1] for m in found if m.startswith("polyplay.")}


def test_the_package_is_fifteen_rooms_and_three_files():
    inside = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert inside == set(ORDER)
    assert len(ORDER) == 15
    assert sorted(p.stem for p in PACKAGE.glob("*.py")) == TOP
    for room in ORDER:
        said = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
        assert said, f"{room} does not say what it is"


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != PACKAGE], ids=name)
def test_no_file_imports_upward(path):
    mine = room_of(path)
    for other in imports(path) - {mine, "__version__"}:
        assert other not in TOP, f"{name(path)} imports {other}, which stands above every room"
        assert ORDER[other] < ORDER[mine], f"{name(path)} imports from {other}, which stands above or beside {mine}"


def test_no_module_of_the_lowest_rooms_loads_torch():
    modules = [name(p).removesuffix("/__init__").replace("/", ".") for p in FILES if p.parts[-1] != "preload.py"]
    lowest = [m for m in modules if m.split(".")[0] in TORCH_FREE]
    assert len(lowest) > 50
    code = "import sys\n" + "".join(f"import polyplay.{m}\nassert 'torch' not in sys.modules, {m!r}\n" for m in lowest)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.parent.name == "systems" and not p.stem.startswith("_")], ids=name
)
def test_every_system_is_one_page_of_wiring(path):
    tree = ast.parse(path.read_text())
    assert 25 <= measure(path)["code"] <= 90, "lines of code of a page"
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    assert [c.name for c in classes] == ["Config"]
    assert len([n for n in classes[0].body if isinstance(n, ast.AnnAssign)]) <= 36
    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert "build" in functions
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.While)], (
        "a loop that acts or learns belongs to the parts"
    )


def test_files_stay_short():
    lengths = {name(p): len(p.read_text().splitlines()) for p in FILES}
    assert not {k: v for k, v in lengths.items() if v > 800}


def test_nothing_pickled_is_ever_read_from_a_file_or_a_socket():
    for path in FILES:
        text = path.read_text()
        assert "torch.load" not in text, path
        assert "pickle.load(" not in text, path
