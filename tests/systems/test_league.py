"""Leagues as users run them: each agent learns by itself, goes on where it was, and says whose return is which."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import polyplay
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, read_object
from polyplay.population.league_log import CopyRule
from polyplay.runs.load import choose_checkpoint
from polyplay.systems import league

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
    """What the lines of matches.jsonl say of how many steps an agent's optimiser has made: at each of its updates one,
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
    """Copies of each agent in the newest checkpoint, whose optimisers have made as many steps as the log says."""
    path, lineage = checkpoint.everything(directory)[-1], Lineage(directory)
    for agent, version in versions(directory).items():
        made = checkpoint.OpenCheckpoint(path).arrays(f"agents/{agent}/optimizer").get("step", 0)
        assert int(made) == lineage.steps(int(agent), version), (agent, version, lineage.since)
    return {a: sum(v <= versions(directory)[str(a)] for v, _ in had) for a, had in lineage.since.items()}


EAGER = partial(CopyRule, sure=0.5)  # of two agents about every other look


def test_agents_copy_each_other_also_in_a_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(league, "CopyRule", EAGER)
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
        ({"eval_every": 50}, "--eval-every 50 given, but agents that play each other have no return to be judged by"),
        ({"until_return": -1.0}, "--until-return -1.0 given, but agents .*: leave it out; `polyplay tournament` rates"),
        ({"lanes": 34}, r"batch 16 \(default\); allowed: 17"),
        ({"lag": 0, "batch": 32}, "with a --lag no more"),
        ({"exploit_every": 10, "agents": 1}, "--exploit-every: given, but --agents 1 has no other to copy"),
        ({"learners": 3}, "at most one for each of --agents 2"),
        ({"opponents": "strong"}, "--opponents: strong given; allowed: latest, uniform, elo, or past:P"),
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
    with pytest.raises(
        UserError, match=r"--checkpoint: .*run is a league, which has no best one: its agents play each other; leave"
    ):
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
