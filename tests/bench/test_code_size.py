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
