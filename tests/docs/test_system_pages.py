"""The pages of systems: all have the same sections, and what they name as evidence exists."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

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


def test_every_page_has_the_sections_in_this_order() -> None:
    for name in systems.names():
        assert [head for head in sections(name) if head in SECTIONS] == list(SECTIONS), name


def test_differences_and_evidence_are_tables_with_rows() -> None:
    for name in systems.names():
        for head in SECTIONS[-2:]:
            rows = re.findall(r"^\|(?! *-)[^\n]+\|$", sections(name)[head], re.M)
            assert len(rows) >= 3, f"{name}, {head}: a head and at least two rows"


def test_the_evidence_exists() -> None:
    gone = []
    for name in systems.names():
        words = re.findall(r"`([\w/.]*test_\w+(?:\.py)?)`", sections(name)["What was verified"])
        assert words, f"{name}: no test is named"
        there = {word: (ROOT / word).exists() if "/" in word else word in known_tests() for word in words}
        gone += [f"docs/systems/{name}.md names {word}, which does not exist" for word in words if not there[word]]
    assert not gone, "\n".join(gone)


def test_the_options_exist() -> None:
    """Options that a page names in its text; its commands run in test_code."""
    reference = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    known = set(re.findall(r"--([a-z-]+)", reference))
    known |= {f.name.replace("_", "-") for name in systems.names() for f in fields(systems.load(name).Config)}
    for name in systems.names():
        text = "".join(part for part in (ROOT / "docs" / "systems" / f"{name}.md").read_text().split("```")[::2])
        named = set(re.findall(r"`--(?:no-)?([a-z-]+)", text))
        assert named <= known, f"docs/systems/{name}.md: {sorted(named - known)}"
