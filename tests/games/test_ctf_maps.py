"""Maps are as asked, by a plain flood fill; shortest paths against a plain search, and bodies that walk them."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.games import ctf_maps
from polyplay.games.ctf_maps import flood, next_cell, waypoint
from polyplay.games.ctf_rules import WALL, hits_wall

Cell = tuple[int, int]
INNER = slice(1, -1)


class Map:
    """One that was drawn into arrays full of other numbers."""

    def __init__(self, key: int, rooms: bool, size: int, seats: int = 4, draw=ctf_maps.draw_map):
        self.grid = np.full((size, size), 7, np.uint8)
        self.base, self.spawn = np.full((2, 2), -1.0), np.full((seats, 2), -1.0)
        draw(np.uint64(key), rooms, self.grid, self.base, self.spawn)
        self.size, self.n, self.free = size, seats // 2, free_cells(self.grid)
        self.bases = [cell_of(b) for b in self.base]

    @property
    def share(self) -> float:
        """Of the inner cells, how many are wall."""
        return float((self.grid[INNER, INNER] == WALL).mean())

    @property
    def text(self) -> str:
        marks = {cell_of(at): "ab"[seat // self.n] for seat, at in enumerate(self.spawn)}
        marks |= dict(zip(self.bases, "AB", strict=True))
        rows = ([marks.get((r, c), ".#"[v]) for c, v in enumerate(row)] for r, row in enumerate(self.grid))
        return "\n".join("".join(row) for row in rows)

    def check(self) -> None:
        """All that holds of both kinds."""
        edge = np.ones_like(self.grid)
        edge[INNER, INNER] = 0
        assert set(np.unique(self.grid)) == {0, 1}
        assert (self.grid[edge == 1] == WALL).all()
        assert (self.grid == self.grid[::-1, ::-1]).all()
        assert (self.base[1] == self.size - self.base[0]).all()
        self.check_ways()
        self.check_spawns()

    def check_ways(self) -> None:
        near, far = (moves_from(self.free, b) for b in self.bases)
        assert set(near) == set(far) == self.free
        assert near[self.bases[1]] >= self.size
        assert cuts(self.free, *self.bases) == []

    def check_spawns(self) -> None:
        cells = [cell_of(at) for at in self.spawn]
        assert set(cells) <= self.free - set(self.bases)
        assert len(set(cells)) == 2 * self.n
        assert (self.spawn[self.n :] == self.size - self.spawn[: self.n]).all()
        near, far = (moves_from(self.free, b) for b in self.bases)
        assert sum(d <= self.n + 2 for d in near.values()) >= 2 * self.n + 1
        for cell in cells[: self.n]:
            assert near[cell] < far[cell]
            assert near[cell] <= self.n + 2


def free_cells(grid: np.ndarray) -> set[Cell]:
    return {(int(r), int(c)) for r, c in np.argwhere(grid == 0)}


def cell_of(at: np.ndarray) -> Cell:
    """Of the point (x, y), which has to be a cell's center."""
    x, y = at.tolist()
    assert x % 1 == y % 1 == 0.5
    return int(y), int(x)


def moves_from(free: set[Cell], start: Cell) -> dict[Cell, int]:
    """How many moves each cell that can be reached is away."""
    moves, ring = {start: 0}, [start]
    while ring:
        beside = [(r + dr, c + dc) for r, c in ring for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))]
        distance = moves[ring[0]] + 1
        ring = list({cell for cell in beside if cell in free and cell not in moves})
        moves |= dict.fromkeys(ring, distance)
    return moves


def cuts(free: set[Cell], a: Cell, b: Cell) -> list[Cell]:
    """The cells, each of which lies on all ways from a to b."""
    moves, way = moves_from(free, a), [b]
    while moves[way[-1]] > 1:
        r, c = way[-1]
        beside = ((r, c + 1), (r + 1, c), (r, c - 1), (r - 1, c))
        way.append(next(cell for cell in beside if moves.get(cell) == moves[r, c] - 1))
    return [cell for cell in way[1:] if b not in moves_from(free - {cell}, a)]


def test_teams_begin_on_all_sides_of_their_bases_alike():
    """With one player of a side: how often it begins above its base and how often below, to its left and its right."""
    steps = [m.spawn - m.base for m in (Map(key, key % 2 == 0, 9, 2) for key in range(2000))]
    for axis in range(2):
        for team in range(2):
            less, more = (sum(sign * step[team, axis] > 0 for step in steps) for sign in (-1, 1))
            assert less + more > 500
            assert abs(less - more) < 4 * (less + more) ** 0.5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**64 - 1), st.booleans(), st.sampled_from(range(9, 42, 2)), st.sampled_from(range(2, 17, 2)))
def test_maps_of_any_key_are_as_asked(key: int, rooms: bool, size: int, seats: int):
    found = Map(key, rooms, size, seats)
    found.check()
    assert 0.20 <= found.share <= 0.40 if rooms else 0.08 <= found.share <= 0.20


@pytest.mark.parametrize("rooms", [True, False])
def test_keys_in_a_row_draw_maps_that_differ_much(rooms: bool):
    found = [Map(key, rooms, 13) for key in range(150)]
    assert len({m.text for m in found}) == 150
    assert len({m.bases[0] for m in found}) >= 30
    assert np.mean([(a.grid != b.grid)[INNER, INNER].mean() for a, b in itertools.pairwise(found)]) > 0.2
    corners = np.bincount([2 * (m.bases[0][0] > 6) + (m.bases[0][1] > 6) for m in found])
    assert 18 <= corners.min() <= corners.max() <= 62, "base 0 is as often in each"


@pytest.mark.parametrize(("size", "seats"), [(9, 16), (13, 4)])
def test_where_no_draw_is_good_the_ground_is_empty(size: int, seats: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ctf_maps, "DRAWS", 0)
    found = Map(3, True, size, seats, draw=ctf_maps.draw_map.py_func)
    found.check()
    assert found.share == 0


@pytest.mark.parametrize(("rooms", "digest"), [(True, "70fd10d7189938ef"), (False, "be967e1cb3d1c64e")])
def test_a_map_stays_as_it_is(rooms: bool, digest: str):
    """Else the maps of the same seeds are others: of training, and of those held out."""
    assert hashlib.sha256(Map(1, rooms, 13).text.encode()).hexdigest()[:16] == digest


MAPS = st.builds(Map, st.integers(0, 2**63), st.booleans(), st.sampled_from((9, 13, 21)))


def flooded(grid: np.ndarray, target: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The moves of all cells [N, N], and the numbers of those that were reached, in order."""
    N = len(grid)
    moves, order = np.full(N * N, 77), np.full(N * N, -7)
    n = flood(grid, target[0] * N + target[1], moves, order)
    assert (order[n:] == -7).all()
    return moves.reshape(N, N), order[:n]


@settings(max_examples=20, deadline=None)
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


def spots(grid: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
    """Points where a body can be."""
    found = rng.random((20 * n, 2)) * (len(grid) - 2) + 1
    return np.array([spot for spot in found if not hits_wall(grid, *spot)][:n])


@settings(max_examples=30, deadline=None)
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
