"""How large the package is: lines of code and uses of `Any`, by room: `python bench/code_size.py [--root DIR]`.

A line of code has a token on it that is no comment and no docstring; blank lines are not counted. Counted as `Any` are
the lines of code that use the name, import lines left out.
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
    """code, files, any and functions over 30 lines of one file."""
    text = path.read_text()
    tree = ast.parse(text)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return Counter(
        files=1,
        code=len(code - docstrings(tree)),
        any=len({n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "Any"}),
        long=sum((f.end_lineno or 0) - f.lineno + 1 > 30 for f in functions),
    )


def by_room(package: Path) -> dict[str, Counter[str]]:
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        rooms[room] = rooms.get(room, Counter()) + measure(path)
    return rooms


def main() -> int:
    parser = argparse.ArgumentParser(description="Lines of code and uses of Any, by room.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rooms = by_room(asked.root / "polyplay")
    rooms["all"] = sum(rooms.values(), Counter())
    if asked.json:
        print(json.dumps({room: dict(found) for room, found in rooms.items()}, indent=1))
        return 0
    print(f"{'room':<14}{'files':>7}{'code':>8}{'Any':>6}{'functions over 30 lines':>26}")
    for room, found in rooms.items():
        print(f"{room:<14}{found['files']:>7}{found['code']:>8}{found['any']:>6}{found['long']:>26}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
