"""DQN learns however its workers run, with every improvement, and goes on to the bit with its memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay import systems
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines
from polyplay.learning import value_losses
from polyplay.runs import plan
from polyplay.runs.options import RunOptions
from polyplay.runs.run import diagram
from polyplay.workers.crew import Crew

QUIET: Any = {"tensorboard": False, "report_every": 0.5}
NET: Any = {
    **QUIET,
    "network": "mlp",
    "optimizer": "adam",
    "optimizer_eps": 1e-5,
    "reduction": "mean",
    "learning_rate": 2e-3,
}
PACE: Any = {"lanes": 8, "unroll": 1, "batch": 64, "ratio": 8.0, "capacity": 20_000, "start": 500, "target": 50}
CATCH: Any = {**NET, **PACE, "env": "toy:catch", "n_step": 3, "epsilon": 0.05, "epsilon_over": 3_000}


def wired(crew: Crew, **settings: Any) -> Any:
    page = systems.load("dqn")
    return page.build(page.Config(**{"env": "toy:catch", "network": "mlp", **settings}), crew)


SERIAL = pytest.param({"serial": True}, marks=pytest.mark.long)


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}, SERIAL])
def test_it_learns_catch(how, tmp_path):
    run = polyplay.train("dqn", run=str(tmp_path / "run"), steps=12_000, until_return=0.2, **CATCH, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.2  # random play: -0.6


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"double": True}, marks=pytest.mark.long, id="double"),
        pytest.param({"head": "dueling"}, marks=pytest.mark.long, id="dueling"),
        pytest.param({"priority": 0.6}, marks=pytest.mark.long, id="prioritized"),
        pytest.param({"replicas": 2}, marks=pytest.mark.long, id="replicas"),
    ],
)
def test_it_learns_with_every_improvement(more, tmp_path):
    run = polyplay.train("dqn", run=str(tmp_path / "run"), steps=12_000, until_return=0.2, serial=True, **CATCH, **more)
    assert run.summary["episodic_return_mean_best"] >= 0.2


def trained(path, **settings: Any) -> Any:
    return polyplay.train("dqn", run=str(path), serial=True, trace=True, **{**CATCH, **settings})


def losses(path) -> list[float]:
    return [row["loss"] for row in read_lines(path / "updates.jsonl")]


def test_both_networks_see_inputs_by_the_statistics_of_what_was_acted(tmp_path):
    run = trained(tmp_path / "run", steps=1_000, inputs="normalize", target=10_000)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    policy, target = (found.arrays(f"agents/0/{name}") for name in ("policy", "target"))
    learnt = [name for name in policy if name.startswith("inputs.")]
    assert any(policy[name].any() for name in learnt)
    assert all((policy[name] == target[name]).all() for name in learnt)
    assert any((policy[name] != target[name]).any() for name in policy), "the weights are those of the start"


@pytest.mark.parametrize("more", [{}, {"priority": 0.6}, {"inputs": "normalize"}], ids=str)
def test_a_resumed_run_goes_on_with_its_memory_to_the_bit(more, tmp_path):
    settings = {"weighting": 1.0, **more}  # else β depends on where the run is to end
    whole = trained(tmp_path / "whole", steps=1_500, **settings)
    trained(tmp_path / "parts", steps=1_000, **settings)
    polyplay.resume(str(tmp_path / "parts"), steps=1_500)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert whole.exit_code == 0
    ends = [checkpoint.everything(tmp_path / name)[-1] for name in ("whole", "parts")]
    weights = [checkpoint.open_checkpoint(end).arrays("agents/0/policy") for end in ends]
    targets = [checkpoint.open_checkpoint(end).arrays("agents/0/target") for end in ends]
    for mine, theirs in (weights, targets):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.long
def test_a_process_whose_threads_divide_the_batches_goes_on_to_the_bit(tmp_path):
    """With samples drawn ahead, at a ratio at which an update is due now and then."""
    given: Any = {**QUIET, "env": "ALE/Pong-v5", "network": "a3c", "batch": 16, "ratio": 3.0, "target": 20}
    given |= {"start": 60, "capacity": 1_000, "on": "process", "seed": 3}
    polyplay.train("dqn", run=str(tmp_path / "whole"), steps=300, **given)
    polyplay.train("dqn", run=str(tmp_path / "parts"), steps=170, **given)
    polyplay.resume(str(tmp_path / "parts"), steps=300)
    ends = [checkpoint.open_checkpoint(checkpoint.everything(tmp_path / name)[-1]) for name in ("whole", "parts")]
    for name in ("policy", "optimizer", "target"):
        mine, theirs = (end.arrays(f"agents/0/{name}") for end in ends)
        assert all(np.array_equal(mine[k], theirs[k]) for k in mine)
    assert ends[0].json("agents/0/learner")["version"] == ends[1].json("agents/0/learner")["version"] == 45


def test_a_replay_of_another_version_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    trained(tmp_path / "run", steps=700)
    before = (tmp_path / "run" / "config.json").read_text()
    monkeypatch.setattr("polyplay.buffers.replay.SCHEMA", 1_000)
    with pytest.raises(UserError, match="this version reads 1000"):
        polyplay.resume(str(tmp_path / "run"), steps=900)
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_the_plan_says_how_threads_divide_a_batch(monkeypatch):
    monkeypatch.setattr("polyplay.runs.plan.threads_of", lambda role, crew: 2)
    for how, text in (({}, "2 threads divide each batch of 32 transitions"), ({"serial": True}, "")):
        crew = Crew(0, **how)
        made = wired(crew, env="ALE/Pong-v5", network="nature")
        assert plan._gradient(crew, made.policy()) == text


def test_replicas_learn_from_the_sum_over_all_of_them():
    crew = Crew(0)
    wired(crew, replicas=2, lanes=2)
    assert crew.roles[0].spec.loss == value_losses.QLoss("sum", replicas=2)


def test_two_replicas_stay_equal_and_draw_from_memories_of_their_own(tmp_path):
    run = trained(tmp_path / "run", steps=1_500, replicas=2)
    last = checkpoint.everything(run.directory)[-1]
    kept = sorted(p.name for p in (last / "replay").iterdir())
    assert kept == ["replica-0", "replica-1"]
    made = [json.loads((last / "replay" / name / "replay_learner.json").read_text())["updates"] for name in kept]
    steps = [json.loads((last / "replay" / name / "replay.json").read_text())["numbers"]["steps"] for name in kept]
    assert (made[0], steps[0]) == (made[1], steps[1])
    assert made[0] == (steps[0] - 250) * 8.0 // 32


def test_the_ratio_is_kept_and_told(tmp_path):
    run = trained(tmp_path / "run", steps=2_000)
    told = [r["replay_ratio"] for r in read_lines(run.directory / "metrics.jsonl") if "replay_ratio" in r]
    updates = len(losses(run.directory))
    assert updates == pytest.approx((2_000 - 500) * 8.0 / 64, abs=2)
    assert told[-1] == pytest.approx(8.0, rel=0.1)


def test_the_target_network_is_a_copy_of_every_so_many_updates(tmp_path):
    run = trained(tmp_path / "run", steps=800, target=10_000)
    found = checkpoint.open_checkpoint(checkpoint.everything(run.directory)[-1])
    first = trained(tmp_path / "first", steps=8, target=10_000)  # saved before any update
    start = checkpoint.open_checkpoint(checkpoint.everything(first.directory)[-1])
    old, new = start.arrays("agents/0/target"), found.arrays("agents/0/target")
    assert all(np.array_equal(old[k], new[k]) for k in old)
    assert any(not np.array_equal(new[k], found.arrays("agents/0/policy")[k]) for k in new)


def test_a_run_that_ends_in_its_warm_up_is_saved_and_goes_on(tmp_path):
    run = trained(tmp_path / "run", steps=200)
    assert run.exit_code == 0
    assert run.summary["updates"] == 0
    polyplay.resume(str(run.directory), steps=800)
    assert len(losses(run.directory)) > 0


def test_what_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"--lanes 1 does not divide among --replicas 2: make it a multiple of that"):
        wired(Crew(), replicas=2)


def test_an_action_that_is_no_choice_is_refused():
    with pytest.raises(
        UserError, match=r"--env: toy:pendulum given, but dqn needs discrete .* \[1\] real.*a2c, apex_dpg take these"
    ):
        wired(Crew(), env="toy:pendulum")


def test_its_picture_and_plan_tell_of_the_memory():
    text = diagram("dqn", systems.load("dqn").Config(env="toy:catch", network="mlp"), RunOptions())
    assert "replay  1,000,000 agent steps" in text
    assert "draws   32 transitions: 8 per agent step, uniform" in text
    assert "ε       LinearEpsilon to 0.1" in text
    crew = Crew(steps=100_000)
    told = plan.make_plan(crew, wired(crew), RunOptions())
    assert told.memory["replay"] > 0
    assert dict(told.lines)["updates"] == "12,500 updates, one every 4 agent steps after the first 50,000"
