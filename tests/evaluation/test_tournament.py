"""A round robin: everyone meets everyone, ratings are those of the points, mistakes are one line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.evaluation.tournament import TournamentOptions, play_tournament, rate
from tests import made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made.run(tmp_path / "run", "game:tic_tac_toe", updates=(3, 7), network="mlp")


def test_ratings_are_those_of_the_points(run: Path):
    told = list[str]()
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
        assert (row["elo"], row["low"], row["high"]) == (rating.elo, rating.low, rating.high)
    assert found["players"][3]["elo"] == 0
    assert found["players"][2]["elo"] == max(row["elo"] for row in found["players"])
    assert [found["players"][i]["checkpoint"] for i in (0, 1)] == ["000000000007-steps-140", "000000000003-steps-60"]
    assert len(told) == 6
    assert told[2].endswith(" random")


def test_the_same_tournament_has_the_same_payoffs(run: Path):
    once, again, other = (
        play_tournament([str(run), "mcts:5"], TournamentOptions(matches=20, seed=seed))["payoff"] for seed in (0, 0, 1)
    )
    assert once == again
    assert once != other


def test_opening_plies_are_two_unless_given(run: Path):
    of = [
        play_tournament([str(run), "random"], TournamentOptions(matches=2, opening_plies=plies))
        for plies in (None, 2, 3)
    ]
    assert [found["opening_plies"] for found in of] == [2, 2, 3]
    assert of[0]["payoff"] == of[1]["payoff"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("RUN", "tournament takes two players at least: polyplay tournament RUN RUN …, or RUN random"),
        ("", "tournament takes two players at least"),
        ("random mcts:5", "random, mcts:5 given, and none is the directory of a run, which says what is played"),
        ("RUN RUN", "given twice: name each player once"),
        ("RUN mtcs:5", "tournament: mtcs:5 given, allowed: random, mcts:N with N simulations"),
        ("RUN OTHER", "tournament: OTHER plays game:connect_four, and RUN game:tic_tac_toe: name runs of one game"),
        ("RUN CATCH", "tournament: CATCH plays toy:catch, and RUN game:tic_tac_toe: name runs of one game"),
        ("CATCH random", "CATCH plays toy:catch, which has one player: a tournament needs two teams of seats"),
        ("RUN perfect", "tournament: perfect given, but there is no solver for game:tic_tac_toe"),
        ("RUN random --matches 3", "--matches 3 given, but half of them are played on each side: give an even number"),
        ("RUN --anchor nobody", "tournament: nobody given, allowed: random"),
    ],
)
def test_mistakes_are_one_line(words: str, says: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    made.run(tmp_path / "OTHER", "game:connect_four", network="mlp")
    made.run(tmp_path / "CATCH", network="mlp")
    paths = {"RUN": str(run), "OTHER": str(tmp_path / "OTHER"), "CATCH": str(tmp_path / "CATCH")}
    assert main.main(["tournament", *(paths.get(word, word) for word in words.split())]) == 2
    [line] = capsys.readouterr().err.splitlines()
    for word, path in paths.items():
        says = re.sub(rf"\b{word} plays", f"{path} plays", says).replace(f"and {word} ", f"and {path} ")
    assert says in line
