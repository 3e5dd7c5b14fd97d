"""Asynchronous runs done again from their logs, to the bit; and logs that are not theirs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import polyplay
from polyplay.cli.main import main
from polyplay.core.errors import Diverged, UserError
from polyplay.nets.actor_critic import ActorCritic
from polyplay.runs.reproduce import reproduce
from tests.reports import rows

BASE = {"trace": True, "seed": 2, "network": "mlp", "tensorboard": False, "lanes": 4, "unroll": 5, "actors": 2}

APPO = {"system": "appo", "env": "toy:catch", "batch": 8, "epochs": 2, "minibatches": 3}  # 6 updates from a batch


def run_of(tmp_path: Path, steps: int = 900, system: str = "impala", **kw) -> Path:
    return polyplay.train(system, run=str(tmp_path / "run"), steps=steps, **{**BASE, **kw}).directory


@pytest.fixture(scope="module")
def catch(tmp_path_factory) -> Path:
    return run_of(tmp_path_factory.mktemp("reproduce"), env="toy:catch", batch=4, core="gru", on="thread")


def test_every_loss_comes_out_the_same_to_the_bit(catch, capsys):
    done = len(rows(catch / "updates.jsonl"))
    assert done > 30
    assert main(["check", str(catch)]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert printed == {"updates": str(done), "losses_equal": str(done), "checkpoints_equal": "1"}
    assert reproduce(catch, 7) == {"updates": 7, "losses_equal": 7, "checkpoints_equal": 0}


@pytest.mark.parametrize(
    "kw",
    [
        {"env": "CartPole-v1", "batch": 8},
        {**APPO, "on": "process"},
        {"env": "toy:catch", "batch": 8, "learners": 2, "on": "thread"},
        {"env": "toy:catch", "batch": 8, "actors": 1, "slots": 2, "serial": True},
        {**APPO, "on": "thread", "learners": 2, "minibatches": 2},
        {**APPO, "on": "thread", "core": "gru"},
    ],
    ids=["CartPole", "several updates", "2 learners", "every slot in every batch", "2 learners, several", "memory"],
)
def test_in_other_places_and_with_several_updates_from_each_batch_too(kw, tmp_path):
    run = run_of(tmp_path, 500, **kw)
    found, done = reproduce(run), len(rows(run / "updates.jsonl"))
    assert found == {"updates": done, "losses_equal": done, "checkpoints_equal": 1}
    if "epochs" in kw:
        each = 4 if "learners" in kw else 6
        assert done % each == 0
        assert done > 8 * each
        assert reproduce(run, each + 1)["updates"] == 2 * each, "whole batches"


@pytest.mark.parametrize("kw", [{"trace": False}, {"compile": "on"}])
def test_what_acted_without_torch_does_so_again(kw, tmp_path, monkeypatch):
    run = run_of(tmp_path, 400, env="CartPole-v1", batch=8, on="thread", **kw)
    monkeypatch.setattr(ActorCritic, "act", None)
    found = reproduce(run)
    assert found["checkpoints_equal"] == 1
    assert found["losses_equal"] == (found["updates"] if "compile" in kw else 0)


@pytest.mark.parametrize("kw", [{"env": "toy:catch", "batch": 4}, pytest.param(APPO, marks=pytest.mark.long)])
def test_a_run_that_went_on_is_done_again_whole(kw, tmp_path):
    run = run_of(tmp_path, 400, anneal="constant", on="thread", **kw)
    before = len(rows(run / "updates.jsonl"))
    polyplay.resume(str(run), steps=700)
    found = reproduce(run)
    assert found["losses_equal"] == len(rows(run / "updates.jsonl")) > before
    assert found["checkpoints_equal"] == 2


def tampered(run: Path, to: Path, change) -> Path:
    shutil.copytree(run, to)
    lines = rows(to / "deliveries-0.jsonl")
    change(lines)
    (to / "deliveries-0.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return to


def test_a_tampered_log_is_one_clear_line(catch, tmp_path, capsys):
    def swap(lines):  # who made a rollout: possible, but not what happened
        lines[5][1][0] = 1 - lines[5][1][0]

    with pytest.raises(Diverged, match=r"update [5-9]: \w+ was .* in the run, but is .* in its reproduction"):
        reproduce(tampered(catch, tmp_path / "a", swap))

    def future(lines):
        lines[5][1][1] = 77

    assert main(["check", str(tampered(catch, tmp_path / "b", future))]) == 2
    err = capsys.readouterr().err
    assert "deliveries-0.jsonl, line 6: a rollout of later version 77 in update 5; no run wrote this" in err
    assert err.count("\n") == 1


def test_without_losses_the_weights_are_compared(catch, tmp_path):
    to = tampered(catch, tmp_path / "a", lambda lines: None)
    (to / "updates.jsonl").unlink()
    assert reproduce(to)["checkpoints_equal"] == 1
    shorter = tampered(catch, tmp_path / "b", lambda lines: lines.pop())
    assert reproduce(shorter)["checkpoints_equal"] == 0


@pytest.mark.parametrize("system", ["a2c", "apex"])
def test_a_run_that_has_no_log_is_one_line(tmp_path, system):
    kw = {} if system == "a2c" else {"learning_starts": 100, "capacity": 1000, "batch": 8, "lanes": 2}
    kw |= {"env": "toy:catch", "network": "mlp", "steps": 200, "serial": True}
    run = polyplay.train(system, run=str(tmp_path / "run"), **kw).directory
    with pytest.raises(UserError, match=f"RUN: {system} keeps no log of rollouts from one role of actors"):
        reproduce(run)
