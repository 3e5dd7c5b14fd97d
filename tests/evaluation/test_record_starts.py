"""Start states from an agent's own play: labelled, repeatable, and they lead where the play was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyplay.cli import main
from polyplay.core.errors import UserError
from polyplay.envs import atari
from polyplay.evaluation import evaluate, verify
from polyplay.evaluation.evaluate import EvaluateOptions
from tests import made
from tests.evaluation.test_evaluate import short


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.run(
        tmp_path_factory.mktemp("starting") / "run", "ALE/Pong-v5", network="a3c", atari="ga3c", serial=True
    )


def test_starts_are_made_labelled_and_played(pong: Path, tmp_path: Path, monkeypatch, capsys):
    file = tmp_path / "starts.json"
    assert main.main(["starts", str(pong), "--out", str(file), "--number", "3", "--frames", "120"]) == 0
    assert "3 start states of the run's own play, labelled substitute" in capsys.readouterr().out
    found = atari.load_starts(str(file), "pong")
    assert (found.kind, len(found.starts)) == ("substitute", 3)
    assert "no human's: checkpoint 000000000007-steps-140" in found.source
    assert all(s.frames < 120 and s.frames % 4 == 0 and s.ram for s in found.starts)
    assert len({s.seed for s in found.starts}) == 3
    assert file.read_bytes() == verify.record_starts(pong, verify.StartsOptions(number=3, frames=120))
    short(monkeypatch, "human-starts", 160)
    result = evaluate.evaluate(
        pong, EvaluateOptions(episodes=3, protocol="human-starts", starts=str(file))
    )  # raises where a RAM differs
    assert result["label"] == "human-starts (substitute)"
    assert result["starts"]["kind"] == "substitute"
    assert result["episodic_length_mean"] == sum((160 - s.frames) // 4 for s in found.starts) / 3
    assert [f.level for f in verify.verify(pong)] == ["ok"] * 6
    file.write_text(json.dumps({**json.loads(file.read_text()), "source": "somebody"}))
    seen = verify.verify(pong)[4]
    assert (seen.name, seen.level) == ("starts", "failed")
    assert "the digest of its start states is" in seen.seen


def test_a_game_without_screens_has_no_start_states(tmp_path: Path):
    run = made.run(tmp_path / "run", network="mlp")
    with pytest.raises(UserError, match="start states are of Atari games, this run plays toy:catch"):
        verify.record_starts(run, verify.StartsOptions())
