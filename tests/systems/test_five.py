"""OpenAI Five as users run it: it learns, windows begin where acting was, past selves teach nothing, it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.acting.play import PlayOptions, play_both_sides, policy_player, random_player
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, read_object
from polyplay.envs import Envs
from polyplay.envs.pool import OWN_REWARD, TEAM_REWARD
from polyplay.evaluation.agent import load_agent
from polyplay.learning.agents import ExperienceSource
from polyplay.learning.policy_losses import PPO
from polyplay.learning.returns import LossOutput
from polyplay.nets.actor_critic import EventRewards
from polyplay.workers.crew import Crew
from tests.systems.test_ftw import Recall


@dataclass(frozen=True)
class Shared(Recall):
    """A hero's reward is for itself; what its team's mean is comes with it."""

    events = (OWN_REWARD, TEAM_REWARD)

    def step(self, s: dict[str, np.ndarray], action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        after, row = super().step(s, action, draw)
        own = row["events"][..., 0] * 1.0 - row["events"][..., 1]
        team = np.repeat(own.reshape(-1, 2, 2).mean(2), 2, 1)
        return after, {**row, "events": np.stack([own, team], 2)}


GIVEN: dict[str, Any] = {
    "env": f"toy:{__name__}:Shared",
    "preset": "quick",
    "network": "mlp",
    "core_size": 16,
    "lanes": 32,
    "unroll": 20,
    "window": 5,
    "batch": 32,
    "capacity": 64,
    "publish": 1,
    "learning_rate": 3e-3,
    "entropy_cost": 0.01,
    "matches": 20,
    "rated": 0,
    "tensorboard": False,
}
IN_STEP = {"serial": True, "lag": 0, "batch": 128, "capacity": 128, "opponents": "latest"}


def points_against_random(directory: Path) -> float:
    player = policy_player(load_agent(directory, trust=True)._policy, PlayOptions(1, 3))
    return float(play_both_sides(Envs(GIVEN["env"], 4), player, random_player(7), 100, 1).mean())


@pytest.mark.parametrize(("on", "learners"), [("thread", 1), ("process", 2)])
def test_it_learns_to_win(on, learners, tmp_path):
    more = {"learners": learners, "batch": 32 // learners, "lanes": 32 // learners}
    run = polyplay.train("five", run=str(tmp_path / "run"), steps=30_000, on=on, **{**GIVEN, **more})
    assert points_against_random(run.directory) > 0.85
    reports = [row["reuse"] for row in read_lines(run.directory / "metrics.jsonl") if "reuse" in row]
    assert abs(np.median(reports) - 1.0) < 0.6  # the last report may be of a moment


def watch_updates(monkeypatch: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the loss gets, update by update."""
    seen, score = list[tuple[dict[str, Any], dict[str, Any]]](), PPO.__call__

    def scored(self: PPO, out: Any, batch: Any, hyperparameters: Any) -> LossOutput:
        seen.append(({k: v.detach().clone() for k, v in out.items()}, dict(batch)))
        return score(self, out, batch, hyperparameters)

    monkeypatch.setattr(PPO, "__call__", scored)
    return seen


def test_windows_begin_with_the_state_that_acting_had_there(tmp_path, monkeypatch):
    """At lag 0 what is learnt from is what acted, to the bit, in windows with matches that end in their middle."""
    seen = watch_updates(monkeypatch)
    polyplay.train("five", run=str(tmp_path / "run"), steps=24_000, **{**GIVEN, **IN_STEP})
    assert len(seen) > 30
    assert any(batch["first"][1:].any() for _, batch in seen)
    for out, batch in seen:
        for name in ("logp", "value"):
            assert torch.equal(out[name], batch[name]), name


@pytest.mark.parametrize("staleness", [0, 3])
def test_staleness_is_kept_where_it_is_asked_for(staleness, tmp_path, monkeypatch):
    seen = watch_updates(monkeypatch)
    polyplay.train("five", run=str(tmp_path / "run"), steps=10_000, staleness=staleness, **{**GIVEN, **IN_STEP})
    lags = [sorted({u - v for v in batch["version"].unique().tolist()}) for u, (_, batch) in enumerate(seen)]
    assert lags[staleness:] == [[staleness]] * (len(seen) - staleness)
    assert len(seen) > staleness + 5


