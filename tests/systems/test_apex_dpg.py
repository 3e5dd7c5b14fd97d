"""Ape-X DPG learns real actions however its workers run; evaluation has no noise; first priorities; it goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.core.files import read_lines
from polyplay.envs import Envs
from polyplay.nets.factory import build_network
from polyplay.workers.crew import Crew
from tests.games.traits import NAME as TRAITS
from tests.systems import settings as of
from tests.systems.trained import wired

QUIET: Any = {"tensorboard": False, "report_every": 0.5}

FEW: Any = {**of.AIM, "steps": 600, "batch": 16, "ratio": 4.0, "serial": True}


def trained(path, **settings: Any) -> Any:
    return polyplay.train("apex_dpg", run=str(path), **{**QUIET, **of.AIM, **settings})


@pytest.mark.parametrize("how", [{"on": "thread"}, {"on": "process"}])
def test_it_learns_to_aim(how, tmp_path):
    run = trained(tmp_path / "run", steps=2_000, **how)
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.45  # noise around 0 has 0.42, and 0.65 around the answers
    # without noise; always 0, or each time the end on the right side, has 0.5
    assert run.evaluate(episodes=64)["episodic_return_mean"] >= 0.7


@pytest.mark.long
def test_quick_learns_to_swing_a_pendulum_up(tmp_path):
    """Torque of one sign for ever, where it ended without a rein, has about -1400, -1500 or -700."""
    run = polyplay.train(
        "apex_dpg", preset="quick", env="toy:pendulum", steps=20_000, run=str(tmp_path / "run"), **QUIET
    )
    assert run.exit_code == 0
    assert run.evaluate(episodes=30)["episodic_return_mean"] >= -300.0


def test_it_learns_with_dict_observations_and_goes_on_with_its_memories(tmp_path):
    run = trained(tmp_path / "run", **{**FEW, "env": f"{TRAITS}+dict+continuous", "trace": True})
    assert (run.exit_code, run.summary["updates"]) == (0, pytest.approx((600 - 300) * 4.0 / 16, rel=0.3))
    kept = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print)).arrays("agents/0/policy")
    page = systems.load("apex_dpg")
    fresh = build_network(page.build(run.settings, Crew()).policy, 0).state_dict()
    assert all(np.isfinite(v).all() and (v != fresh[k].numpy()).any() for k, v in kept.items())
    more = polyplay.resume(str(run.directory), steps=800)
    assert more.exit_code == 0
    updates = [row["update"] for row in read_lines(run.directory / "updates.jsonl")]
    assert updates == list(range(1, more.summary["updates"] + 1))


def test_evaluation_plays_without_noise(tmp_path):
    run = trained(tmp_path / "run", **{**FEW, "steps": 400})
    system = wired("apex_dpg", Crew(), **of.AIM)
    policy = play.load_policy(system, checkpoint.newest(run.directory, print))
    assert system.epsilon == 0.0
    games = [play.play_games(Envs(of.AIM["env"], 1), policy, 4, seed=1, greedy=greedy) for greedy in (False, True)]
    assert games[0] == games[1], "whether noise is offered or not"


def test_rows_have_the_environments_units_and_what_the_critic_said_of_them():
    """What an actor writes, and the first priorities that a memory makes of it, against the policy asked again."""
    crew = Crew()
    system = wired("apex_dpg", crew, **{**of.AIM, "env": "toy:pendulum", "replay_workers": 1, "reward_scale": 0.1})
    replay = next(r.out.replay for r in crew.roles if r.name == "serve_replay")
    policy, pool = build_network(system.policy, 1), Envs("toy:pendulum", 8).open(0)
    explore = next(r.explore for r in crew.roles if r.name == "act")
    rows: list[Any] = []
    for t in range(6):
        lanes, step = pool.recv()
        deviation = torch.from_numpy(explore.at(np.full(8, t), np.arange(8)))
        heard: Any = {"obs": torch.from_numpy(step["obs"]), "noise": torch.rand(8, 1), "epsilon": deviation}
        with torch.no_grad():
            out, _ = policy.act(heard, {})
        said = {k: v.numpy() for k, v in out.items()}
        rows.append({k: step[k].copy() for k in replay.spec if k in step} | said | {"version": np.zeros(8, np.int64)})
        pool.send(lanes, said["action"])
    batch = {k: np.stack([row[k] for row in rows]) for k in replay.spec}
    assert (np.abs(batch["action"]) <= 2.0).all()
    memory = replay.open(0)
    memory.add(batch, slice(None))
    drawn = memory.sample()
    assert (drawn["action"].shape, drawn["action"].dtype) == ((64, 1), np.float32)
    t, b = (x[0] for x in np.nonzero((batch["obs"] == drawn["obs"][0, 0]).all(-1)))
    assert np.array_equal(drawn["action"][0], batch["action"][t, b])
    assert np.array_equal(drawn["obs"][1, 0], batch["obs"][t + 1, b])
    assert drawn["return"][0] == pytest.approx(0.1 * batch["reward"][t + 1, b], rel=1e-6)
    obs = torch.from_numpy(drawn["obs"])
    with torch.no_grad():
        out = policy.learnt(obs[0], torch.from_numpy(drawn["action"]))
        goal = torch.from_numpy(drawn["return"] + drawn["discount"] * policy.value(obs[1]).numpy())
    found = memory.sampler.priorities(drawn["id"] & (2**32 - 1))
    np.testing.assert_allclose(found, (goal - out["q"]).abs().numpy(), rtol=1e-3, atol=1e-4)
