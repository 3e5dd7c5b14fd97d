"""What is installed by `pip install`: sdist and wheel are built and looked into, the wheel is installed and used."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import polyplay
from tests.docs.fresh import build, make_environment

ROOT = Path(__file__).parents[1]
SHARED = "share/doc/polyplay/"
NAMED = re.compile(r"\b(?:docs|bench|examples)/[\w/]+\.(?:md|py)\b")  # a page or an example in the program's texts
SCRIPTS = {"bench/third_party.py"}  # named in comments
DIRTY = "{'--global-option': ['egg_info', '--tag-build=+dirty']}"  # as `make dist` gives them


def members(archive: Path) -> set[str]:
    """The files of a wheel or an sdist, without its folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {*wheel.namelist()}
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def test_the_wheel_holds_every_file_the_command_the_pages_and_the_notices(tmp_path: Path):
    wheel = build(tmp_path)
    assert wheel.name == f"polyplay-{polyplay.__version__}-py3-none-any.whl"
    held = members(wheel)
    about = f"polyplay-{polyplay.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as opened:
        assert "polyplay = polyplay.__main__:main" in opened.read(f"{about}/entry_points.txt").decode()
        metadata = opened.read(f"{about}/METADATA").decode()
    assert f"\nVersion: {polyplay.__version__}\nSummary" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert {f"{about}/licenses/LICENSE", f"{about}/licenses/polyplay/evaluation/SOURCES.md"} <= held
    scores = ("SOURCES.md", "atari_papers.csv", "atari_scores.csv", "dopamine_sticky_final.csv")
    data = {
        "polyplay/py.typed",
        "polyplay/_signatures.pyi",
        "polyplay/envs/rules.toml",
        *(f"polyplay/systems/{name}.toml" for name in ("pages", "tuned")),
        *(f"polyplay/evaluation/{name}" for name in scores),
        *(f"polyplay/cli/page/{name}" for name in ("base.css", "base.js", "system.txt")),
        *(f"polyplay/cli/page/play/{name}" for name in ("index.html", "play.css", "board.js", "play.js")),
        *(f"polyplay/cli/page/watch/{name}" for name in ("index.html", "watch.css", "watch.js")),
    }
    code = {str(p.relative_to(ROOT)) for p in (ROOT / "polyplay").rglob("*.py")}
    assert {name for name in held if name.startswith("polyplay/")} == code | data
    shared = {name.partition(SHARED)[2] for name in held if SHARED in name}
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")} <= shared
    texts = [ROOT / name for name in code | {name for name in data if name.endswith(".toml")}]
    assert {name for text in texts for name in NAMED.findall(text.read_text())} - SCRIPTS <= shared


@pytest.mark.long
def test_the_sdist_holds_what_the_wheel_needs_and_a_dirty_tree_is_in_the_name(tmp_path: Path):
    sdist, wheel = build(tmp_path, "sdist", DIRTY), build(tmp_path, "wheel", DIRTY)
    version = f"{polyplay.__version__}+dirty"
    assert (sdist.name, wheel.name) == (f"polyplay-{version}.tar.gz", f"polyplay-{version}-py3-none-any.whl")
    packed = {name.partition(SHARED)[2] or name for name in members(wheel) if ".dist-info/" not in name}
    assert packed | {"LICENSE", "pyproject.toml"} <= members(sdist)
    assert not [name for name in members(sdist) if name.startswith("tests/")]


def test_the_version_has_one_place_and_the_citation_and_the_changelog_follow():
    assert f"\nversion: {polyplay.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == polyplay.__version__
    assert polyplay.__version__ not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_empty_folder_and_names_itself_where_an_extra_is_missing(tmp_path: Path):
    wheel, here = build(tmp_path), tmp_path / "here"
    here.mkdir()
    python = make_environment(tmp_path / "environment", {"plots"}, wheel)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def polyplay_says(line: str) -> subprocess.CompletedProcess[str]:
        command = [str(python.parent / "polyplay"), *line.split()]
        return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300)

    for line in (
        "train ppo --env CartPole-v1 --steps 20k --run cart",
        "evaluate cart --episodes 2",
        "plot cart --out cart.png",
        "check CartPole-v1",
        "systems",
    ):
        done = polyplay_says(line)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert str(tmp_path / "environment" / SHARED / "docs/systems/index.md") in "".join(done.stdout.split("\n"))
    refused = polyplay_says("check ALE/Pong-v5")
    assert f"pip install '{wheel}[atari]'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
