"""Put the pages of the site together: `python docs/assemble.py build/pages`, which `make docs` calls.

The site has the tree of the repository: README.md is its first page, ARCHITECTURE.md and CONTRIBUTING.md lie beside it
and the rest in docs/ and bench/. So a relative link means the same on the code host and on the site. Every page is
copied, and every file that a page links to.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "bench/**/*.md")
FENCE = re.compile(r"^( *)(```+)(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\](?:\([^)]*\))?)*\]\(([^()\s]+)\)")
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
    """What the headings of a page are called in links, as code hosts and the site make them."""
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


def assemble(out: Path) -> int:
    """Copy all that the site is made from to `out`; the number of files."""
    shutil.rmtree(out, ignore_errors=True)
    files = {*pages()}
    files |= {file for page in pages() for file in linked(page)}
    for file in files:
        to = out / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    return len(files)


if __name__ == "__main__":
    print(f"{assemble(Path(sys.argv[1]).resolve())} files in {sys.argv[1]}")
