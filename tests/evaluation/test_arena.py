"""A round robin: everyone meets everyone, ratings are those of the points, mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.evaluation.arena import ArenaOptions, play_arena
from polyplay.evaluation.elo import rate
from tests import made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made.run(tmp_path / "run", "game:tic_tac_toe", updates=(3, 7), network="mlp")


def test_ratings_are_those_of_the_points(run: Path):
    told = list[str]()
    earlier = str(run / "checkpoints" / "000000000003-steps-60")
    names = [str(run), earlier, "mcts:100"]
    found = play_arena(names, ArenaOptions(anchor="random", games=10), told.append)
    assert found["game"] == "game:tic_tac_toe"
    assert [row["name"] for row in found["players"]] == [*names, "random"]
    points = np.array(found["points"])
    assert (points + points.T == 10 - 10 * np.eye(4)).all()
    assert [row["points"] for row in found["players"]] == points.sum(1).tolist()
    for row, rating in zip(found["players"], rate([*names, "random"], points, "random"), strict=True):
        assert (row["elo"], row["low"], row["high"]) == (rating.elo, rating.low, rating.high)
    assert found["players"][3]["elo"] == 0
    assert found["players"][2]["elo"] == max(row["elo"] for row in found["players"])
    assert [found["players"][i]["checkpoint"] for i in (0, 1)] == ["000000000007-steps-140", "000000000003-steps-60"]
    assert len(told) == 6
    assert told[2].endswith(" random")


def test_the_same_arena_has_the_same_points(run: Path):
    once, again, other = (
        play_arena([str(run), "mcts:5"], ArenaOptions(games=20, seed=seed))["points"] for seed in (0, 0, 1)
    )
    assert once == again
    assert once != other


def test_the_table_and_the_json(run: Path, capsys: pytest.CaptureFixture):
    words = ["arena", str(run), "random", "--games", "4", "--opening-plies", "1"]
    assert main.main(words) == 0
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert "game:tic_tac_toe: 4 games of every two players, 1 random plies first" in out
    assert "anchor" in out
    assert main.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["anchor"], found["games"]) == (str(run), 4)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("RUN", "arena takes two players at least: polyplay arena RUN RUN …, or RUN --anchor mcts:100"),
        ("", "arena takes two players at least"),
        ("random mcts:5", "random, mcts:5 given, and none is the directory of a run, which says what is played"),
        ("RUN RUN", "given twice: name each player once"),
        ("RUN mtcs:5", "arena: mtcs:5 given, allowed: random, mcts:N with N simulations"),
        ("RUN OTHER", "it plays game:connect_four; a match is of one game: give a run of game:tic_tac_toe"),
        ("RUN CATCH", "plays toy:catch, and matches are of board games (game:NAME)"),
        ("RUN perfect", "arena: perfect given, but game:tic_tac_toe has no solver"),
        ("RUN random --games 3", "--games 3 given, but both colours play every opening: give an even number"),
        ("RUN --anchor nobody", "arena: nobody given, allowed: random"),
    ],
)
def test_mistakes_are_one_line(words: str, says: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    made.run(tmp_path / "OTHER", "game:connect_four", network="mlp")
    made.run(tmp_path / "CATCH", network="mlp")
    paths = {"RUN": str(run), "OTHER": str(tmp_path / "OTHER"), "CATCH": str(tmp_path / "CATCH")}
    assert main.main(["arena", *(paths.get(word, word) for word in words.split())]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line
