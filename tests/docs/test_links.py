"""Every relative link of the documentation leads somewhere, and the site has every page."""

from __future__ import annotations

import re
from pathlib import Path

from docs import assemble

ROOT = assemble.ROOT
PAGES = [p for p in assemble.pages() if p.parent == ROOT or "docs" in p.parts or p == ROOT / "bench" / "README.md"]
NAV = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
NAMED = re.compile(r"\b(?:docs/[\w/]+|ARCHITECTURE|CONTRIBUTING|CHANGELOG)\.md\b")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_link_and_anchor_resolves():
    wrong = []
    for page in PAGES:
        for target in assemble.links(page.read_text()):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.is_file():
                wrong.append(f"{name(page)}: {target}: no such file (directories can't be shown: link to a page)")
            elif anchor and anchor not in assemble.anchors(there.read_text()):
                wrong.append(f"{name(page)}: {target}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_every_page_that_the_code_names_is_there():
    sources = [*(ROOT / "polyplay").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").glob("*.py")]
    sources += [ROOT / "constraints.txt", ROOT / "pyproject.toml", ROOT / "Makefile"]
    gone = {
        f"{name(source)}: {page}"
        for source in sources
        for page in NAMED.findall(source.read_text())
        if not (ROOT / page).is_file() and source.parent != Path(__file__).parent
    }
    assert not gone, "\n".join(sorted(gone))


def test_the_site_shows_every_page():
    pages = {name(p) for p in PAGES if p.suffix == ".md"} - {"bench/README.md"}
    assert sorted(NAV) == sorted(pages)


def test_short_pages_stay_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 120
    assert len((ROOT / "CHANGELOG.md").read_text().split("<!-- renamed options -->")[0].splitlines()) <= 60


def test_links_are_found_with_pictures_in_them_and_without_code():
    text = "[a](b.md) ![c](d.png) [![e](f.png)](g.md#h)\n```sh\n[x](y)\n```\n`[z](z)` [far](https://host/x)"
    assert sorted(assemble.links(text)) == ["b.md", "d.png", "f.png", "g.md#h"]


def test_anchors_are_those_of_code_hosts():
    text = "# One `two`: three\n## A_b, c\n## A_b, c\n```\n# not this\n```\n### [x](y.md) – λ\n"
    assert assemble.anchors(text) == {"one-two-three", "a_b-c", "a_b-c-1", "x--λ"}


def test_the_site_is_assembled_with_all_that_pages_link_to(tmp_path: Path):
    assert assemble.assemble(tmp_path / "pages") > 30
    assert (tmp_path / "pages" / "README.md").read_text().startswith((ROOT / "README.md").read_text())
    for page in PAGES:
        for path in assemble.linked(page):
            assert (tmp_path / "pages" / path.relative_to(ROOT)).is_file()
