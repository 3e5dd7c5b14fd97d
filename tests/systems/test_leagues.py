"""Leagues and FTW as users run them: agents learn, copy each other and go on; bad input is said."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyplay
from polyplay.acting.play import PlayOptions, play_both_sides, policy_player, random_player
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, read_object
from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.envs.spaces import Discrete
from polyplay.evaluation.agent import Agent
from polyplay.games.toys import Toy
from polyplay.learning.unreal import WithAuxiliary
from polyplay.population import rules
from polyplay.runs.load import choose_checkpoint
from polyplay.systems import _teams
from polyplay.systems._teams import CORE, RANGES
from polyplay.systems.ftw import Config

QUIET: dict[str, Any] = {"serial": True, "tensorboard": False, "network": "mlp", "lanes": 16, "batch": 8}


def versions(directory: Path) -> dict[str, int]:
    """Of the agents in the newest checkpoint."""
    return checkpoint.manifest(checkpoint.everything(directory)[-1])["counters"]["agents"]


def rated(directory: Path) -> dict[str, int]:
    """Matches of each player, by league.json."""
    players = read_object(directory / "league.json")["players"]
    return {row["name"]: sum(n for n, _ in row["against"].values()) for row in players}


@pytest.mark.parametrize("loss", ["vtrace", pytest.param("ppo", marks=pytest.mark.long)])
def test_agents_learn_apart_and_a_run_goes_on_with_each_where_it_was(loss, tmp_path):
    given = {**QUIET, "env": "toy:rps", "agents": 3, "loss": loss, "core": "gru", "opponents": "elo"}
    given |= {"snapshot_every": 3, "unroll": 5}
    run = polyplay.train("league", run=str(tmp_path / "run"), steps=800, games_per_matchup=20, **given)
    before = versions(run.directory)
    assert set(before) == {"0", "1", "2"}
    assert min(before.values()) > 3
    assert run.summary["updates"] == sum(before.values())
    assert set(run.summary["agent_return_means"]) == {"0", "1", "2"}
    policies = [checkpoint.read_arrays(p) for p in checkpoint.everything(run.directory)[-1].glob("agents/*/policy.*")]
    assert len({x["body.0.weight"].tobytes() if "body.0.weight" in x else str(x) for x in policies}) == 3
    games = list(read_lines(run.directory / "episodes.jsonl"))
    assert {game["agent"] for game in games} == {0, 1, 2}, "a game of a past agent is nobody's"
    past = {p.stem for p in (run.directory / "past_agents").iterdir()}
    assert past >= {f"{agent}-3" for agent in range(3)} if loss == "vtrace" else past

    run = polyplay.resume(run.directory, steps=1200)
    after = versions(run.directory)
    assert all(after[agent] > before[agent] for agent in before)
    assert {p.stem for p in (run.directory / "past_agents").iterdir()} > past


# ------------------------------------------------------------------------------------------------------ copies


class Lineage:
    """What the lines of matches.jsonl say of how many steps an agent's optimizer has made: at each of its updates one,
    but for copies, which bring the donor's.
    """

    def __init__(self, directory: Path):
        self.since: dict[int, list[tuple[int, int]]] = {}  # by agent: from a version on, the steps at it
        pending: dict[str, Any] = {}
        for line in read_lines(directory / "matches.jsonl"):
            if "begin" in line:
                for agent, had in self.since.items():
                    self.since[agent] = [x for x in had if x[0] <= line["versions"].get(str(agent), 0)]
            elif "copy" in line:
                pending = line
            elif "copied" in line:
                steps = self.steps(pending["donor"], line["donor_version"])
                self.since.setdefault(pending["look"], []).append((line["version"], steps))

    def steps(self, agent: int, version: int) -> int:
        begun, steps = max((x for x in self.since.get(agent, []) if x[0] <= version), default=(0, 0))
        return steps + version - begun


def whole_agents(directory: Path) -> dict[int, int]:
    """Copies of each agent in the newest checkpoint, whose optimizers have made as many steps as the log says."""
    path, lineage = checkpoint.everything(directory)[-1], Lineage(directory)
    for agent, version in versions(directory).items():
        made = checkpoint.OpenCheckpoint(path).arrays(f"agents/{agent}/optimizer").get("step", 0)
        assert int(made) == lineage.steps(int(agent), version), (agent, version, lineage.since)
    return {a: sum(v <= versions(directory)[str(a)] for v, _ in had) for a, had in lineage.since.items()}


def test_agents_copy_each_other_also_in_a_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "SURE", 0.5)  # of two agents about every other look
    given = {**QUIET, "serial": False, "on": "thread", "env": "toy:rps", "agents": 3, "actors": 2, "exploit_every": 40}
    run = polyplay.train("league", run=str(tmp_path / "run"), steps=4000, games_per_matchup=10, **given)
    copies = read_object(run.directory / "league.json")["copies"]
    assert copies
    assert sum(whole_agents(run.directory).values()) == len(copies)
    rates = {x["values"]["learning_rate"] for x in copies}
    assert rates - {1e-3}
    saved = [
        checkpoint.OpenCheckpoint(checkpoint.everything(run.directory)[-1]).json(f"agents/{a}/learner") for a in "012"
    ]
    assert {x["hyperparameters"]["learning_rate"] for x in saved} <= {1e-3, *rates}
    assert max(x["hyperparameters"]["learning_rate"] != 1e-3 for x in saved)

    run = polyplay.resume(run.directory, steps=8000)
    more = read_object(run.directory / "league.json")["copies"]
    assert more[: len(copies)] == copies
    assert len(more) > len(copies)
    assert sum(whole_agents(run.directory).values()) == len(more)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": "toy:catch"}, "needs an environment with several players"),
        ({"lanes": 30, "players": 4}, "--lanes 30 given; allowed: positive multiples of --players 4"),
        ({"players": 3, "lanes": 30}, "--players 3 given; allowed: divisors and multiples of the 2 seats of a match"),
        ({"eval_every": 50}, "--eval-every 50 given, but mean return does not measure strength in self-play"),
        ({"until_return": -1.0}, "--until-return -1.0 given, but mean .*: leave it out; `polyplay tournament` rates"),
        ({"lanes": 34}, "--batch 16 given; allowed: 17"),
        ({"lag": 0, "batch": 32}, "with a --lag no more"),
        ({"exploit_every": 10, "agents": 1}, "--exploit-every: --agents 1 has no other agent to copy"),
        ({"learners": 3}, "at most one for each of --agents 2"),
        ({"opponents": "strong"}, "--opponents strong: must be latest, uniform, elo, or past:P"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line_and_nothing_is_written(given, said, tmp_path):
    with pytest.raises(UserError, match=said) as e:
        polyplay.train("league", run=str(tmp_path / "run"), steps=100, serial=True, **{"env": "toy:rps", **given})
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()


def test_metrics_say_whose_and_ratings(tmp_path):
    given = {**QUIET, "run": str(tmp_path / "run"), "env": "toy:skirmish", "agents": 2, "steps": 800}
    polyplay.train("league", dry_run=True, **given)
    assert not (tmp_path / "run").exists()
    run = polyplay.train("league", **given)
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert set(last["agent_return_means"]) == set(last["agent_elo"]) == {"0", "1"}
    with pytest.raises(UserError, match="--agent: '2' given, allowed: best, 0, 1"):
        _evaluate(run.directory, "2")
    with pytest.raises(UserError, match="--checkpoint: 'best' given, allowed: 0"):
        choose_checkpoint(run.directory, "best")
    with pytest.raises(UserError, match=r"--until-return 5\.0 given"):
        polyplay.resume(run.directory, steps=2000, until_return=5.0)
    assert _evaluate(run.directory, "best")["agent"] in (0, 1)
    assert _evaluate(run.directory, "1")["agent"] == 1


def test_a_turn_based_game_without_teams_is_rated(tmp_path):
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    given = {**QUIET, "env": "pettingzoo.classic.tictactoe_v3:env", "steps": 1000}
    run = polyplay.train("league", run=str(tmp_path / "run"), agents=2, **given)
    assert min(rated(run.directory).values()) > 12


def _evaluate(directory: Path, agent: str) -> dict[str, Any]:
    from polyplay.evaluation.evaluate import EvaluateOptions, evaluate

    return evaluate(directory, EvaluateOptions(episodes=4, agent=agent, device="cpu"))


TEAMS: dict[str, Any] = {"env": "toy:skirmish", "event_rewards": ("kill=1", "death=-0.5"), "network": "mlp"}
TEAMS["core_size"] = 16
TEAMS |= {"lanes": 16, "batch": 4, "unroll": 8, "memory": 0, "auxiliary": "reward", "optimizer": "adam"}
TEAMS |= {"tensorboard": False}
PAIR: dict[str, Any] = {**TEAMS, "agents": 2, "players": 2, "batch": 8, "evolve": False, "serial": True}


LONG = [pytest.param(period, 300, marks=pytest.mark.long) for period in (1, 5, 19)]


@pytest.mark.parametrize(("period", "updates"), [(5, 30), *LONG])
def test_acting_is_learning_to_the_bit(period, updates, tmp_path, monkeypatch):
    """With matches that end in mid-cycle and rollouts that begin between ticks."""
    seen = 0
    scored = WithAuxiliary.score

    def check(self: WithAuxiliary, out: Any, batch: Any, hyper: Any) -> Any:
        nonlocal seen
        seen += 1
        for name in ("logp", "value"):
            assert torch.equal(out[name], batch[name]), (seen, name)
        return scored(self, out, batch, hyper)

    monkeypatch.setattr(WithAuxiliary, "score", check)
    given = {**PAIR, "lag": 0, "lanes": 8, "batch": 4, "unroll": 19, "ranges": (f"period={period}",)}
    polyplay.train("ftw", run=str(tmp_path / "run"), steps=86 * updates, **given)
    assert seen >= updates


@dataclass(frozen=True)
class Recall(Toy):
    """Two against two: each is shown a cue for five steps and repeats it in the last one, six times in a match. The
    team that was right more often wins.
    """

    seats, teams, events, team_reward = 4, (0, 0, 1, 1), ("right", "wrong"), False
    obs, action = Field((3,), "float32"), Discrete(2)

    def reset(self, draw: Any, n: int) -> dict[str, np.ndarray]:
        cues = np.stack([draw() < 0.5 for _ in range(24)], 1).reshape(n, 6, 4).astype(np.int64)
        return {"here": np.ones((n, 4), bool), "cue": cues, "age": np.zeros(n, np.int64)}

    def step(self, s: dict[str, np.ndarray], action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        asked, age = s["age"] % 5 == 4, s["age"] + 1
        right = (self.cue(s) == action) & asked[:, None]
        events = np.stack([right, asked[:, None] & ~right], 2)
        lead = right[:, :2].sum(1) - right[:, 2:].sum(1)
        end = np.repeat((age == 30)[:, None], 4, 1)
        row = {"reward": np.stack([lead, lead, -lead, -lead], 1) / 2, "events": events}
        return {**s, "here": ~end, "age": age}, {**row, "terminated": end, "truncated": np.zeros_like(end)}

    def cue(self, s: dict[str, np.ndarray]) -> np.ndarray:
        return s["cue"][np.arange(len(s["age"])), np.minimum(s["age"] // 5, 5)]

    def see(self, s: dict[str, np.ndarray]) -> np.ndarray:
        phase, cue = np.repeat(s["age"][:, None] % 5, 4, 1), self.cue(s)
        return np.stack([cue == 0, cue == 1, phase == 4], 2).astype(np.float32)


RECALL: dict[str, Any] = {**TEAMS, "env": f"toy:{__name__}:Recall", "event_rewards": ("right=1", "wrong=-1")}
RECALL["agents"] = 2
RECALL |= {"players": 2, "lanes": 32, "batch": 16, "unroll": 19}
FAST = ("learning_rate=3e-3", "period=3", "kl_posterior_cost=1e-4", "kl_prior_cost=1e-5", "entropy_cost=1e-2")


def points_against_random(directory: Path, env: str) -> float:
    player = policy_player(Agent(directory, trust=True)._policy, PlayOptions(1, 3))
    return float(play_both_sides(Envs(env, 4), player, random_player(7), 100, 1).mean())


@pytest.mark.parametrize("on", ["thread", "process"])
def test_a_population_learns_to_win(on, tmp_path):
    """By an inner reward."""
    given = {**RECALL, "evolve": False, "ranges": FAST, "lag": 1, "normalize_advantage": True, "max_grad_norm": 0.5}
    run = polyplay.train("ftw", run=str(tmp_path / "run"), steps=18_000, on=on, **given)
    assert points_against_random(run.directory, RECALL["env"]) > 0.75


def learnt_with(directory: Path) -> list[dict[str, float]]:
    """The hyperparameters of the agents in the newest checkpoint."""
    newest = checkpoint.everything(directory)[-1]
    opened = checkpoint.OpenCheckpoint(newest)
    return [opened.json(f"agents/{agent}/learner")["hyperparameters"] for agent in checkpoint.agents_of(newest)]


def test_agents_evolve_apart_and_a_run_goes_on_with_what_they_became(tmp_path, monkeypatch):
    """Copies are frequent here: who is a little behind copies, and every value changes."""
    monkeypatch.setattr(rules, "SURE", 0.0)
    monkeypatch.setattr(_teams, "CHANCE", 1.0)
    given = {**RECALL, "serial": True, "exploit_every": 20, "games_per_matchup": 10}
    given |= {"ranges": ("learning_rate=log:1e-3:1e-2",)}
    run = polyplay.train("ftw", run=str(tmp_path / "run"), steps=8_000, **given)
    copies = read_object(run.directory / "league.json")["copies"]
    assert len(copies) >= 2
    ranges = {text.partition("=")[0]: text for text in RANGES}
    assert {*copies[0]["values"]} >= {*CORE, "learning_rate", "entropy_cost", "reward_right", "reward_wrong"}
    assert {*copies[0]["values"]} <= {*ranges, "reward_right", "reward_wrong"}
    for copy in copies:
        assert copy["values"] != copy["old"]
        assert 1e-3 <= copy["values"]["learning_rate"] <= 1e-2
        assert copy["values"]["period"] in range(5, 20)
        assert 0.1 <= copy["values"]["reward_right"] <= 1.0
        assert -1.0 <= copy["values"]["reward_wrong"] <= -0.1
    before = learnt_with(run.directory)
    newest = {copy["agent"]: copy["values"] for copy in copies}
    for agent, values in newest.items():
        assert {k: before[agent][k] for k in values} == values
    weights = Agent(run.directory, trust=True, agent=0)._policy.rewards.weights.tolist()
    assert weights == pytest.approx([before[0]["reward_right"], before[0]["reward_wrong"]])

    run = polyplay.resume(run.directory, steps=8_200)
    more = read_object(run.directory / "league.json")["copies"]
    assert more[: len(copies)] == copies
    if len(more) == len(copies):
        assert learnt_with(run.directory) == before


def test_copies_are_as_published():
    values, ranges, copies = _teams.agent_values(Config(), Envs("arena:ctf", 4))
    assert (copies.every, copies.exploit, copies.explore, rules.SURE) == (1000, "outplayed", "mutate", 0.7)
    assert {prior.chance for prior in copies.priors.values()} == {0.05}
    assert [name for name, prior in copies.priors.items() if prior.drawn] == ["period"]
    assert (ranges["reward_captured"].low, ranges["reward_opponent_captured"].high) == (0.1, -0.1)
    assert values["learning_rate"] == pytest.approx((1e-5 * 5e-3) ** 0.5)


def test_weights_are_drawn_near_points_where_ranges_say_so():
    config = Config(ranges=("points=log:0.5:2", "period=7"))
    values, ranges, copies = _teams.agent_values(config, Envs("arena:ctf", 4))
    captured, lost = ranges["reward_captured"], ranges["reward_opponent_captured"]
    assert (captured.low, captured.high, lost.low, lost.high) == (0.5, 2.0, -2.0, -0.5)
    assert "reward_teammate_returned" not in ranges
    assert (values["reward_teammate_returned"], values["period"]) == (0.0, 7.0)
    assert not any(prior.drawn for prior in copies.priors.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": "toy:rps", "rewards": "events"}, "--env: toy:rps given, which counts no events"),
        ({"event_rewards": ("flag=1",)}, "--event-rewards: flag=1 given, allowed: EVENT=WEIGHT, with an event of"),
        ({"ranges": ("period=0",)}, "--ranges: period from 0 to 0 given, allowed: from 1 to the 19 steps of --unroll"),
        ({"ranges": ("period=uniform:5:20",)}, "period from 5 to 20 given"),
        ({"ranges": ("speed=1",)}, "--ranges: speed=1 given, allowed: NAME=RANGE or NAME=VALUE, NAME one of"),
        ({"ranges": ("entropy_cost=log:2:1",)}, "--ranges entropy_cost=log:2:1: LOW 2 must be below HIGH 1"),
        ({"ranges": ("entropy_cost=much",)}, "'much' given, allowed: a number"),
        ({"auxiliary": "pixel"}, "--auxiliary pixel: takes one image of bytes, but the observations are float32"),
        ({"unroll": 2, "ranges": ("period=1",)}, "--unroll 2 given, allowed with --auxiliary reward: 3 or more"),
        ({"auxiliary": "sound"}, "--auxiliary: sound given, allowed: pixel, reward"),
        ({"env": "arena:ctf+size=7"}, "size must be an odd number from 9, so that two bases fit, to 99; got 7"),
        ({"env": "toy:catch", "rewards": "game"}, "needs an environment with several players"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_nothing_is_written(given, said, tmp_path):
    with pytest.raises(UserError, match=re.escape(said)) as e:
        polyplay.train("ftw", run=str(tmp_path / "run"), steps=100, **{**RECALL, "serial": True, **given})
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()
