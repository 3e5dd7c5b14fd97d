from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polyplay.cli.population import GAMES, Piece, running_mean, score_pieces, value_steps
from polyplay.population.store import read_lineage
from polyplay.runs.directory import read_population
from tests.populations import MadePopulation


def slow_means(x: list[float], y: list[float], window: int) -> list[tuple[float, float]]:
    """After each game, the mean of the last `window`; from the tenth game on, and one for each step."""
    found: dict[float, float] = {}
    for i in range(len(x)):
        if i + 1 >= min(GAMES, len(x)):
            found[x[i]] = float(np.mean(y[max(0, i + 1 - window) : i + 1]))
    return list(found.items())


def test_running_means_are_what_a_slow_twin_says():
    rng = np.random.default_rng(0)
    for n in (1, 3, 9, 10, 11, 57):
        for window in (10, 25):
            x = np.sort(rng.integers(0, 40, n)).astype(float)
            y = rng.standard_normal(n)
            piece = running_mean(Piece(x, y), window)
            assert np.allclose(list(zip(piece.x, piece.y, strict=True)), slow_means(list(x), list(y), window))


def test_running_means_of_nothing_are_nothing():
    piece = running_mean(Piece(np.zeros(0), np.zeros(0)), 10)
    assert (len(piece.x), len(piece.y)) == (0, 0)


def test_a_long_curve_has_few_points_and_keeps_its_ends():
    piece = running_mean(Piece(np.arange(10_000.0), np.arange(10_000.0)), 100)
    assert len(piece.x) == 400
    assert (piece.x[0], piece.x[-1], piece.y[-1]) == (9.0, 9999.0, np.mean(np.arange(9900, 10_000)))


def test_a_curve_is_cut_where_a_member_copies(tmp_path: Path):
    made = MadePopulation(members=6)
    for _ in range(40):
        made.turn()
    run = made.write(tmp_path / "run")
    rows, population = read_lineage(run), read_population(run)
    copies = {m: [r["steps"] for r in rows if r["member"] == m and r["donor"] is not None] for m in range(6)}
    assert max(map(len, copies.values())) > 0
    for member, steps in copies.items():
        pieces = score_pieces(run, population, rows, member)
        assert len(pieces) == len(steps) + 1
        for piece, begin, end in zip(pieces, [0, *steps], [*steps, np.inf], strict=True):
            assert np.all((piece.x > begin) & (piece.x <= end))
    member = max(copies, key=lambda m: len(copies[m]))
    first = score_pieces(run, population, rows, member)[0]
    games = [row["episodic_return"] for row in made.members[member].rows if row["steps"] <= copies[member][0]]
    window = max(GAMES, len(made.members[member].rows) // 40)
    assert first.y[-1] == pytest.approx(np.mean(games[-window:]))


def test_without_games_a_curve_is_that_of_decisions_and_with_evaluations_theirs(tmp_path: Path):
    made = MadePopulation(members=3, exploit="none")
    for _ in range(9):
        made.turn()
    run = made.write(tmp_path / "run")
    rows, population = read_lineage(run), read_population(run)
    for path in run.glob("members/*/episodes.jsonl"):
        path.unlink()
    (piece,) = score_pieces(run, population, rows, 1)
    own = [row for row in rows if row["member"] == 1 and row["score"] is not None]
    assert list(zip(piece.x, piece.y, strict=True)) == [(row["steps"], row["score"]) for row in own]
    row = {"frames": 4, "wall_seconds": 1.0, "steps": 1, "episodic_return_mean": 7.0}
    (run / "members" / "01" / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
    (piece,) = score_pieces(run, population | {"score": "evaluations"}, rows, 1)
    assert (list(piece.x), list(piece.y)) == ([1.0], [7.0])


def test_values_hold_from_a_decision_to_the_next():
    rows = [
        {"member": 0, "steps": 0, "new": {"a": 1}},
        {"member": 1, "steps": 0, "new": {"a": 5}},
        {"member": 0, "steps": 10, "new": {"a": 2}},
        {"member": 0, "steps": 20, "new": {"a": 3}},
    ]
    assert value_steps(rows, {"member": 0, "steps": 20}, "a") == [(0, 10, 1), (10, 20, 2)]
    assert value_steps(rows, {"member": 0, "steps": 25}, "a")[-1] == (20, 25, 3)
    assert value_steps(rows, {"member": 0, "steps": 25}, "b") == []
