"""Put the pages of the site together: `python docs/assemble.py build/pages`, which `make docs` calls.

The site has the tree of the repository: README.md is its first page, ARCHITECTURE.md and CONTRIBUTING.md lie beside it
and the rest in docs/ and bench/. So a relative link means the same on the code host and on the site. Every page is
copied, and every file that a page links to. In a copy, formulas are MathML, which browsers draw without a script, terms
of the glossary show their meaning under the pointer, and pages of bench/ are left out of the search.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import latex2mathml.converter

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "bench/**/*.md")
FENCE = re.compile(r"^( *)(```+)(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\](?:\([^)]*\))?)*\]\(([^()\s]+)\)")
PROTECTED = re.compile(rf"{FENCE.pattern}|`[^`\n]+`", FENCE.flags)  # code, which has no formulas
DISPLAY = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\w$\\])\$([^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])")
TERM = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.MULTILINE)
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
EXPLAINED = (  # terms of the glossary whose meaning a pointer shows on every page
    "all-reduce", "bootstrap", "bundle", "crew", "GAE", "Hogwild", "human-normalized score", "importance weight",
    "IQM", "lane", "lanes", "n-step return", "parameter server", "PopArt", "PUCT", "replica", "replicas", "rollout",
    "rollouts", "shard", "sticky actions", "V-trace",
)  # fmt: skip
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def pages() -> list[Path]:
    """Every page of the site."""
    return sorted({p for pattern in PAGES for p in ROOT.glob(pattern)})


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures, but for those to other hosts; code is left out."""
    text = re.sub(r"`[^`\n]+`", "`code`", FENCE.sub("", text))
    nested = [t for outer in LINK.finditer(text) for t in LINK.findall(outer[0][1:])]
    return [t for t in [*LINK.findall(text), *nested] if not re.match(r"[a-z]+:", t)]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts and the site make them."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return names


def linked(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for target in links(page.read_text()):
        path = (page.parent / target.partition("#")[0]).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def formula(tex: str, display: str) -> str:
    """Return MathML that Markdown leaves alone."""
    made = latex2mathml.converter.convert(tex, display=display)
    made = made.replace("*", "&#42;").replace("_", "&#95;")
    block = display == "block"  # `math` alone begins a block of HTML wherever it begins a line
    return f'<div class="formula">{made}</div>' if block else f"<span>{made}</span>"


def formulas(text: str) -> list[str]:
    """Return the LaTeX of every formula of a page."""
    plain = PROTECTED.sub("", text)
    return [*DISPLAY.findall(plain), *INLINE.findall(DISPLAY.sub("", plain))]


def with_formulas(text: str) -> str:
    """Return a page whose formulas are MathML; code stays as it is."""
    parts, at = [], 0
    for code in [*PROTECTED.finditer(text), None]:
        prose = text[at : code.start() if code else len(text)]
        prose = DISPLAY.sub(lambda m: formula(m[1], "block"), prose)
        parts += [INLINE.sub(lambda m: formula(m[1], "inline"), prose), code[0] if code else ""]
        at = code.end() if code else at
    return "".join(parts)


def abbreviations() -> str:
    """Return terms of the glossary as Markdown's abbreviations."""
    terms = {term: re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for term, text in TERM.findall(GLOSSARY.read_text())}
    found = {term: terms.get(term) or terms.get(term.removesuffix("s")) for term in EXPLAINED}
    return "\n" + "".join(f"*[{term}]: {text.replace('`', '')}\n" for term, text in found.items() if text)


def copied(page: Path) -> str:
    """Return the text of a page of the site."""
    text = with_formulas(page.read_text())
    if "bench" in page.relative_to(ROOT).parts:
        return HIDDEN + text
    return text if page == GLOSSARY else text + abbreviations()


def assemble(out: Path) -> int:
    """Write all files that the site is made from to `out`. Return their number."""
    shutil.rmtree(out, ignore_errors=True)
    files = {*pages(), *(ROOT / "docs").glob("*.css"), *(ROOT / "docs").glob("*.js")}
    files |= {file for page in pages() for file in linked(page)}
    for file in files:
        to = out / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(copied(file)) if file.suffix == ".md" else shutil.copyfile(file, to)
    return len(files)


if __name__ == "__main__":
    print(f"{assemble(Path(sys.argv[1]).resolve())} files in {sys.argv[1]}")
