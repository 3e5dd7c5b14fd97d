"""How large the package, its tests and the benchmarks are, by room: `python bench/code_size.py [--root DIR]`.

A line of code has a token on it that is no comment and no docstring; blank lines are not counted. Counted as `Any` are
the lines of code that use the name, import lines left out. Counted as imports are the lines of import statements,
those within functions too; what stands for type checkers alone is counted with them. Long are functions
over 30 lines. Protocols are among the classes. Counted as asked are calls of `getattr` and `hasattr`. A name crosses
where `from polyplay.ROOM… import NAME` stands in another room: counted once, for the room that it comes from.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

COLUMNS = ("files", "code", "imports", "any", "long", "classes", "protocols", "asked", "cross")
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(nodes: Sequence[ast.AST]) -> set[int]:
    """Lines of docstrings."""
    lines: set[int] = set()
    for node in nodes:
        if isinstance(node, OWNERS) and ast.get_docstring(node, clean=False) is not None:
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def written(text: str, nodes: Sequence[ast.AST]) -> set[int]:
    """Lines with something on them that is no comment: those of strings of several lines are, whatever they hold."""
    lines = text.splitlines()
    found = {i for i, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            inside = range(node.lineno, (node.end_lineno or 0) + 1)
            if any(quotes in lines[i - 1] for i in inside for quotes in ('"""', "'''")):
                found |= set(inside)
    return found


def measure(path: Path) -> Counter[str]:
    """What a file has of everything but names that cross rooms."""
    text = path.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    code = written(text, nodes) - docstrings(nodes)
    imports: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    classes = [n for n in nodes if isinstance(n, ast.ClassDef)]
    called = [n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    return Counter(
        files=1,
        code=len(code),
        imports=len(imports & code),
        any=len({n.lineno for n in nodes if isinstance(n, ast.Name) and n.id == "Any"}),
        long=sum((f.end_lineno or 0) - f.lineno + 1 > 30 for f in functions),
        classes=len(classes),
        protocols=sum(isinstance(base, ast.Name) and base.id == "Protocol" for c in classes for base in c.bases),
        asked=sum(name in ("getattr", "hasattr") for name in called),
    )


def crossing(path: Path, room: str) -> set[tuple[str, str]]:
    """Names that a file of a room imports from other rooms, with these."""
    found = set[tuple[str, str]]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyplay."):
            source = str(node.module).split(".")[1]
            found |= {(source, name.name) for name in node.names if source != room}
    return found


def by_room(folder: Path) -> dict[str, Counter[str]]:
    """Of the Python files below a folder, by the first folder or file in it."""
    rooms: dict[str, Counter[str]] = {}
    names = set[tuple[str, str]]()
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        rooms[room] = rooms.get(room, Counter()) + measure(path)
        names |= crossing(path, room) if folder.name == "polyplay" else set()
    for source, _ in names:
        rooms.get(source, Counter())["cross"] += 1
    return rooms


def everything(root: Path) -> dict[str, dict[str, Counter[str]]]:
    """Package, tests and benchmarks by room, and "all" of each; files that lie in no room are one, "files"."""
    found = {name: by_room(root / name) for name in ("polyplay", "tests", "bench") if (root / name).is_dir()}
    for name, rooms in found.items():
        alone = [room for room in rooms if (root / name / f"{room}.py").is_file()]
        if name != "polyplay":
            rooms["files"] = sum((rooms.pop(room) for room in alone), Counter())
        rooms["all"] = sum(rooms.values(), Counter())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Files, lines of code, imports and uses of Any, by room.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = everything(asked.root)
    if asked.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, rooms in found.items():
        print(f"{name:<14}" + "".join(f"{column:>10}" for column in (*COLUMNS, "share")))
        for room, n in rooms.items():
            share = f"{100 * n['imports'] / max(n['code'], 1):.1f} %"
            print(f"{room:<14}" + "".join(f"{n[column]:>10}" for column in COLUMNS) + f"{share:>10}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
