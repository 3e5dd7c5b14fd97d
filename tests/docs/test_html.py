"""Every page becomes sound HTML: whole tables, no accidental lists, formulas that browsers can draw, few words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import markdown
import pytest

from docs import assemble
from docs.generate import BLOCK

ROOT = assemble.ROOT
PAGES = [p for p in assemble.pages() if p.parent == ROOT or "docs" in p.parts]
EXTENSIONS = ["abbr", "attr_list", "fenced_code", "tables"]
WORDS = 50_000  # of docs/, without generated parts
MARKER = re.compile(r" *(?:[-*+]|\d+[.)]) ")
ROW = re.compile(r"^ *\|.*\| *$")


def without_code(text: str) -> str:
    """A page whose code blocks and formulas are empty lines, so that line numbers stay."""
    for block in (assemble.FENCE, assemble.DISPLAY):
        text = block.sub(lambda m: "\n" * m[0].count("\n"), text)
    return text


def broken_tables(text: str) -> list[str]:
    """Return the rows that have other columns than the head of their table."""
    found, columns = list[str](), 0
    for number, line in enumerate(without_code(text).splitlines(), 1):
        cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) - 1 if ROW.match(line) else 0
        columns = columns or cells if cells else 0
        if cells != columns:
            found.append(f"{number}: {cells} columns in a table of {columns}; write \\| for a bar in a cell")
    return found


def broken_lists(text: str) -> list[str]:
    """Return the lines that begin with a list's marker within a paragraph."""
    found, before = list[str](), ""
    for number, line in enumerate(without_code(text).splitlines(), 1):
        inside = before.strip() and not MARKER.match(before) and not before.startswith((" ", "<!--", "#"))
        if MARKER.match(line) and inside:
            found.append(f"{number}: a list within a paragraph: put a blank line before it, or another word first")
        before = line
    return found


def broken_html(text: str) -> list[str]:
    """Return what Markdown did not understand."""
    made = markdown.markdown(assemble.with_formulas(text), extensions=EXTENSIONS)
    plain = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", made, flags=re.S)
    wrong = {
        r"<p>\|": "a table as text",
        r"\]\(": "a link as text",
        r"\*\*": "bold as text",
        r"\$": "a formula as text",
    }
    return [f"{what}: {m[0]}" for pattern, what in wrong.items() for m in re.finditer(rf"{pattern}.{{0,40}}", plain)]


def broken_formulas(text: str) -> list[str]:
    """Return the formulas in which a command was not understood."""
    made = ((tex, assemble.formula(tex, "block")) for tex in assemble.formulas(text))
    return [f"{tex}: not understood" for tex, html in made if "\\" in re.sub(r"&#x0*5C;", "\\\\", html)]


CHECKS = (broken_tables, broken_lists, broken_html, broken_formulas)
SEEDED = {
    "broken_tables": "| a | b |\n|---|---|\n| 1 |\n",
    "broken_lists": "It was published in\n2016. It was new.\n",
    "broken_html": "text\n| a | b |\n\n| c\n",
    "broken_formulas": "$$\n\\nosuchcommand{x}\n$$\n",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_is_sound(page: Path) -> None:
    text = page.read_text()
    found = [f"{page.relative_to(ROOT)}: {fault}" for check in CHECKS for fault in check(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_seeded_fault_is_found(check) -> None:
    assert check(SEEDED[check.__name__])
    assert not check("# Title\n\nA sentence.\n\n- a\n- b\n\n| a | b |\n|---|---|\n| `x|y` | $z_1$ |\n")


@cache
def words() -> dict[str, int]:
    return {str(p.relative_to(ROOT)): len(BLOCK.sub("", p.read_text()).split()) for p in PAGES if "docs" in p.parts}


def test_the_pages_have_few_words() -> None:
    most = sorted(words().items(), key=lambda item: -item[1])[:5]
    assert sum(words().values()) <= WORDS, f"{sum(words().values())} words; most: {most}"
