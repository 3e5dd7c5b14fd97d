"""The pages of systems: all have the same sections, and what they name as evidence exists."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

from polyplay import systems
from polyplay.runs.options import RunOptions

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


EVALUATE = {"agent", "checkpoint", "protocol"}  # options of `polyplay evaluate` that pages name


def test_the_options_exist() -> None:
    """Options that a page names in its text; its commands run in test_code."""
    for name in systems.names():
        known = {f.name.replace("_", "-") for of in (systems.load(name).Config, RunOptions) for f in fields(of)}
        text = "".join((ROOT / "docs" / "systems" / f"{name}.md").read_text().split("```")[::2])
        named = set(re.findall(r"`--(?:no-)?([a-z-]+)", text))
        assert named <= known | EVALUATE, f"docs/systems/{name}.md: {sorted(named - known)}"


def test_the_code_that_pages_name_exists() -> None:
    gone = []
    for page in [ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]:
        for file, symbols in re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", page.read_text()):
            path = next((p for p in (ROOT / "polyplay" / file, ROOT / file) if p.exists()), None)
            code = path.read_text() if path else ""
            names = re.findall(r"`(\w+)`", symbols)
            gone += [
                f"{page}: {file}: {n}" for n in names if not re.search(rf"(?m)^ *(def |class )?{n}\b *[(:=]", code)
            ]
    assert not gone, "\n".join(gone)
