"""Plain American English: no page, docstring, message or comment has a pattern of english.toml."""

from __future__ import annotations

import io
import re
import token
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs import assemble

ROOT = assemble.ROOT
RULES = tomllib.loads((Path(__file__).parent / "english.toml").read_text())["rule"]
MIDDLE = getattr(token, "FSTRING_MIDDLE", -1)  # Python 3.12's token within an f-string
CODE = re.compile(r"`[^`]*`|\$[^$\n]+\$")
Line = tuple[str, int, str]  # file, line number, text


def prose(page: Path) -> Iterator[Line]:
    """Yield the lines of a Markdown page outside code."""
    fenced, name = False, str(page.relative_to(ROOT))
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield name, number, CODE.sub("`x`", re.sub(r"\]\([^)]*\)", "]", line))


def spoken(file: Path) -> Iterator[Line]:
    """Yield the lines of a Python file's comments, and of its strings that have a space."""
    name = str(file.relative_to(ROOT))
    for found in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        text = found.type in (token.STRING, MIDDLE) and " " in found.string
        if text or found.type == tokenize.COMMENT:
            for i, line in enumerate(found.string.splitlines()):
                yield name, found.start[0] + i, re.sub(r"`[^`]*`", "`x`", line)


@cache
def lines() -> tuple[Line, ...]:
    pages = [p for p in assemble.pages() if p.parent == ROOT or "docs" in p.parts]
    code = [file for folder in ("polyplay", "examples", "docs") for file in (ROOT / folder).rglob("*.py")]
    return (*(line for p in pages for line in prose(p)), *(line for f in sorted(code) for line in spoken(f)))


def hits(rule: dict[str, str], texts: tuple[Line, ...]) -> list[str]:
    """Return file, line, the words found and what to write instead."""
    pattern = re.compile(rule["pattern"])
    found = ((name, number, pattern.search(text)) for name, number, text in texts)
    return [f"{name}:{number}: '{m[0].strip()}': write {rule['write']}" for name, number, m in found if m]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["bad"][:20])
def test_no_text_has_the_pattern(rule: dict[str, str]) -> None:
    found = hits(rule, lines())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["bad"][:20])
def test_a_seeded_fault_is_found(rule: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(f"A page.\n\n{rule['bad']}\n")
    quoted = rule["bad"] if rule["bad"].startswith('"""') else f'"""{rule["bad"]}"""'
    module.write_text(f"x = 1\n{quoted}\n")
    reader = spoken(module) if rule["bad"].startswith('"""') else prose(page)
    (found,) = hits(rule, tuple(reader))
    assert re.match(r"(page\.md:3|module\.py:2): '", found)


def test_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (page := tmp_path / "page.md").write_text("`--inputs center`\n\n```text\nanew\n```\n\n[a](anew.md)\n")
    assert not [hit for rule in RULES for hit in hits(rule, tuple(prose(page)))]
