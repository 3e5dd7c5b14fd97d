"""What the scripts of faults and soaks compute: lines through memory, faults of several lives, what must hold then."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import chaos
import witness

from polyplay.games.toys import Catch


def test_a_line_through_memory():
    samples = [{"seconds": 5.0 * i, "pss": 100.0 + i, "rss": {"main 1": 50.0}} for i in range(100)]
    samples[10]["rss"]["act 9"] = 7.0
    whole, main = chaos.fits(samples, warm=0.2)
    assert whole["process"] == "all (PSS)"
    assert whole["MB/hour"] == pytest.approx(720.0)
    assert whole["MB"] == pytest.approx(120.0)
    assert whole["growth %"] == pytest.approx(100 * 79 / 120, abs=0.01)
    assert not whole["flat"]
    assert (main["process"], main["MB/hour"], main["flat"]) == ("main 1", 0.0, True)


def write(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_faults_of_several_lives(tmp_path):
    one = {"event": 1, "what": "killed", "role": "act", "index": 0, "lost": {"rollouts": 1, "steps": 5}}
    two = {"event": 1, "what": "killed", "role": "learn", "index": 0, "lost": None}
    back = {"event": 1, "what": "back", "role": "act", "index": 0, "seconds": 1.5, "incarnation": 1}
    write(tmp_path / "chaos.jsonl", [{"rules": "kill=act:1"}, one, back, {"rules": "kill=act:1"}, two])
    found = chaos.faults(tmp_path)
    assert [(f["life"], f["role"], f["seconds"]) for f in found] == [(0, "act", 1.5), (1, "learn", None)]
    assert chaos.started(tmp_path) == 2
    assert chaos.last_line(tmp_path / "chaos.jsonl")["role"] == "learn"
    assert chaos.last_line(tmp_path / "nothing") == {}


def test_what_must_hold_after_a_life(tmp_path):
    good = {"update": 1, "loss": 0.5}
    write(tmp_path / "updates.jsonl", [good, {"update": 2, "loss": 0.1}])
    write(tmp_path / "metrics.jsonl", [{"steps": 5, "updates": 1}, {"steps": 9, "updates": 2}])
    (tmp_path / "config.json").write_text('{"system": "impala"}')
    life = chaos.Life({"steps": 4, "updates": 1})
    assert chaos._counted(tmp_path, life) == ["there is no whole checkpoint to go on from"]
    saved = tmp_path / "checkpoints" / "000000000001"
    saved.mkdir(parents=True)
    manifest = {"schema": 1, "update": 1, "counters": {"steps": 5, "updates": 1}, "files": {}}
    (saved / "manifest.json").write_text(json.dumps(manifest))
    assert chaos._counted(tmp_path, life) == []
    write(tmp_path / "updates.jsonl", [good, good, {"update": 2, "loss": None}])
    write(tmp_path / "metrics.jsonl", [{"steps": 5, "updates": 2}, {"steps": 3, "updates": 2}])
    life.base = {"steps": 6, "updates": 1}
    assert chaos._counted(tmp_path, life) == [
        "metrics.jsonl: steps go back",
        "the newest checkpoint has 5 steps, the one before had 6",
        "updates.jsonl: an update is there twice",
        "updates.jsonl: a loss is not finite",
    ]
    (tmp_path / "config.json").write_text('{"system": "gorila"}')
    assert "updates.jsonl: an update is there twice" not in chaos._counted(tmp_path, life), "its count is all learners'"
    write(tmp_path / "updates.jsonl", [{"update": 2, "loss": 0.1}, good])
    assert "updates.jsonl: an update is there twice" in chaos._counted(tmp_path, life)


def test_the_witness_knows_the_game_s_boards_from_torn_ones():
    game, draw = Catch(), np.random.default_rng(0)
    s = game.reset(lambda: draw.random(64), 64)
    for _ in range(9):
        assert witness.whole(torch.from_numpy(game.see(s))).all()
        s = game.step(s, draw.integers(0, 3, 64), lambda: draw.random(64))[0]
    last = game.see(s)
    assert witness.whole(torch.from_numpy(last)).all()
    s = game.reset(lambda: draw.random(64), 64)
    mixed = np.where(np.arange(50) < 25, game.see(s), 0).astype(np.float32)
    assert witness.whole(torch.from_numpy(mixed)).sum() == 0, "half a board, the paddle is missing"
    assert witness.whole(torch.zeros(2, 50)).all()
    assert not witness.whole(torch.full((1, 50), 0.5)).any()
