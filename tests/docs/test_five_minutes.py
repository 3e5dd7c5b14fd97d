"""docs/start/five_minutes.md, by its commands as printed, in an empty folder."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

import pytest

from docs import assemble

PAGE = assemble.ROOT / "docs" / "start" / "five_minutes.md"
LIMIT = 300.0  # seconds


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_agent_a_video_and_a_plot_in_five_minutes(tmp_path):
    commands = [block.split("```")[0].strip() for block in PAGE.read_text().split("```sh\n")[1:]]
    assert [command.split()[1] for command in commands] == ["train", "evaluate", "plot"]
    begun = time.monotonic()
    for command in commands:
        words = [sys.executable, "-m", "polyplay", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < LIMIT
    (score,) = (tmp_path / "cart").glob("evaluation-*.json")
    assert json.loads(score.read_text())["episodic_return_mean"] >= 400
    assert list((tmp_path / "cart").glob("*.mp4"))
    assert (tmp_path / "cart.png").stat().st_size > 10_000
