"""bench/code_size.py: which lines are code, which are imports, and what rooms have."""

from __future__ import annotations

import json
import subprocess
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


def f(x: Any) -> str:  # a comment
    """Says something."""
    import sys

    # a comment
    return """a string
    of two lines"""
'''


def test_lines_of_code_have_a_token_that_is_no_comment_and_no_docstring(tmp_path: Path):
    (tmp_path / "a.py").write_text(TEXT)
    assert dict(code_size.measure(tmp_path / "a.py")) == {"files": 1, "code": 9, "imports": 6, "any": 1, "long": 0}


def test_rooms_of_package_tests_and_benchmarks_are_summed(tmp_path: Path):
    for place in ("polyplay/core", "polyplay", "tests/core", "tests", "bench"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "a.py").write_text(TEXT)
    words = [sys.executable, str(ROOT / "bench" / "code_size.py"), "--root", str(tmp_path)]
    found = json.loads(subprocess.run([*words, "--json"], capture_output=True, text=True, check=True).stdout)
    assert {name: sorted(rooms) for name, rooms in found.items()} == {
        "polyplay": ["a", "all", "core"],
        "tests": ["all", "core", "files"],
        "bench": ["all", "files"],
    }
    assert found["polyplay"]["all"]["code"] == 18
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "core                1       9        6  66.7 %" in said
