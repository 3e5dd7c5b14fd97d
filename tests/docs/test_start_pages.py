"""The pages of docs/start, by their commands as printed: in an empty folder, without a display, in an environment that
has the wheel, the extras that the page names and no others.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import time
from importlib import metadata
from pathlib import Path

import pytest

from docs import assemble
from tests.docs import test_code
from tests.docs.fresh import build, make_environment, packages

START = assemble.ROOT / "docs" / "start"
LIMIT = 300.0  # seconds of the page that promises five minutes: of a core, on a machine that is busy with other things
PATIENCE = 1500.0  # seconds of any command
BRIEFLY = "train a2c --preset quick"  # trains for hours


def extras_on(page: Path) -> set[str]:
    """Those in its sentences about extras, and in its `pip install`."""
    text, known = page.read_text(), test_code.NEEDED.keys()
    sentences = re.findall(r"extras?[^.|]*", test_code.assemble.FENCE.sub("", text)) + re.findall(r"\[[\w,]+\]\"", text)
    return {extra for extra in known if any(re.search(rf"`{extra}`|\b{extra}\b.*\]", s) for s in sentences)}


def is_installed(extra: str) -> bool:
    """Whether the machine that runs the tests has it."""
    try:
        return bool(packages({extra}))
    except metadata.PackageNotFoundError:
        return False


def core_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def walk(page: str, folder: Path) -> Path:
    """Run every command of the page in a folder; the folder."""
    path, there = START / page, folder / "here"
    there.mkdir()
    extras = {extra for extra in extras_on(path) if is_installed(extra)}
    python = make_environment(folder / "environment", extras, build(folder))
    test_code.write_files(path, there)
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "PYTHONPATH", "SDL_VIDEODRIVER")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    for block in test_code.blocks(path):
        for line in test_code.lines(block) if block.kind == "sh" and not block.why else []:
            if (words := test_code.polyplay_words(line)) is None:
                continue
            words += ["--minutes", "0.1"] if " ".join(words) == BRIEFLY else []
            command = [str(python), "-m", "polyplay", *words]
            done = subprocess.run(command, cwd=there, env=environment, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, f"{line}: {done.stderr}"
    return there


def test_an_environment_has_what_its_extras_need_and_no_more():
    plain, filmed = packages(set()), packages({"video"})
    assert {"torch", "gymnasium", "rich"} <= plain
    assert not plain & {"av", "pygame-ce", "matplotlib", "ale-py", "pytest"}
    assert {"av", "pygame-ce"} <= filmed
    assert extras_on(START / "five_minutes.md") == {"video", "plots"}
    assert extras_on(START / "first_run.md") == {"atari", "plots"}
    assert extras_on(START / "install.md") == {"atari"}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_agent_a_video_and_a_plot_in_five_minutes(tmp_path: Path):
    begun, computed = time.monotonic(), core_seconds()
    there = walk("five_minutes.md", tmp_path)
    assert min(time.monotonic() - begun, core_seconds() - computed) < LIMIT
    (score,) = (there / "cart").glob("evaluation-*.json")
    assert json.loads(score.read_text())["episodic_return_mean"] >= 400
    assert list((there / "cart").glob("*.mp4"))
    assert (there / "cart.png").stat().st_size > 10_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", ["install.md", "first_run.md", "your_environment.md", "your_network.md"])
def test_every_command_runs_as_printed(page: str, tmp_path: Path):
    assert list(walk(page, tmp_path).glob("runs/*"))
