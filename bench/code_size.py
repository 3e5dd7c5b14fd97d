"""How large the package, its tests and the benchmarks are, by room: `python bench/code_size.py [--root DIR]`.

A line of code has a token on it that is no comment and no docstring; blank lines are not counted. Counted as `Any` are
the lines of code that use the name, import lines left out. Counted as imports are the lines of import statements,
those within functions too; what stands for type checkers alone is counted with them.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree: ast.Module) -> set[int]:
    """Lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, OWNERS) and ast.get_docstring(node, clean=False) is not None:
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def measure(path: Path) -> Counter[str]:
    """code, imports, files, any and functions over 30 lines of one file."""
    text = path.read_text()
    tree = ast.parse(text)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    imports: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return Counter(
        files=1,
        code=len(code - docstrings(tree)),
        imports=len(imports & code),
        any=len({n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "Any"}),
        long=sum((f.end_lineno or 0) - f.lineno + 1 > 30 for f in functions),
    )


def by_room(folder: Path) -> dict[str, Counter[str]]:
    """Of the Python files below a folder, by the first folder or file in it."""
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        rooms[room] = rooms.get(room, Counter()) + measure(path)
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
        print(f"{name:<14}{'files':>7}{'code':>8}{'imports':>9}{'share':>8}{'Any':>6}{'functions over 30 lines':>26}")
        for room, n in rooms.items():
            share = f"{100 * n['imports'] / max(n['code'], 1):.1f} %"
            row = f"{room:<14}{n['files']:>7}{n['code']:>8}{n['imports']:>9}{share:>8}{n['any']:>6}"
            print(f"{row}{n['long']:>26}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
