"""The pages of systems: all have the same sections, and what they name as evidence exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from polyplay import systems

ROOT = Path(__file__).parents[2]
SECTIONS = ("The figure", "The paper's terms", "Fields and presets", "What differs", "What was verified")


def sections(name: str) -> dict[str, str]:
    """The text of each section of a page."""
    parts = re.split(r"^## (.+)$", (ROOT / "docs" / "systems" / f"{name}.md").read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def known_tests() -> frozenset[str]:
    """The names of all tests, and of their files without a folder."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    names = [name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text())]
    return frozenset([*names, *(file.name for file in files)])


@pytest.mark.parametrize("name", systems.names())
def test_every_page_has_the_sections_in_this_order(name: str) -> None:
    assert [head for head in sections(name) if head in SECTIONS] == list(SECTIONS)


@pytest.mark.parametrize("name", systems.names())
def test_differences_and_evidence_are_tables_with_rows(name: str) -> None:
    for head in SECTIONS[-2:]:
        rows = re.findall(r"^\|(?! *-)[^\n]+\|$", sections(name)[head], re.M)
        assert len(rows) >= 3, f"{head}: a head and at least two rows"


@pytest.mark.parametrize("name", systems.names())
def test_the_evidence_exists(name: str) -> None:
    words = re.findall(r"`([\w/.]*test_\w+(?:\.py)?)`", sections(name)["What was verified"])
    assert words or name == "index"
    for word in words:
        there = (ROOT / word).exists() if "/" in word else word in known_tests()
        assert there, f"docs/systems/{name}.md names {word}, which does not exist"
