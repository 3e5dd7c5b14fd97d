"""OpenAI Five as users run it: it learns, windows begin where acting was, past agents teach nothing; faults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay import systems
from polyplay.core import checkpoint, tree
from polyplay.core.errors import UserError, WorkerLost
from polyplay.core.files import read_lines, read_object
from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.envs.pool import OWN_REWARD, TEAM_REWARD
from polyplay.evaluation.agent import Agent
from polyplay.learning.agents import WindowFeed
from polyplay.learning.losses import PPO, LossOutput
from polyplay.nets.actor_critic import EventRewards
from polyplay.workers.crew import Crew
from tests.faults import injected
from tests.systems.test_leagues import Recall, points_against_random, rated


@dataclass(frozen=True)
class Shared(Recall):
    """A hero's reward is for itself; what its team's mean is comes with it."""

    events = (OWN_REWARD, TEAM_REWARD)

    def step(self, s: dict[str, np.ndarray], action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        after, row = super().step(s, action, draw)
        own = row["events"][..., 0] * 1.0 - row["events"][..., 1]
        team = np.repeat(own.reshape(-1, 2, 2).mean(2), 2, 1)
        return after, {**row, "events": np.stack([own, team], 2)}


GIVEN: dict[str, Any] = {"env": f"toy:{__name__}:Shared", "preset": "quick", "network": "mlp", "core_size": 16}
GIVEN |= {"lanes": 32, "unroll": 20, "window": 5, "batch": 32, "capacity": 64, "publish": 1, "learning_rate": 3e-3}
GIVEN |= {"entropy_cost": 0.01, "games_per_matchup": 20, "rate_every": 0, "tensorboard": False}

IN_STEP = {"serial": True, "lag": 0, "batch": 128, "capacity": 128, "opponents": "latest"}


@pytest.mark.parametrize(("on", "learners"), [("thread", 1), ("process", 2)])
def test_it_learns_to_win(on, learners, tmp_path):
    more = {"learners": learners, "batch": 32 // learners, "lanes": 32 // learners}
    run = polyplay.train("five", run=str(tmp_path / "run"), steps=20_000, on=on, **{**GIVEN, **more})
    assert points_against_random(run.directory, GIVEN["env"]) > 0.75
    reports = [row["reuse"] for row in read_lines(run.directory / "metrics.jsonl") if "reuse" in row]
    assert abs(np.median(reports) - 1.0) < 0.6  # the last report may be of a moment


def watch_updates(monkeypatch: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the loss gets, update by update."""
    seen, score = list[tuple[dict[str, Any], dict[str, Any]]](), PPO.score

    def scored(self: PPO, out: Any, batch: Any, hyper: Any) -> LossOutput:
        seen.append(({k: v.detach().clone() for k, v in out.items()}, dict(batch)))
        return score(self, out, batch, hyper)

    monkeypatch.setattr(PPO, "score", scored)
    return seen


def test_windows_begin_with_the_state_that_acting_had_there(tmp_path, monkeypatch):
    """At lag 0 what is learnt from is what acted, to the bit, in windows with matches that end in their middle."""
    seen = watch_updates(monkeypatch)
    polyplay.train("five", run=str(tmp_path / "run"), steps=12_000, **{**GIVEN, **IN_STEP})
    assert len(seen) > 15
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
    agents, add = set[int](), WindowFeed._add

    def added(self: WindowFeed, rows: Any, state: Any) -> None:
        agents.update(np.unique(rows["agent"]).tolist())
        add(self, rows, state)

    monkeypatch.setattr(WindowFeed, "_add", added)
    more = {"serial": True, "opponents": "past:0.5", "snapshot_every": 4, "games_per_matchup": 5}
    run = polyplay.train("five", run=str(tmp_path / "run"), steps=8_000, **{**GIVEN, **more})
    assert agents == {0}
    players = read_object(run.directory / "league.json")["players"]
    past = [row for row in players if row["kind"] == "past agent"]
    assert len(past) > 1
    assert sum(n for row in past for n, _ in row["against"].values()) > 20


def test_team_spirit_shares_rewards_and_leaves_their_sum():
    rewards = EventRewards((OWN_REWARD, "kill", TEAM_REWARD))
    events = torch.tensor([[3.0, 9.0, 1.0], [-1.0, 9.0, 1.0]])  # two heroes of a team
    for spirit, want in ((0.0, [3.0, -1.0]), (0.5, [2.0, 0.0]), (1.0, [1.0, 1.0])):
        rewards.apply_hyperparameters({"team_spirit": spirit})
        assert (rewards(events).tolist(), float(rewards(events).sum())) == (want, 2.0)


