"""What a player sees in the window, against a plain twin and by what must be the same for all who stand alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyplay.games import ctf_maps, ctf_rules, ctf_views
from polyplay.games.ctf_rules import FACTS, PLANES, SEEN, World
from tests.games.ctf_twin import cosine, sine

HALF = SEEN // 2


def worlds(n: int, team: int = 2, size: int = 13, seed: int = 0) -> dict[str, np.ndarray]:
    """Matches in the middle: everybody and the flags are anywhere."""
    rng, s = np.random.default_rng(seed), World(team=team, size=size).arrays(n)
    for m in range(n):
        ctf_maps.draw_map(np.uint64(seed * 1000 + m), m % 2 == 0, s["grid"][m], s["base"][m], s["spawn"][m])
        free = np.argwhere(s["grid"][m] == 0)[:, ::-1]
        at = free[rng.integers(len(free), size=2 * team)] + 0.5
        s["at"][m] = at + rng.uniform(-0.2, 0.2, at.shape)
        s["flag_at"][m] = free[rng.integers(len(free), size=2)] + rng.uniform(0.3, 0.7, (2, 2))
        for flag in range(2):
            if rng.random() < 0.4:
                s["carrier"][m, flag] = rng.integers(team) + team * (1 - flag)
    s["yaw"][:] = rng.integers(3600, size=s["yaw"].shape)
    return s


def seen(s: dict[str, np.ndarray]) -> np.ndarray:
    out = np.zeros((*s["yaw"].shape, len(PLANES), SEEN, SEEN), np.uint8)
    ctf_views.draw_windows(*(s[k] for k in ("grid", "base", "at", "yaw", "flag_at", "carrier")), out)
    return out


def plain(s: dict[str, np.ndarray], m: int, p: int) -> dict[str, set[tuple[int, int]]]:
    """The cells of each plane, one after the other."""
    grid, (x, y), team = s["grid"][m], s["at"][m, p], len(s["yaw"][m]) // 2
    cos, sin = cosine(int(s["yaw"][m, p])), sine(int(s["yaw"][m, p]))

    def wall(i: float, j: float) -> bool:
        ahead, right = HALF - i, j - HALF
        c = math.floor(x + ahead * cos - right * sin)
        r = math.floor(y + ahead * sin + right * cos)
        return not (0 <= r < len(grid) and 0 <= c < len(grid) and not grid[r, c])

    def dark(i: int, j: int) -> bool:
        if (far := max(abs(i - HALF), abs(j - HALF))) == 0:
            return False
        u, v = (HALF + round((k - HALF) * (far - 1) / far) for k in (i, j))
        hidden = wall((i + u) / 2, (j + v) / 2) and not wall(i, j)
        return hidden or dark(u, v) or (far > 1 and wall(u, v))

    found: dict[str, set[tuple[int, int]]] = {name: set() for name in PLANES}
    cells = [(i, j) for i in range(SEEN) for j in range(SEEN)]
    found["dark"] = {cell for cell in cells if dark(*cell)}
    found["wall"] = {cell for cell in cells if wall(*cell) and cell != (HALF, HALF)} - found["dark"]

    def show(name: str, point: np.ndarray) -> None:
        dx, dy = point[0] - x, point[1] - y
        ahead, right = dx * cos + dy * sin, dy * cos - dx * sin
        cell = math.floor(HALF - ahead + 0.5), math.floor(HALF + right + 0.5)
        if cell in cells and cell not in found["dark"]:
            found[name].add(cell)

    own = int(p >= team)
    for q in range(2 * team):
        if q != p:
            name = "mate" if (q >= team) == (p >= team) else "opponent"
            show(name + "_carries" * (q in s["carrier"][m]), s["at"][m, q])
    for flag in range(2):
        if s["carrier"][m, flag] < 0:
            show("own_flag" if flag == own else "their_flag", s["flag_at"][m, flag])
        show("own_base" if flag == own else "their_base", s["base"][m, flag])
    return found


def same_window(s: dict[str, np.ndarray], out: np.ndarray, m: int, p: int) -> None:
    want = plain(s, m, p)
    for k, name in enumerate(PLANES):
        assert {(int(i), int(j)) for i, j in np.argwhere(out[m, p, k])} == want[name], name


@pytest.mark.parametrize(("team", "size"), [(2, 13), (1, 9), (4, 21)])
def test_it_shows_what_a_plain_twin_shows(team, size):
    s = worlds(20, team, size, seed=team)
    out, shown = seen(s), np.zeros(len(PLANES), int)
    for m, p in np.ndindex(s["yaw"].shape):
        same_window(s, out, m, p)
        shown += out[m, p].any((1, 2))
    assert shown[[k for k, name in enumerate(PLANES) if team > 1 or not name.startswith("mate")]].all()


def test_both_teams_see_the_same_of_a_world_turned_by_half():
    s = worlds(30)
    turned, size = {k: v.copy() for k, v in s.items()}, s["grid"].shape[1]
    for name in ("at", "flag_at", "base"):
        turned[name] = size - s[name][:, ::-1] if name != "at" else size - np.roll(s["at"], 2, 1)
    turned["yaw"] = (np.roll(s["yaw"], 2, 1) + 1800) % 3600
    turned["carrier"] = np.where(s["carrier"] < 0, -1, (s["carrier"] + 2) % 4)[:, ::-1]
    assert (np.roll(seen(turned), 2, 1) == seen(s)).all()


def test_what_is_seen_is_in_sight():
    """The way cell by cell is nearly a straight line: of the free cells near by, most are seen that are in sight."""
    s = worlds(40, seed=9)
    out, right, wrong = seen(s), 0, 0
    for m, p in np.ndindex(s["yaw"].shape):
        (x, y), turned = s["at"][m, p], s["yaw"][m, p] * 2 * math.pi / 3600
        for i, j in np.ndindex(SEEN, SEEN):
            ahead, aside = HALF - i, j - HALF
            to = (
                x + ahead * math.cos(turned) - aside * math.sin(turned),
                y + ahead * math.sin(turned) + aside * math.cos(turned),
            )
            cell = tuple(math.floor(k) for k in to[::-1])
            if not all(0 <= k < 13 for k in cell) or s["grid"][m][cell]:
                continue
            same = ctf_rules.clear(s["grid"][m], x, y, *to) != out[m, p, 0, i, j]
            right, wrong = right + same, wrong + (not same)
    assert right > 8 * wrong > 0


def test_what_a_player_knows():
    s = World(team=1, length=100).arrays(1)
    s["score"][0], s["age"][0], s["flag"][0], s["carrier"][0] = (2, 1), 25, (2, 1), (-1, 0)
    s["loads"][0, 0], s["pitch"][0, 0], s["z"][0, 0] = 4, -200, 0.25
    out = np.empty((1, 2, FACTS), np.float32)
    ctf_views.know(*(s[k] for k in ("z", "pitch", "loads", "flag", "carrier", "score", "age")), 100, out)
    assert out[0, 0].tolist() == [np.float32(0.2), 0.75, 0, 0, 1, 0, 1, 0, 1, 0.5, -0.5, 0.25]
    assert out[0, 1].tolist() == [np.float32(-0.2), 0.75, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
