"""Tournaments of runs on environments with two teams: agents, past selves, bots, and mistakes."""

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
from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.evaluation.agent import RunAgent, find_agents
from polyplay.evaluation.matches import Entrant, open_matches
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.games.toys import RockPaperScissors
from polyplay.runs import load
from tests import made


class FourTeams(RockPaperScissors):
    seats = 4


class OneTeam(RockPaperScissors):
    teams = (0, 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SOLO and LEAGUE, of two agents with a past self, play toy:skirmish, others other games."""
    root = tmp_path_factory.mktemp("runs")
    games = {"SOLO": "toy:skirmish", "LEAGUE": "toy:skirmish", "RPS": "toy:rps", "LONG": "toy:rps+rounds=3"}
    games |= {"FOUR": f"toy:{__name__}:FourTeams", "COOP": f"toy:{__name__}:OneTeam", "CATCH": "toy:catch"}
    for name, env in games.items():
        made.run(root / name, env, network="mlp", hidden=(8,))
    _make_league(root / "LEAGUE")
    return root


def _make_league(run: Path) -> None:
    """A second agent, and a past self."""
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
    (run / "selves").mkdir()
    checkpoint.write_arrays(run / "selves" / "0-5.safetensors", arrays)


@pytest.fixture
def words(runs: Path) -> Callable[[str], list[str]]:
    """The words of a command line; those that begin with a run's name become paths."""
    known = [path.name for path in runs.iterdir()]

    def made_of(text: str) -> list[str]:
        return [str(runs / word) if word.split("/")[0].split(":")[0] in known else word for word in text.split()]

    return made_of


def test_every_agent_of_a_run_is_a_player(runs: Path, words: Callable[[str], list[str]]):
    told = list[str]()
    names = words("LEAGUE LEAGUE/selves/0-5.safetensors bot:opposite random")
    found = play_tournament(names, TournamentOptions(matches=20, anchor="bot:opposite"), told.append)
    league = runs / "LEAGUE"
    everyone = [f"{league}:0", f"{league}:1", *names[1:]]
    assert [row["name"] for row in found["players"]] == everyone
    assert (found["game"], found["matches"], found["opening_plies"]) == ("toy:skirmish", 20, None)
    payoff = np.array(found["payoff"], float)
    off = ~np.eye(5, dtype=bool)
    assert (payoff + payoff.T)[off].tolist() == [1.0] * 20
    assert payoff[3, 4] < 0.5  # random units shoot at the same enemy half of the time, the bot's never
    digests = [row.get("checkpoint_sha256") for row in found["players"]]
    assert digests[0] != digests[1]
    assert digests[3:] == [None, None]
    assert found["players"][2]["checkpoint"] == "0-5.safetensors"
    assert found["players"][3]["elo"] == 0
    assert len(told) == 10


def test_an_agent_plays_with_its_own_weights(runs: Path, words: Callable[[str], list[str]]):
    """The past self has the weights of agent 1: as far as seeds and opponents are the same, so are the points."""
    of = [
        play_tournament([*words(name), "bot:opposite"], TournamentOptions(matches=40, greedy=True))["payoff"]
        for name in (
            "LEAGUE:1",
            "LEAGUE/selves/0-5.safetensors",
            "LEAGUE/checkpoints/000000000009-steps-180:1",
            "LEAGUE:best",
            "LEAGUE:0",
        )
    ]
    assert of[0] == of[1] == of[2] == of[3]
    assert of[0] != of[4]


def test_a_past_self_is_found_from_its_own_folder(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs / "LEAGUE" / "selves")
    [found] = find_agents("0-5.safetensors")
    assert (found.name, found.weights.name) == ("0-5.safetensors", "0-5.safetensors")


def test_weights_in_another_folder_are_no_past_self(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(runs / "LEAGUE" / "checkpoints" / "000000000009-steps-180" / "agents" / "0")
    assert main.main(["tournament", "policy.safetensors", "random"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "policy.safetensors given, allowed: the file of a past self where its run has it, in RUN/selves" in line


def test_the_same_seed_has_the_same_result(words: Callable[[str], list[str]]):
    names = words("LEAGUE SOLO")
    once, again, other = (play_tournament(names, TournamentOptions(matches=40, seed=s))["payoff"] for s in (0, 0, 1))
    assert once == again
    assert once != other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SOLO", "tournament takes two players at least: polyplay tournament RUN RUN …, or RUN random"),
        ("SOLO RPS", "RPS plays toy:rps, and SOLO toy:skirmish: name runs of one game"),
        ("RPS LONG", "LONG plays toy:rps+rounds=3, and RPS toy:rps: name runs of one game"),
        ("CATCH random", "CATCH plays toy:catch, which has one player: a tournament needs two teams of seats"),
        ("FOUR random", "whose 4 seats are of 4 teams: a tournament needs two teams of seats, or a board game"),
        ("COOP random", "whose 2 seats are of 1 team: a tournament needs two teams of seats"),
        ("RPS bot:x", "tournament: bot:x given, allowed for toy:rps: random, or the directory of a run"),
        (
            "SOLO bto",
            "tournament: bto given, allowed for toy:skirmish: random, bot:opposite, bot:focus",
        ),
        (
            "SOLO bot:opposite --matches 5",
            "--matches 5 given, but half of them are played on each side: give an even number",
        ),
        ("SOLO bot:opposite --simulations 5", "--simulations is for board games (game:NAME), SOLO plays toy:skirmish"),
        ("SOLO bot:opposite --opening-plies 2", "--opening-plies is for board games (game:NAME)"),
        ("LEAGUE:7 random", "LEAGUE:7: '7' given, allowed: best, 0, 1"),
        ("LEAGUE LEAGUE:0", "LEAGUE:0 given twice: name each player once"),
        ("LEAGUE --anchor LEAGUE", "--anchor LEAGUE given, allowed: one of LEAGUE:0, LEAGUE:1"),
        ("LEAGUE/selves/4-4.safetensors random", "4-4.safetensors: there is no such file of a past self"),
        ("SOLO bot:opposite --picture x.gif", "--picture: x.gif given, allowed: a file .png, .svg, .pdf"),
        ("SOLO bot:opposite --games 6", "--games"),
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
    entrants = [Entrant("SOLO", RunAgent("SOLO", wired, found.weights)), Entrant("random")]
    with pytest.raises(Exception, match="SOLO plays toy:skirmish, whose seats have different spaces"):
        open_matches(entrants, TournamentOptions())


def test_json_is_one_object(words: Callable[[str], list[str]], capsys: pytest.CaptureFixture):
    assert main.main(["tournament", *words("SOLO bot:opposite"), "--matches", "4", "--json", "--greedy"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["matches"], found["greedy"], len(found["players"])) == (4, True, 2)
    assert found["payoff"][0][0] is None


def test_env_is_what_is_played(runs: Path, words: Callable[[str], list[str]]):
    """Instead of the runs' own, which then need not be the same."""
    options = TournamentOptions(matches=4, env="toy:rps+rounds=5")
    assert play_tournament(words("RPS LONG"), options)["game"] == "toy:rps+rounds=5"
    with pytest.raises(UserError, match=r"--env toy:rps given, but .*SOLO plays toy:skirmish: name an environment"):
        play_tournament(words("SOLO random"), TournamentOptions(env="toy:rps"))
    with pytest.raises(UserError, match="--env: unknown toy"):
        play_tournament(words("SOLO random"), TournamentOptions(env="toy:nothing"))
    with pytest.raises(UserError, match="--env game:tic_tac_toe given, but board games are as they are: leave it out"):
        play_tournament(words("SOLO random"), TournamentOptions(env="game:tic_tac_toe"))