def test_normalized_observations_are_within_five_deviations():
    page = systems.load("five")
    policy, fields = (
        page.build(page.Config(learners=1, core_size=8), Crew(0)).policy(),
        Envs("arena:moba", 10).spec.obs,
    )
    for _ in range(2):
        policy.inputs.observe({k: torch.randn(3, 64, *f.shape) for k, f in fields.items()})
    far = policy.inputs({k: torch.full((1, *f.shape), 1e3) for k, f in fields.items()})
    assert far["own"].unique().tolist() == [5.0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"env": "toy:catch"}, r"--env: toy:catch given, which has 1 teams; allowed: two"),
        ({"env": "toy:skirmish"}, r"team-spirit 0.3 given, but toy:skirmish does not give .*; allowed: 0"),
        ({"window": 7}, r"--window 7 given, allowed: a divisor of --unroll 20"),
        ({"batch": 65}, r"--batch 65 given, allowed: at most the 64 windows of --capacity"),
        ({"lag": 0, "publish": 3, "opponents": "past:0.2"}, r"--lag 0 with --publish 3 .*: a round makes 2 updates"),
        ({"team_spirit": 1.5}, r"team_spirit: '1.5' given, allowed: a number from 0 to 1"),
        ({"opponents": "best"}, r"--opponents best: must be latest"),
    ],
)
def test_bad_input_is_said(given, text, tmp_path):
    with pytest.raises(UserError, match=text):
        polyplay.train("five", run=str(tmp_path / "run"), steps=100, **{**GIVEN, "serial": True, **given})
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Named(Shared):
    """Who sees a row sees whose it is: a number of the match, the seat, and how old the match is."""

    obs = Field((6,), "float32")

    def reset(self, draw: Any, n: int) -> dict[str, np.ndarray]:
        return {**super().reset(draw, n), "name": draw()}

    def see(self, s: dict[str, np.ndarray]) -> np.ndarray:
        seen = super().see(s)
        about = np.broadcast_arrays(s["name"][:, None], np.arange(4.0), s["age"][:, None] / 64)
        return np.concatenate([seen, np.stack(about, 2)], 2).astype(np.float32)


FULL: dict[str, Any] = {**GIVEN, "env": f"toy:{__name__}:Named", "opponents": "past:0.3"}
FULL |= {"snapshot_every": 10, "games_per_matchup": 10}

STILL = {"learning_rate": 1e-30, "checkpoint_every": 1.0, "report_every": 1.0}  # weights that no update changes


def newest(directory: Path) -> checkpoint.OpenCheckpoint:
    return checkpoint.OpenCheckpoint(checkpoint.everything(directory)[-1])


def update(directory: Path) -> int:
    """Of the newest checkpoint."""
    return checkpoint.update_of(checkpoint.everything(directory)[-1])


def counts(found: checkpoint.OpenCheckpoint, learner: int = 0) -> dict[str, Any]:
    return found.json(f"learners/{learner}/experience_counts")


def whole_windows(directory: Path, found: checkpoint.OpenCheckpoint, learner: int = 0) -> int:
    """Windows of a buffer, made by the weights of now, after a look at each: its rows follow one another in one seat of
    one match, it is there once, and the network says of them what acting said, from the state that is with them.
    """
    arrays = tree.nest(found.arrays(f"learners/{learner}/experience"))
    n = min(counts(found, learner)["arrived"], arrays["rows"]["logp"].shape[1])
    rows, state = tree.map(lambda x: x[:, :n], arrays["rows"]), tree.map(lambda x: x[:n], arrays["state"])
    seen, first = rows["obs"], rows["first"]
    ages = np.diff(seen[..., 5], axis=0)[~first[1:]] * 64
    assert (ages == 1.0).all(), "no row is left out, and none is of another rollout"
    assert (np.diff(seen[..., 3:5], axis=0)[~first[1:]] == 0.0).all(), "nor of another match or seat"
    playing = seen[0][~first[0] | (seen[0, :, 5] == 0.0)]  # others rest until another player sits down
    assert len(np.unique(playing[:, 3:], axis=0)) == len(playing), "no window came twice"
    policy: Any = Agent(directory, trust=True)._policy
    with torch.no_grad():
        out = policy.unroll(*(tree.map(torch.as_tensor, x) for x in (rows, state)))
    for name in ("logp", "value"):
        np.testing.assert_allclose(out[name].numpy(), rows[name], atol=1e-5, err_msg=name)
    return n


