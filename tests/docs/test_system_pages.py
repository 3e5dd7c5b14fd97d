"""The pages of systems: all have the same sections, and what they name as evidence exists."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from polyplay import systems
from polyplay.runs.options import RunOptions

ROOT = Path(__file__).parents[2]
SECTIONS = (
    "The figure",
    "The loss",
    "Train it",
    "What differs from the paper",
    "What was verified",
    "Options",
    "Sources",
)


def text(name: str) -> str:
    return (ROOT / "docs" / "systems" / f"{name}.md").read_text()


def sections(name: str) -> dict[str, str]:
    """Return the text of each section of a page; that before the first one is `idea`."""
    begin, *parts = re.split(r"^## (.+)$", text(name), flags=re.M)
    return {"idea": begin.partition("\n")[2].strip(), **dict(zip(parts[::2], parts[1::2], strict=True))}


@cache
def known_tests() -> frozenset[str]:
    """The names of all tests, and of their files without a folder."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    names = [name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text())]
    return frozenset([*names, *(file.name for file in files)])


@pytest.mark.parametrize("name", systems.names())
def test_a_page_has_the_form(name: str) -> None:
    parts = sections(name)
    assert list(parts) == ["idea", *SECTIONS], f"docs/systems/{name}.md: write exactly these sections, in this order"
    ideas = re.findall(r"[^.!?]+[.!?](?=\s|$)", parts["idea"].replace("et al.", "et al"))
    assert len(ideas) == 3, f"docs/systems/{name}.md: the idea in three sentences, not {len(ideas)}"
    assert "```text" in parts["The figure"], f"docs/systems/{name}.md: The figure: draw it in a text block"
    formula = "$$" in parts["The loss"] or name in OTHER_LOSS
    assert formula, f"docs/systems/{name}.md: The loss: write it as a formula"
    train = re.search(rf"```sh\n.*?polyplay train {name} ", parts["Train it"], re.S)
    assert train, f"docs/systems/{name}.md: Train it: a command that trains {name}"
    assert "](../" in parts["Train it"], f"docs/systems/{name}.md: Train it: link the results"
    assert "![" in parts["Train it"], f"docs/systems/{name}.md: Train it: show the curve"
    for kind in ("fields", "presets"):
        there = f"<!-- generated: {kind} {name} -->" in parts["Options"]
        assert there or name == "pbt", f"docs/systems/{name}.md: Options: the generated {kind}"


def test_differences_and_evidence_are_tables_with_rows() -> None:
    for name in systems.names():
        for head in ("What differs from the paper", "What was verified"):
            rows = re.findall(r"^\|(?! *-)[^\n]+\|$", sections(name)[head], re.M)
            assert len(rows) >= 3, f"docs/systems/{name}.md: {head}: a head and at least two rows"


def test_the_evidence_exists() -> None:
    gone = []
    for name in systems.names():
        words = re.findall(r"`([\w/.]*test_\w+(?:\.py)?)`", sections(name)["What was verified"])
        assert words, f"{name}: no test is named"
        there = {word: (ROOT / word).exists() if "/" in word else word in known_tests() for word in words}
        gone += [f"docs/systems/{name}.md names {word}, which does not exist" for word in words if not there[word]]
    assert not gone, "\n".join(gone)


OTHER_LOSS = ()  # pages that have the loss of another system
EVALUATE = {"agent", "checkpoint", "protocol"}  # options of `polyplay evaluate` that pages name


def test_the_options_exist() -> None:
    """Options that a page names in its text; its commands run in test_code."""
    for name in systems.names():
        known = {f.name.replace("_", "-") for of in (systems.load(name).Config, RunOptions) for f in fields(of)}
        prose = "".join(text(name).split("```")[::2])
        named = set(re.findall(r"`--(?:no-)?([a-z-]+)", prose))
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


OTHER_NOTATION = re.compile(r"r_t ?\+|r_\{t\+[a-z]\}|(?<![a-z])x_\{?t|(?<!\\hat)\\rho_t ?= ?\\min|\\beta_|\\varrho")


def test_formulas_have_the_notation_of_the_glossary() -> None:
    """A reward comes with the next row, and ρ is not clipped."""
    assert "r_{t+1}" in (ROOT / "docs" / "reference" / "glossary.md").read_text()
    assert OTHER_NOTATION.search(r"\delta_t=r_t+\gamma V(s_{t+1})")
    found = {name: OTHER_NOTATION.findall(sections(name)["The loss"]) for name in systems.names()}
    assert not {name: parts for name, parts in found.items() if parts}


def test_the_answers_to_lag_have_the_defaults() -> None:
    page = (ROOT / "docs" / "start" / "story.md").read_text()
    a3c, a2c, ppo, impala = (systems.load(name).Config() for name in ("a3c", "a2c", "ppo", "impala"))
    wanted = [f"1 lane × {a3c.unroll} steps", f"{a2c.lanes} lanes × {a2c.unroll} steps"]
    wanted += [f"{ppo.lanes * ppo.unroll // ppo.minibatches} of {ppo.lanes} lanes × {ppo.unroll} steps"]
    assert f"| Atari batch | {' | '.join([*wanted, f'{impala.batch} lanes × {impala.unroll} steps'])} |" in page
