"""A recorded score comes out again, or what is wrong with it is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.core import checkpoint, files
from polyplay.core.errors import UserError
from polyplay.envs import atari
from polyplay.evaluation import evaluate, verify
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.runs import directory, load
from tests import made
from tests.evaluation.test_evaluate import short


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = made.run(tmp_path_factory.mktemp("scored") / "run", network="mlp")
    evaluate.evaluate(run, EvaluateOptions(episodes=20, seed=3, epsilon=0.1))
    return run


@pytest.fixture
def run(scored: Path, tmp_path: Path) -> Path:
    """An evaluation of 20 games, to be changed."""
    return shutil.copytree(scored, tmp_path / "run")


def change(run: Path, **what):
    [path] = run.glob("evaluation-*.json")
    said = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**said, **what}.items() if v is not ...}))


def failed(run: Path) -> tuple[str, str]:
    """The rule that failed, and what it says; nothing after it was looked at."""
    found = verify.verify(run)
    assert [f.name for f in found] == list(verify.RULES)
    [wrong] = [f for f in found if f.level == "failed"]
    levels = [f.level for f in found]
    at = levels.index("failed")
    assert levels == ["ok"] * at + ["failed"] + ["unseen"] * (len(levels) - at - 1)
    return wrong.name, wrong.seen


def test_a_score_comes_out_again(run: Path, capsys: pytest.CaptureFixture):
    assert [f.level for f in verify.verify(run)] == ["ok"] * 6
    assert main.main(["evaluate", str(run), "--verify"]) == 0
    assert "all 20 returns are the same" in capsys.readouterr().out


def test_a_score_of_one_of_several_agents_comes_out_again(tmp_path: Path):
    run = made.run(tmp_path / "run", network="mlp", updates=(3,))
    page, settings, options, _ = load.load_run(run)
    found = made.save(run, page.build(settings, load.crew_of(options)).policy, 7, agents=2)
    record = evaluate.evaluate(run, EvaluateOptions(episodes=20, agent="1", seed=3))
    assert record["checkpoint_sha256"] == load.weights_digest(found, 1) != load.weights_digest(found)
    assert [f.level for f in verify.verify(run)] == ["ok"] * 6
    for other in (0, 2):
        change(run, agent=other)
        assert failed(run)[0] == "checkpoint"


def test_other_returns_by_the_same_build_fail(run: Path, capsys: pytest.CaptureFixture):
    [path] = run.glob("evaluation-*.json")
    returns = json.loads(path.read_text())["returns"]
    returns[4] = -returns[4]
    change(run, returns=returns, episodic_return_mean=float(np.mean(returns)))
    rule, says = failed(run)
    assert rule == "returns"
    assert f"game 4 returned {-returns[4]:g} now, {returns[4]:g} recorded, by the same build" in says
    assert main.main(["evaluate", str(run), "--verify"]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["machine", "device"])
def test_on_another_machine_the_interval_decides(run: Path, what: str):
    [path] = run.glob("evaluation-*.json")
    said = json.loads(path.read_text())
    change(run, **{what: {**said["machine"], "cpu": "another"} if what == "machine" else "a GPU"})
    assert verify.verify(run)[-1].seen == "all 20 returns are the same"
    returns = [-said["returns"][1], *said["returns"][2:], said["returns"][0]]
    change(run, returns=returns, episodic_return_mean=float(np.mean(returns)))
    assert f"no difference within its 95 % bootstrap interval; {what} differ" in verify.verify(run)[-1].seen
    change(run, returns=[9.0] * 20, episodic_return_mean=9.0)
    rule, says = failed(run)
    assert rule == "returns"
    assert f"they differ by more than their 95 % bootstrap interval ({what} differ)" in says


@pytest.mark.parametrize(
    ("what", "rule", "says"),
    [
        ({"lanes": ..., "seed": ...}, "record", "lacks seed, lanes; evaluate again with this version"),
        ({"returns": ["x"]}, "record", "has returns that are not numbers"),
        ({"episodic_return_mean": 0.99}, "mean", "the mean is 0.99 in the record, but that of its returns is"),
        ({"episodes": 30}, "mean", "episodes is 30 in the record, but the number of returns is 20"),
        ({"config_hash": "0"}, "config", "config_hash is 0 in the record, but that of config.json is"),
        ({"checkpoint": "000000000008-steps-160"}, "checkpoint", "000000000008-steps-160: it no longer exists"),
        ({"checkpoint_sha256": "0"}, "checkpoint", "is 0 in the record, but that of checkpoint 000000000007-steps-140"),
        ({"starts": {"path": "none.json", "digest": "0"}}, "starts", "--starts: cannot read none.json"),
        ({"epsilon": "x"}, "record", "epsilon: 'x' given, allowed: "),
        ({"protocol": "other"}, "record", "protocol: 'other' given, allowed: run, null-op, "),
    ],
)
def test_what_was_changed_or_is_absent_is_named(run: Path, what, rule, says):
    change(run, **what)
    name, seen = failed(run)
    assert name == rule
    assert says in seen
    assert "evaluation-000000000007" in seen


def test_a_changed_configuration_and_a_damaged_record_are_named(run: Path):
    config = directory.read_config(run)
    config["config"]["gamma"] = 0.5
    files.write_json(run / "config.json", config)
    assert failed(run)[0] == "config"
    next(run.glob("evaluation-*.json")).write_text("{")
    assert failed(run)[0] == "record"


def test_damaged_and_exchanged_weights_are_named(run: Path):
    found, name = checkpoint.newest(run, print), f"{checkpoint.policy_name(0)}.safetensors"
    data = (found / name).read_bytes()
    (found / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    evaluation = next(run.glob("evaluation-*.json")).name
    damaged = f"{evaluation}: checkpoint {found.name}: {name} is damaged (its checksum differs)"
    assert failed(run) == ("checkpoint", damaged)
    page, settings, options, _ = load.load_run(run)
    other = made.save(run, page.build(settings, load.crew_of(options)).policy, 8)
    for path in ("manifest.json", name):
        (found / path).write_bytes((other / path).read_bytes())
    rule, says = failed(run)
    assert rule == "checkpoint"
    assert "checkpoint_sha256 is" in says


def test_which_evaluation_can_be_said(run: Path):
    with pytest.raises(UserError, match="start states need an Atari game, but this run plays toy:catch"):
        verify.record_starts(run, verify.StartsOptions())
    evaluate.evaluate(run, EvaluateOptions(episodes=2, seed=0))
    assert verify.verify(run)[0].seen.startswith("evaluation-000000000007-steps-140-seed0.json, of ")
    found = verify.verify(run, "evaluation-000000000007-steps-140-eps0.1-seed3.json")
    assert "over 20 games" in found[1].seen
    with pytest.raises(UserError, match=r"--evaluation: x.json is not in .*; allowed: evaluation-0"):
        verify.verify(run, "x.json")


def test_a_filmed_score_comes_out_again(tmp_path: Path, monkeypatch):
    pong = made.run(tmp_path / "run", "ALE/Pong-v5", network="a3c", atari="impala", serial=True)
    short(monkeypatch, "run", 160)
    result = evaluate.evaluate(pong, EvaluateOptions(episodes=2, video=True))
    assert (result["pipeline"], Path(result["video"]).suffix) == ("plain", ".mp4")
    assert Path(result["video"]).with_suffix(".gif").is_file()
    assert [f.level for f in verify.verify(pong)] == ["ok"] * 6
    assert "pipeline" not in evaluate.evaluate(pong, EvaluateOptions(episodes=2))


def test_starts_are_made_labeled_and_played(tmp_path: Path, monkeypatch, capsys):
    pong = made.run(tmp_path / "run", "ALE/Pong-v5", network="a3c", atari="ga3c", serial=True)
    file = tmp_path / "starts.json"
    assert main.main(["evaluate", str(pong), "--save-starts", str(file), "--number", "3", "--frames", "120"]) == 0
    assert "3 start states of the run's own play, labeled substitute" in capsys.readouterr().out
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
    assert (result["label"], result["starts"]["kind"]) == ("human-starts (substitute)", "substitute")
    assert result["episodic_length_mean"] == sum((160 - s.frames) // 4 for s in found.starts) / 3
    assert [f.level for f in verify.verify(pong)] == ["ok"] * 6
    file.write_text(json.dumps({**json.loads(file.read_text()), "source": "somebody"}))
    seen = verify.verify(pong)[4]
    assert (seen.name, seen.level) == ("starts", "failed")
    assert "the digest of the start states is" in seen.seen
