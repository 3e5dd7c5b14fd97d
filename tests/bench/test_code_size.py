"""bench/code_size.py: which lines are code, which are imports, and what rooms have."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

import code_size  # noqa: E402

TEXT = '''"""A docstring
of two lines."""

import json
from pathlib import (
    Path,
)
from typing import Any


class A(Protocol):
    x = getattr(1, "real")


def f(x: Any) -> str:  # a comment
    """Says something."""
    import sys

    # a comment
    return """a string
    of two lines"""
'''


def test_lines_of_code_have_a_token_that_is_no_comment_and_no_docstring(tmp_path: Path):
    (tmp_path / "a.py").write_text(TEXT)
    found = {"files": 1, "code": 11, "imports": 6, "any": 1, "long": 0, "classes": 1, "protocols": 1, "asked": 1}
    assert dict(code_size.measure(tmp_path / "a.py")) == found


def test_a_name_crosses_once_for_the_room_that_it_comes_from(tmp_path: Path):
    for room, text in (
        ("core", "class Field: ..."),
        ("envs", "from polyplay.core.tree import Field, map\nfrom polyplay.envs.pool import Pool"),
        ("nets", "def f():\n    from polyplay.core.tree import Field\n    from polyplay.envs import pool"),
    ):
        (tmp_path / "polyplay" / room).mkdir(parents=True)
        (tmp_path / "polyplay" / room / "a.py").write_text(text)
    rooms = code_size.by_room(tmp_path / "polyplay")
    assert {room: n["cross"] for room, n in rooms.items()} == {"core": 2, "envs": 1, "nets": 0}
