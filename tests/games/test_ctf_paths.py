"""Shortest paths against a plain search, and bodies that walk them by the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.games.ctf_maps import flood, next_cell, walks_straight, waypoint
from polyplay.games.ctf_rules import hits_wall
from tests.games.test_ctf_maps import Map, cell_of, free_cells, moves_from

MAPS = st.builds(Map, st.integers(0, 2**63), st.booleans(), st.sampled_from((9, 13, 21)))


def flooded(grid: np.ndarray, target: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The moves of all cells [N, N], and the numbers of those that were reached, in order."""
    N = len(grid)
    moves, order = np.full(N * N, 77), np.full(N * N, -7)
    n = flood(grid, target[0] * N + target[1], moves, order)
    assert (order[n:] == -7).all()
    return moves.reshape(N, N), order[:n]


@settings(max_examples=40, deadline=None)
@given(MAPS, st.data())
def test_moves_are_those_of_a_plain_search(drawn, data):
    target = data.draw(st.sampled_from(sorted(drawn.free)))
    moves, order = flooded(drawn.grid, target)
    want = moves_from(drawn.free, target)
    assert {(r, c): moves[r, c] for r, c in drawn.free} == want
    assert (moves[drawn.grid == 1] == -1).all()
    assert sorted(order) == sorted(r * drawn.size + c for r, c in drawn.free)
    assert (np.diff(moves.ravel()[order]) >= 0).all()


def test_what_no_path_leads_to_is_not_reached():
    grid = np.ones((5, 5), np.uint8)
    grid[1, 1] = grid[1, 2] = grid[3, 3] = 0
    moves, order = flooded(grid, (1, 1))
    assert order.tolist() == [6, 7]
    assert (moves[1, 2], moves[3, 3]) == (1, -1)
    assert next_cell(5, moves.ravel(), 18) == 18


@settings(max_examples=40, deadline=None)
@given(MAPS, st.data())
def test_each_next_cell_is_beside_and_nearer(drawn, data):
    start, target = (data.draw(st.sampled_from(sorted(drawn.free))) for _ in range(2))
    N, moves = drawn.size, flooded(drawn.grid, target)[0].ravel()
    cell, way = start[0] * N + start[1], []
    while (after := next_cell(N, moves, cell)) != cell:
        assert abs(after - cell) in (1, N)
        way.append(after)
        cell = after
    assert len(way) == moves_from(drawn.free, target)[start]
    assert divmod(cell, N) == target


def spots(grid: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
    """Points where a body can be."""
    found = rng.random((20 * n, 2)) * (len(grid) - 2) + 1
    return np.array([spot for spot in found if not hits_wall(grid, *spot)][:n])


def hits_no_wall(grid: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the middle of a body stays out of all walls, each grown by a quarter of a cell."""
    for r, c in np.argwhere(grid == 1):
        enter, leave = 0.0, 1.0
        for at, to, low in ((a[0], b[0], c - 0.25), (a[1], b[1], r - 0.25)):
            one, two = sorted(((low - at) / (to - at), (low + 1.5 - at) / (to - at)))
            enter, leave = max(enter, one), min(leave, two)
        if enter < leave:
            return False
    return True


@settings(max_examples=25, deadline=None)
@given(MAPS, st.integers(0, 2**32))
def test_a_body_walks_straight_where_it_hits_no_wall_on_the_way(drawn, seed):
    for a, b in spots(drawn.grid, np.random.default_rng(seed), 12).reshape(-1, 2, 2):
        near = a + (b - a) / 4
        for to in (b, near):
            assert walks_straight(drawn.grid, *a, *to) == hits_no_wall(drawn.grid, a, to)


@settings(max_examples=60, deadline=None)
@given(MAPS, st.integers(0, 2**32))
def test_waypoints_lead_to_the_target(drawn, seed):
    """A point that moves from waypoint to waypoint, by a fifth of a cell, slid along walls, arrives."""
    grid = drawn.grid
    (x, y), target = spots(grid, np.random.default_rng(seed), 2)
    r, c = int(target[1]), int(target[0])
    moves = flooded(grid, (r, c))[0].ravel()
    within = 8 * (moves[int(y) * drawn.size + int(x)] + 2)
    for _ in range(within):
        to_x, to_y = waypoint(grid, moves, x, y, *target)
        dx, dy = to_x - x, to_y - y
        part = min(1.0, 0.2 / max(np.hypot(dx, dy), 1e-9))
        if not hits_wall(grid, x + part * dx, y):
            x += part * dx
        if not hits_wall(grid, x, y + part * dy):
            y += part * dy
    assert (x, y) == pytest.approx(target)


def test_the_farthest_waypoint_in_a_hall_and_round_a_corner():
    grid = np.ones((9, 9), np.uint8)
    grid[1, 1:8] = grid[1:8, 7] = 0
    moves = flooded(grid, (7, 7))[0].ravel()
    assert waypoint(grid, moves, 1.5, 1.5, 7.3, 7.6) == (7.5, 1.5)
    assert waypoint(grid, moves, 7.5, 1.5, 7.3, 7.6) == (7.3, 7.6)
    assert waypoint(grid, moves, 7.6, 7.4, 7.3, 7.6) == (7.3, 7.6)
    assert free_cells(grid) >= {cell_of(np.array([7.5, 7.5]))}