def test_a_past_self_plays_and_its_rows_are_never_learnt_from(tmp_path, monkeypatch):
    agents, add = set[int](), ExperienceSource._add

    def added(self: ExperienceSource, rows: Any, state: Any) -> None:
        agents.update(np.unique(rows["agent"]).tolist())
        add(self, rows, state)

    monkeypatch.setattr(ExperienceSource, "_add", added)
    more = {"serial": True, "opponents": "past:0.5", "selves": 4, "matches": 5}
    run = polyplay.train("five", run=str(tmp_path / "run"), steps=16_000, **{**GIVEN, **more})
    assert agents == {0}
    players = read_object(run.directory / "league.json")["players"]
    past = [row for row in players if row["kind"] == "past self"]
    assert len(past) > 3
    assert sum(n for row in past for n, _ in row["against"].values()) > 50


def test_a_run_goes_on_with_its_buffer(tmp_path):
    directory = tmp_path / "run"
    run = polyplay.train("five", run=str(directory), steps=6_000, serial=True, **GIVEN)
    newest = checkpoint.OpenCheckpoint(checkpoint.everything(directory)[-1])
    before = newest.json("learners/0/experience_counts")
    assert before["arrived"] > 1000 // 5
    assert newest.arrays("learners/0/experience")["rows/logp"].shape == (5, 64)
    learnt = newest.json("agents/0/learner")["learnt"]
    more = polyplay.resume(str(directory), steps=9_000, trust=True)
    after = checkpoint.OpenCheckpoint(checkpoint.everything(directory)[-1])
    assert after.json("learners/0/experience_counts")["arrived"] > before["arrived"]
    assert after.json("agents/0/learner")["learnt"] > learnt
    assert (run.exit_code, more.exit_code) == (0, 0)


def test_team_spirit_shares_rewards_and_leaves_their_sum():
    rewards = EventRewards((OWN_REWARD, "kill", TEAM_REWARD))
    events = torch.tensor([[3.0, 9.0, 1.0], [-1.0, 9.0, 1.0]])  # two heroes of a team
    for spirit, want in ((0.0, [3.0, -1.0]), (0.5, [2.0, 0.0]), (1.0, [1.0, 1.0])):
        rewards.follow({"team_spirit": spirit})
        assert rewards(events).tolist() == want
        assert float(rewards(events).sum()) == 2.0


def test_normalised_observations_are_within_five_deviations():
    page = systems.load("five")
    policy, fields = (
        page.build(page.Config(learners=1, core_size=8), Crew(0)).policy(),
        Envs("arena:lanes", 10).spec.obs,
    )
    for _ in range(2):
        policy.inputs.observe({k: torch.randn(3, 64, *f.shape) for k, f in fields.items()})
    far = policy.inputs({k: torch.full((1, *f.shape), 1e3) for k, f in fields.items()})
    assert far["own"].unique().tolist() == [5.0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"env": "toy:catch"}, r"--env: toy:catch given, which has 1 teams; allowed: a game of two"),
        ({"env": "toy:skirmish"}, r"team-spirit 0.3 \(default\), but toy:skirmish does not say .*; allowed: 0"),
        ({"window": 7}, r"--window 7 given, allowed: what divides --unroll 20"),
        ({"batch": 65}, r"--batch 65 given, allowed: at most the 64 windows of --capacity"),
        ({"lag": 0, "publish": 3, "opponents": "past:0.2"}, r"--lag 0 with --publish 3 .*: a round makes 2 updates"),
        ({"team_spirit": 1.5}, r"team_spirit: '1.5' given, allowed: a number from 0 to 1"),
        ({"opponents": "best"}, r"--opponents: best given"),
    ],
)
def test_bad_input_is_said(given, text, tmp_path):
    with pytest.raises(UserError, match=text):
        polyplay.train("five", run=str(tmp_path / "run"), steps=100, **{**GIVEN, "serial": True, **given})
    assert not (tmp_path / "run").exists()