def learnt_once(found: checkpoint.OpenCheckpoint) -> None:
    """The agent steps that a learner alone has learnt from are those that came, where no match began."""
    came = 5 * counts(found)["arrived"]
    learnt = found.json("agents/0/learner")["learnt"] + counts(found)["fresh"]
    assert 0.6 * came <= learnt <= came, "others rest while another player sits down"


# ------------------------------------------------------------------------------------------------------ in one thread
def test_a_run_that_fails_goes_on_with_its_experience_and_knobs(tmp_path, monkeypatch):
    """At an update of its own; agent steps that came and were not yet counted are counted later, once."""
    directory, spirits, came, score = tmp_path / "run", list[float](), list[int](), PPO.score
    add = WindowFeed._add

    def added(self: WindowFeed, rows: Any, state: Any) -> None:
        came.append(np.count_nonzero(~rows["first"][1:]))
        add(self, rows, state)
        spirits.append(float(self.learner.policy.rewards.weights[1]))  # type: ignore[attr-defined]

    def fails(self: PPO, *given: Any) -> Any:
        if len(came) == 12:
            raise RuntimeError("a fault")
        return score(self, *given)

    monkeypatch.setattr(WindowFeed, "_add", added)
    given = {**FULL, "serial": True, "change": ("team_spirit=0.5@0,0.75@1500",)}
    with monkeypatch.context() as faulty:
        faulty.setattr(PPO, "score", fails)
        with pytest.raises(WorkerLost, match="a fault"):
            polyplay.train("five", run=str(directory), steps=30_000, **given)
    found = newest(directory)
    assert update(directory) == found.json("agents/0/learner")["version"] > 10
    assert counts(found)["arrived"] == 4 * 16 * 12
    assert counts(found)["fresh"] > 0
    learnt_once(found)
    assert (spirits[0], spirits[-1]) == (0.5, 0.75)
    run = polyplay.resume(directory, steps=4800, trust=True)
    assert spirits[12] == 0.75, "also before the first update"
    assert run.exit_code == 0
    after = newest(directory)
    assert counts(after)["arrived"] == 4 * 16 * len(came)
    assert after.json("agents/0/learner")["learnt"] + counts(after)["fresh"] == sum(came)
    assert after.json("agents/0/learner")["hyperparameters"]["team_spirit"] == 0.75


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"lag": 0, "capacity": 512}, id="a buffer of four rounds"),
        pytest.param({"lag": 0, "batch": 48}, id="rounds of no whole number of batches", marks=pytest.mark.long),
        pytest.param({"lag": 1, "capacity": 512, "serial": False}, id="processes", marks=pytest.mark.long),
    ],
)
def test_actors_that_may_not_be_ahead_never_wait_for_ever(given, tmp_path):
    more = {"serial": True, "opponents": "latest", **given}
    run = polyplay.train("five", run=str(tmp_path / "run"), steps=4500, **{**FULL, **more})
    assert run.exit_code == 0
    assert run.summary["updates"] > 5


# ------------------------------------------------------------------------------------------------------ kills
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", ["kill=act:2,kill=referee:2,kill=rater:2", "kill=learn:2"])
def test_killed_anywhere_it_goes_on_with_all_that_it_had(faults, tmp_path):
    """Actor, referee and rater are replaced; without its optimizer a run ends."""
    directory, given = tmp_path / "run", {**FULL, **STILL, "rate_every": 20, "run": tmp_path / "run"}
    with injected(faults):
        if "learn" in faults:
            with pytest.raises(WorkerLost, match="the run cannot continue"):
                polyplay.train("five", steps=10**7, **given)
        else:
            assert polyplay.train("five", steps=25_000, **given).summary["restarts"] >= 3
    before, had = counts(newest(directory)), rated(directory)
    learnt = newest(directory).json("agents/0/learner")["learnt"]
    learnt_once(newest(directory))
    polyplay.resume(directory, steps=learnt + 10_000, trust=True)
    assert counts(newest(directory))["arrived"] > before["arrived"]
    assert whole_windows(directory, newest(directory)) == 64
    learnt_once(newest(directory))
    players = rated(directory)
    gone = {row["name"] for row in read_object(directory / "league.json")["history"]}
    assert all(name in gone or players[name] >= n for name, n in had.items()), "no rating is lost"
