"""The names that people's own modules import: all are there, described, and enough for the guides and examples."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from docs import generate
from polyplay import extend

ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"^ *(?:from|import) (polyplay[\w.]*)", re.M)
PUBLIC = {"polyplay", "polyplay.extend", "polyplay.games.own_game"}  # the last imports no torch
READ = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "docs" / "start" / "your_network.md"]
READ += [*sorted((ROOT / "examples").glob("*.py")), ROOT / "polyplay" / "cli" / "page" / "system.txt"]


@pytest.mark.parametrize("name", extend.__all__)
def test_a_name_has_a_docstring_and_a_place_in_the_reference(name: str):
    page = (ROOT / "docs" / "reference" / "extend.md").read_text()
    assert f"\n## {name}\n" in page
    found = vars(extend)[name]
    if name not in generate.PLAIN and not hasattr(found, "__metadata__"):
        assert len(inspect.getdoc(found) or "") > 30
    assert "NONE" not in generate.entry(name, found)


def test_names_are_there_once():
    assert len(extend.__all__) == len({*extend.__all__}) < 50


def test_guides_and_examples_import_nothing_private():
    found = {(path.name, module) for path in READ for module in IMPORT.findall(path.read_text())}
    assert not {(name, module) for name, module in found if module not in PUBLIC}
    assert {"sac_from_scratch.md", "own_loss.md", "reinforce.py", "system.txt"} <= {name for name, _ in found}


def test_the_guides_system_has_at_most_a_hundred_lines_of_code():
    page = (ROOT / "docs" / "guides" / "sac_from_scratch.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 100
