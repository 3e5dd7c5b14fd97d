"""Games beside training: when, with which weights, what is written, and what is kept as the best."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.acting import play
from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.evaluation import evaluate
from polyplay.evaluation.evaluate import EvaluateOptions
from polyplay.nets import NetworkFactory
from polyplay.weights.params import FlatParams, Params
from polyplay.workers import evaluator
from tests.reports import rows
from tests.runs.test_run import meanwhile, wait_for

QUICK = {"env": "toy:catch", "network": "mlp", "report_every": 0.2, "eval_every": 300, "eval_episodes": 6}


class Bench:
    """An evaluator whose learner, and whose counters, the test is."""

    def __init__(self, directory: Path | None, every: int = 100, steps: int = 0):
        envs = Envs("toy:catch", 2)
        self.policy = NetworkFactory("mlp", envs.spec, {})
        self.control, self.counters, self.told = RunControl(), Counters(2), []
        net = self.policy()
        self.vector = FlatParams(net)
        self.show = self.control.show = Params.of(net)
        ctx = WorkerContext("evaluator", 0, 1, 1, 3, self.counters, self.control, directory=directory, patience=0.0)
        ctx.log = lambda kind, text: self.told.append((kind, json.loads(text)))
        asked = play.PlayOptions(5, seed=3)
        kw = {"policy": self.policy, "asked": asked, "protocol": "run", "every": every, "steps": steps}
        self.turns = evaluator.evaluator(ctx, games=envs, **kw)

    def train(self, steps: int) -> None:
        self.counters.row(0).set("steps", steps)

    def until_told(self, n: int, version: int) -> dict:
        for _ in range(2000):
            next(self.turns)
            if self.show.asked:
                self.show.answer(self.vector, version)
            if len(self.told) == n:
                return self.told[-1][1]
        raise AssertionError("nothing was told")


def test_games_are_played_when_they_are_due_with_the_weights_that_were_shown(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.train(99)
    for _ in range(20):
        next(bench.turns)
    assert not bench.show.asked
    bench.train(130)
    bench.vector.flat[:] = 0.1
    row = bench.until_told(1, version=7)
    want = {"frames": 130, "steps": 130, "updates": 7, "protocol": "run", "episodes": 5, "seed": 3, "epsilon": 0.0}
    assert {k: row[k] for k in want} == want
    net = bench.policy()
    FlatParams(net).flat[:] = 0.1
    plain = [ret for ret, _ in play.play_games(Envs("toy:catch", 2), net, play.PlayOptions(5, 3))]
    assert row["returns"] == plain
    assert row["episodic_return_mean"] == np.mean(plain)
    bench.train(199)
    for _ in range(20):
        next(bench.turns)
    assert not bench.show.asked  # the next is due at 200
    bench.train(450)
    assert bench.until_told(2, version=9)["steps"] == 450  # what came due at 200 and 300 is left out
    bench.turns.close()


def test_only_better_weights_are_kept(tmp_path: Path):
    net = Bench(None).policy()
    ctx = WorkerContext("evaluator", 0, 1, 1, 0, Counters(2), RunControl(), directory=tmp_path)

    def score(mean: float, updates: int, protocol: str = "run") -> bool:
        at = {"frames": 9, "steps": 9, "updates": updates, "protocol": protocol, "episodic_return_mean": mean}
        return evaluator._best(ctx, net, {**at, "returns": [mean], "interval": None})

    def kept() -> list[str]:
        return [p.name for p in checkpoint.checkpoints_dir(tmp_path).iterdir()]

    assert [score(0.5, 3), score(0.5, 4), score(0.4, 5)] == [True, False, False]
    assert kept() == ["best-000000000003-steps-9"]
    assert [score(0.6, 6), score(0.1, 7, "sticky")] == [True, True], "another protocol's score says nothing"
    assert kept() == ["best-000000000007-steps-9"]
    assert checkpoint.flaw(checkpoint.checkpoints_dir(tmp_path) / kept()[0]) is None
    assert checkpoint.everything(tmp_path) == [], "nothing to go on from"


def test_the_best_weights_have_the_score_that_was_told(tmp_path: Path):
    """As a process beside training; the same seed and games again, from the file."""
    run = tmp_path / "run"
    words = ["train", "a2c", "--env", "toy:catch", "--network=mlp", "--replicas=1", "--lanes=8", "--eval-every=200"]
    words += ["--eval-episodes=12", "--seed=5", "--steps=100000000", "--run", str(run)]

    def stop() -> None:
        wait_for(lambda: (run / "evaluations.jsonl").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(stop):
        assert main.main(words) == 143
    best = [row for row in rows(run / "evaluations.jsonl") if row["best"]][-1]
    result = evaluate.evaluate(run, EvaluateOptions(episodes=12, seed=5, checkpoint="best"))
    assert result["returns"] == best["returns"]
    assert result["chosen_by"] == "evaluation"
    assert result["checkpoint"] == f"best-{best['updates']:012d}-steps-{best['steps']}"


def test_mistakes_are_said_before_anything_is_made(tmp_path: Path):
    run = tmp_path / "run"
    with pytest.raises(UserError, match="null-op is for Atari games, this run plays toy:catch"):
        polyplay.train("a2c", serial=True, eval_protocol="null-op", run=str(run), **QUICK)
    assert not run.exists()
