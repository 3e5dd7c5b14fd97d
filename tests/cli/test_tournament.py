"""What `polyplay tournament` prints of a result."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from polyplay.cli import main
from polyplay.cli import tournament as verb
from polyplay.core.files import Row
from polyplay.evaluation.tournament import rate


def made_result(n: int, matches: int = 40) -> Row:
    """Later players are better."""
    names = [f"runs/league/of/very/many/agents:{i}" for i in range(n)]
    points = np.zeros((n, n))
    for i, j in combinations(range(n), 2):
        points[i, j] = np.round(2 * matches * (i + 1) / (i + j + 2)) / 2
        points[j, i] = matches - points[i, j]
    players = [{**r, "points": float(p)} for r, p in zip(rate(names, points, names[0]), points.sum(1), strict=True)]
    payoff = [[None if i == j else points[i, j] / matches for j in range(n)] for i in range(n)]
    told = {"game": "toy:skirmish", "anchor": names[0], "matches": matches, "opening_plies": None}
    return {**told, "players": players, "payoff": payoff}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Any:
    """Lines that the verb prints on a terminal so wide."""

    def of(found: Row, width: int, *more: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(verb, "play_tournament", lambda names, options, told: found)
        assert main.main(["tournament", "a", "b", *more]) == 0
        return capsys.readouterr().out.splitlines()

    return of


def test_the_best_player_comes_first(shown: Any):
    lines = shown(made_result(3), 100)
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[:2] for row in rows[:3]] == [[str(k), f"runs/league/of/very/many/agents:{3 - k}"] for k in (1, 2, 3)]
    assert (rows[2][2:4], rows[3], rows[4]) == (["0", "anchor"], ["1", "2", "3"], ["1", "–", "0.60", "0.75"])
    assert lines[-1] == "toy:skirmish: 40 matches per pair of players, half on each side"


@pytest.mark.parametrize("width", [48, 80])
def test_narrow_terminals_fold_names_and_cut_no_figure(width: int, shown: Any):
    for n in (4, 30):
        lines = shown(made_result(n), width)
        assert f"agents:{n - 1}" in "".join(line[3:].strip().split("  ")[0] for line in lines[3:8])
        assert max(map(len, lines[: lines.index("points per match of row against column")])) <= width
        assert [len(line.split()) for line in lines if line.split()[:1] == [str(n)]][-1] == n + 1
