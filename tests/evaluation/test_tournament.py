"""Elo ratings against a plain twin, by hand, and how often their intervals hold the truth."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyplay.cli import main
from polyplay.core import checkpoint
from polyplay.envs import Envs
from polyplay.evaluation.agent import RunAgent, find_agents
from polyplay.evaluation.matches import open_matches
from polyplay.evaluation.tournament import SCALE, TournamentOptions, play_tournament, rate
from polyplay.games.toys import RockPaperScissors, Skirmish
from polyplay.runs import load
from tests import made


def twin(points: np.ndarray, anchor: int, sweeps: int = 2_000) -> np.ndarray:
    """Hunter's (2004) iteration for Bradley and Terry's model: strength = points / Σ games / (own + other's)."""
    strength, games = np.ones(len(points)), points + points.T
    for _ in range(sweeps):
        for i in range(len(points)):
            strength[i] = points[i].sum() / (games[i] / (strength[i] + strength)).sum()
    return 400 * np.log10(strength / strength[anchor])


def likelihood(elo: np.ndarray, points: np.ndarray) -> float:
    return float((points * -np.log(1 + 10 ** ((elo[None] - elo[:, None]) / 400))).sum())


def tournament(true: np.ndarray, games: int, rng: np.random.Generator) -> np.ndarray:
    points = np.zeros((len(true), len(true)))
    for i in range(len(true)):
        for j in range(i):
            won = rng.binomial(games, 1 / (1 + 10 ** ((true[j] - true[i]) / 400)))
            points[i, j], points[j, i] = won, games - won
    return points


def test_two_players_by_hand():
    low, high = rate(["low", "high"], np.array([[0, 10], [90, 0]]), anchor="low", prior=0)
    assert (low["elo"], low["low"], low["high"]) == (0, 0, 0)
    assert high["elo"] == pytest.approx(400 * np.log10(9))
    assert high["high"] - high["elo"] == pytest.approx(1.96 * SCALE / np.sqrt(100 * 0.9 * 0.1), rel=1e-4)
    assert high["elo"] - high["low"] == pytest.approx(high["high"] - high["elo"])
    assert high["games"] == 100
    winner, _ = rate(["a", "b"], np.array([[0, 20], [0, 0]]), anchor="b")
    assert winner["elo"] == pytest.approx(400 * np.log10(20.5 / 0.5)), "who won every game is finite by the prior"


@pytest.mark.parametrize("seed", range(2))
def test_ratings_are_the_plain_twins_and_intervals_the_likelihoods(seed):
    rng = np.random.default_rng(seed)
    points = tournament(np.array([0.0, 150.0, -80.0, 300.0, 40.0]), 30, rng)
    if seed % 2:
        points[0, 3] = points[3, 0] = 0  # these never met
    points[1, 2], points[2, 1] = points[1, 2] + 0.5, points[2, 1] + 0.5  # a draw
    found = rate(list("abcde"), points, anchor="b", prior=0)
    elo = np.array([r["elo"] for r in found])
    assert elo == pytest.approx(twin(points, 1), abs=1e-3)
    free, step = [0, 2, 3, 4], 0.1
    curvature = np.zeros((4, 4))
    for i, a in enumerate(free):
        for j, b in enumerate(free):
            u, v = np.eye(5)[a] * step, np.eye(5)[b] * step
            corners = [likelihood(elo + x * u + y * v, points) * x * y for x in (-1, 1) for y in (-1, 1)]
            curvature[i, j] = -sum(corners) / (4 * step**2)
    errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
    assert [r["high"] - r["elo"] for r in found if r["name"] != "b"] == pytest.approx(1.95996 * errors, rel=1e-3)


class FourTeams(Skirmish):
    teams = (0, 1, 2, 3)


class OneTeam(RockPaperScissors):
    teams = (0, 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SOLO and LEAGUE, of two agents with a past agent, play toy:skirmish, others other games. RUN has two
    checkpoints.
    """
    root = tmp_path_factory.mktemp("runs")
    games = {"SOLO": "toy:skirmish", "LEAGUE": "toy:skirmish", "RPS": "toy:rps", "LONG": "toy:rps+rounds=3"}
    games |= {"FOUR": f"toy:{__name__}:FourTeams", "COOP": f"toy:{__name__}:OneTeam", "CATCH": "toy:catch"}
    games |= {"RUN": "game:tic_tac_toe", "OTHER": "game:connect_four"}
    for name, env in games.items():
        made.run(root / name, env, updates=(3, 7) if name == "RUN" else (7,), network="mlp", hidden=(8,))
    _make_league(root / "LEAGUE")
    return root


def _make_league(run: Path) -> None:
    """A second agent, and a past agent."""
    page, settings, options, _ = load.load_run(run)
    policy = page.build(settings, load.crew_of(options)).policy
    part = checkpoint.CheckpointPart(run, 9)
    for agent in (0, 1):
        torch.manual_seed(agent)
        arrays = {k: v.numpy() for k, v in policy().state_dict().items()}
        part.arrays(checkpoint.policy_name(agent), arrays)
    checkpoint.complete(run, 9, {"steps": 180, "frames": 180, "updates": 9})
    rated = [{"kind": "agent", "agent": agent, "elo": 900.0 + 200 * agent} for agent in (0, 1)]
    (run / "league.json").write_text(json.dumps({"players": rated}))
    (run / "past_agents").mkdir()
    checkpoint.write_arrays(run / "past_agents" / "0-5.safetensors", arrays)


@pytest.fixture
def words(runs: Path) -> Callable[[str], list[str]]:
    """The words of a command line; those that begin with a run's name become paths."""
    known = [path.name for path in runs.iterdir()]

    def made_of(text: str) -> list[str]:
        return [str(runs / word) if word.split("/")[0].split(":")[0] in known else word for word in text.split()]

    return made_of


def test_ratings_are_those_of_the_points(runs: Path):
    told, run = list[str](), runs / "RUN"
    earlier = str(run / "checkpoints" / "000000000003-steps-60")
    names = [str(run), earlier, "mcts:100"]
    found = play_tournament(names, TournamentOptions(anchor="random", matches=10), told.append)
    assert found["game"] == "game:tic_tac_toe"
    assert [row["name"] for row in found["players"]] == [*names, "random"]
    assert [found["payoff"][i][i] for i in range(4)] == [None] * 4
    points = 10 * np.nan_to_num(np.array(found["payoff"], float))
    assert (points + points.T == 10 - 10 * np.eye(4)).all()
    assert [row["points"] for row in found["players"]] == points.sum(1).tolist()
    for row, rating in zip(found["players"], rate([*names, "random"], points, "random"), strict=True):
        assert (row["elo"], row["low"], row["high"]) == (rating["elo"], rating["low"], rating["high"])
    assert found["players"][3]["elo"] == 0
    assert found["players"][2]["elo"] == max(row["elo"] for row in found["players"])
    assert [found["players"][i]["checkpoint"] for i in (0, 1)] == ["000000000007-steps-140", "000000000003-steps-60"]
    assert len(told) == 6
    assert told[2].endswith(" random")


def test_the_same_tournament_has_the_same_payoffs(runs: Path):
    names, options = [str(runs / "RUN"), "mcts:5"], TournamentOptions(matches=20)
    once, other = (play_tournament(names, replace(options, seed=seed)) for seed in (0, 1))
    again = play_tournament(names, replace(options, opening_plies=2))
    assert (once["opening_plies"], once["payoff"]) == (2, again["payoff"])
    assert once["payoff"] != other["payoff"]
    assert play_tournament(names, replace(options, matches=2, opening_plies=3))["opening_plies"] == 3


def test_every_agent_of_a_run_is_a_player(runs: Path, words: Callable[[str], list[str]]):
    told = list[str]()
    names = words("LEAGUE LEAGUE/past_agents/0-5.safetensors bot:opposite random")
    found = play_tournament(names, TournamentOptions(matches=8, anchor="bot:opposite"), told.append)
    league = runs / "LEAGUE"
    everyone = [f"{league}:0", f"{league}:1", *names[1:]]
    assert [row["name"] for row in found["players"]] == everyone
    assert (found["game"], found["matches"], found["opening_plies"]) == ("toy:skirmish", 8, None)
    payoff = np.array(found["payoff"], float)
    off = ~np.eye(5, dtype=bool)
    assert (payoff + payoff.T)[off].tolist() == [1.0] * 20
    assert payoff[3, 4] < 0.5  # random units shoot at the same enemy half of the time, the bot's never
    digests = [row.get("checkpoint_sha256") for row in found["players"]]
    assert digests[0] != digests[1]
    assert digests[3:] == [None, None]
    assert (found["players"][2]["checkpoint"], found["players"][3]["elo"]) == ("0-5.safetensors", 0)
    assert len(told) == 10


def test_an_agent_plays_with_its_own_weights(runs: Path, words: Callable[[str], list[str]]):
    """The past agent has the weights of agent 1: as far as seeds and opponents are the same, so are the points."""
    of = [
        play_tournament([*words(name), "bot:opposite"], TournamentOptions(matches=40, greedy=True))["payoff"]
        for name in (
            "LEAGUE:1",
            "LEAGUE/past_agents/0-5.safetensors",
            "LEAGUE/checkpoints/000000000009-steps-180:1",
            "LEAGUE:best",
            "LEAGUE:0",
        )
    ]
    assert of[0] == of[1] == of[2] == of[3]
    assert of[0] != of[4]


def test_a_past_self_is_found_from_its_own_folder(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs / "LEAGUE" / "past_agents")
    [found] = find_agents("0-5.safetensors")
    assert (found.name, found.weights.name) == ("0-5.safetensors", "0-5.safetensors")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RUN", "tournament takes at least two players: polyplay tournament RUN RUN …, or RUN random"),
        ("random mcts:5", "random, mcts:5 given, but the game comes from a run: give the directory of one"),
        ("RUN mtcs:5", "tournament: mtcs:5 given, allowed: random, mcts:N with N simulations"),
        ("RUN OTHER", "tournament: OTHER plays game:connect_four, and RUN game:tic_tac_toe: name runs of one game"),
        ("RUN CATCH", "tournament: CATCH plays toy:catch, and RUN game:tic_tac_toe: name runs of one game"),
        ("CATCH random", "CATCH plays toy:catch, which has 1 seat of 1 team: a tournament needs two teams of seats"),
        ("RUN perfect", "tournament: perfect given, but there is no solver for game:tic_tac_toe"),
        ("RUN random --matches 3", "--matches 3 given, but half of them are played on each side: give an even number"),
        ("RUN --anchor nobody", "tournament: nobody given, allowed: random"),
        ("RPS LONG", "LONG plays toy:rps+rounds=3, and RPS toy:rps: name runs of one game"),
        (
            "FOUR random",
            "which has 4 seats of 4 teams: a tournament needs two teams of seats that have the same spaces",
        ),
        ("COOP random", "which has 2 seats of 1 team: a tournament needs two teams of seats"),
        ("RPS bot:x", "tournament: bot:x given, allowed for toy:rps: random, or the directory of a run"),
        ("SOLO bto", "tournament: bto given, allowed for toy:skirmish: random, bot:opposite, bot:focus"),
        ("SOLO bot:opposite --simulations 5", "--simulations is for board games (game:NAME), SOLO plays toy:skirmish"),
        ("SOLO bot:opposite --opening-plies 2", "--opening-plies is for board games (game:NAME)"),
        ("LEAGUE:7 random", "LEAGUE:7: '7' given, allowed: best, 0, 1"),
        ("LEAGUE LEAGUE:0", "LEAGUE:0 given twice: name each player once"),
        ("LEAGUE --anchor LEAGUE", "--anchor LEAGUE given, allowed: one of LEAGUE:0, LEAGUE:1"),
        ("LEAGUE/past_agents/4-4.safetensors random", "4-4.safetensors: no such file of a past agent"),
        (
            "LEAGUE/checkpoints/000000000009-steps-180/agents/0/policy.safetensors random",
            "given, allowed: the file of a",
        ),
        ("SOLO random --env toy:rps", "--env toy:rps given, but SOLO plays toy:skirmish: name an environment"),
        ("SOLO random --env toy:nothing", "--env: unknown toy"),
        ("SOLO random --env game:tic_tac_toe", "--env game:tic_tac_toe does not apply to board games: leave it out"),
    ],
)
def test_mistakes_are_one_line(
    text: str, says: str, runs: Path, words: Callable[[str], list[str]], capsys: pytest.CaptureFixture
):
    before = sorted(runs.rglob("*"))
    assert main.main(["tournament", *words(text)]) == 2
    *executed, line = capsys.readouterr().err.splitlines()  # of toys of this module
    assert len(executed) == text.startswith(("FOUR", "COOP"))
    assert says in line.replace(f"{runs}{os.sep}", "")
    assert sorted(runs.rglob("*")) == before


def test_seats_of_other_spaces_are_refused(runs: Path):
    [found] = find_agents(str(runs / "SOLO"))
    envs = Envs("toy:skirmish", 4)
    envs.__dict__["spec"] = replace(envs.spec, kinds=(0, 0, 1, 1))
    wired: Any = replace(found.wired, envs=envs)
    entrants = [("SOLO", RunAgent("SOLO", wired, found.weights)), ("random", None)]
    with pytest.raises(
        Exception, match=r"SOLO plays toy:skirmish, which has 4 seats of 2 teams: .* have the same spaces"
    ):
        open_matches(entrants, TournamentOptions())


def test_env_is_what_is_played(runs: Path, words: Callable[[str], list[str]]):
    """Instead of the runs' own, which then need not be the same."""
    options = TournamentOptions(matches=4, env="toy:rps+rounds=5")
    assert play_tournament(words("RPS LONG"), options)["game"] == "toy:rps+rounds=5"
