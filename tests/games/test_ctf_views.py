"""What players and people see of capture the flag: geometry by hand, slow twins, and both teams alike."""

from __future__ import annotations

import hashlib
import math
from math import cos, inf, pi, sin, tan

import numpy as np
import pytest

from polyplay.games import ctf_maps
from polyplay.games import ctf_views as v
from polyplay.games.ctf_rules import CARRIED, DROPPED, PLANES, SEEN, TURN, FlagMatches, World
from tests.games.ctf_twin import cosine, sine

N = 13
RIGHT, DOWN, LEFT = 0, TURN // 4, TURN // 2  # headings


def bare(n: int = 1, team: int = 1) -> dict[str, np.ndarray]:
    """Worlds that are one room. Everybody stands where seat 0 does, and nobody is so near that he is seen; the flags
    are the last seat's, the bases far outside.
    """
    s = World(team=team, size=N).arrays(n)
    s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = 1
    s["at"][:] = 6.5
    s["base"][:] = -50
    s["flag"][:], s["carrier"][:] = CARRIED, 2 * team - 1
    return s


def draw(s: dict[str, np.ndarray]) -> np.ndarray:
    out = np.full((*s["z"].shape, 3, 84, 84), 77, np.uint8)
    v.draw_first_person(FlagMatches.of(s), out)
    return out


def seen(s: dict[str, np.ndarray], seat: int = 0) -> np.ndarray:
    return draw(s)[0, seat]


def has(picture: np.ndarray, *colours: int) -> np.ndarray:
    """bool [..., 84, 84]: where a picture has one of these colours."""
    wanted = v.COLOURS[list(colours)]
    return (np.moveaxis(picture, -3, -1)[..., None, :] == wanted).all(-1).any(-1)


def box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """First and last row, first and last column."""
    rows, columns = np.nonzero(mask)
    return rows.min(), rows.max(), columns.min(), columns.max()


def duel(distance: float = 4, right: float = 0, heading: int = LEFT) -> dict[str, np.ndarray]:
    """Seat 0 looks to the right of the map; seat 1 stands there. Nobody carries."""
    s = bare()
    s["at"][0] = (2.5, 6.5), (2.5 + distance, 6.5 + right)
    s["yaw"][0, 1] = heading
    s["carrier"][:], s["flag"][:], s["flag_at"][:] = -1, DROPPED, (1.5, 1.5)  # behind seat 0
    return s


def test_a_player_is_where_geometry_says():
    picture = seen(duel())
    assert box(has(picture, v.BLUE)) == (42, 46, 39, 44)  # 42 ± 3.15; from 42 + 5.25 upwards, a cell is 10.5
    assert box(has(picture, v.BLUE, v.DARK_BLUE, v.SKIN)) == (40, 46, 39, 44)  # 7.35 rows in all
    assert box(has(seen(duel(right=1)), v.BLUE)) == (42, 46, 49, 55)  # 52.5 ± 3.15
    assert box(has(seen(duel(right=-1)), v.BLUE)) == (42, 46, 28, 34)
    assert not has(picture, v.RED, v.DARK_RED).any()  # oneself
    jumping = duel()
    jumping["z"][0, 1] = 0.3
    assert box(has(seen(jumping), v.BLUE)) == (39, 43, 39, 44)
    above = duel()
    above["z"][0, 0] = 0.3
    assert box(has(seen(above), v.BLUE)) == (45, 49, 39, 44)  # 42 + 3.36 to 42 + 8.4
    above["z"][0, 0], above["pitch"][0, 0] = 0, 250
    assert box(has(seen(above), v.BLUE)) == (62, 66, 39, 44)  # the horizon is at 61.6


def test_walls_hide_players():
    s = duel()
    s["grid"][0, 6, 8] = 1
    assert has(seen(s), v.BLUE).sum() == 30  # a wall behind
    s["grid"][0, 6, 4] = 1
    assert not has(seen(s), v.BLUE, v.DARK_BLUE, v.SKIN).any()
    s["grid"][0, 6, 4], s["grid"][0, 5, 4] = 0, 1  # left of the line of sight: its far corner is at 42 - 8.4
    s["at"][0, 1] = 6.5, 5.75
    assert box(has(seen(s), v.BLUE))[2:] == (34, 36)  # 34.1 ± 3.15, hidden to 33.6
    s["grid"][0, 5, 4], s["grid"][0, 7, 4], s["at"][0, 1] = 0, 1, (6.5, 7.25)
    assert box(has(seen(s), v.BLUE))[2:] == (47, 49)  # 49.9 ± 3.15, hidden from 50.4


def test_a_carrier_has_the_flag_above_it_and_a_strip_in_its_own_picture():
    s = duel(3)
    assert not has(seen(s), v.RED, v.WHITE).any()
    s["flag"][0, 0], s["carrier"][0, 0] = CARRIED, 1
    s["flag_at"][0, 0] = 3.5, 6.5  # where it was
    picture, own = draw(s)[0]
    assert box(has(picture, v.RED))[1] < box(has(picture, v.DARK_BLUE))[0]
    assert has(picture, v.WHITE).any()
    assert not has(picture[:, 60:], v.RED).any()
    assert has(own[:, 78:], v.RED).all()
    assert not has(own[:, 77:78], v.RED).any()
    s["carrier"][0], s["flag"][0] = (-1, 0), (DROPPED, CARRIED)
    assert has(seen(s)[:, 78:], v.BLUE).all()


def test_bases_are_discs_on_the_floor():
    s = bare()
    s["base"][0], s["grid"][0, 6, 5] = ((5.5, 5.75), (4.25, 7.5)), 1  # a wall hides a part of the first
    s["at"][0], s["yaw"][0] = (2.6, 7.1), -300
    picture, checked = seen(s), 0
    ground = has(seen(s | {"base": bare()["base"]}), v.TILE, v.OTHER_TILE)
    assert not has(picture, v.RED_FLOOR, v.BLUE_FLOOR)[~ground].any()
    for row, column in np.argwhere(ground):
        x, y = on_floor(s, 0, row, column)
        for team, colour in enumerate((v.RED_FLOOR, v.BLUE_FLOOR)):
            inside = np.hypot(x - s["base"][0, team, 0], y - s["base"][0, team, 1]) < v.DISC
            assert has(picture, colour)[row, column] == inside
            checked += inside
    assert checked > 60
    assert has(picture, v.RED_FLOOR).any()
    assert has(picture, v.BLUE_FLOOR).any()


def scattered(n: int, team: int, seed: int) -> dict[str, np.ndarray]:
    """Worlds with walls that look the same turned by half, and everything anywhere in them, on binary fractions."""
    rng = np.random.default_rng(seed)
    s = bare(n, team)
    for m in range(n):
        walls = rng.random((N, N)) < 0.15
        s["grid"][m][walls | walls[::-1, ::-1]] = 1
        free = np.argwhere(s["grid"][m] == 0)[:, ::-1]
        for name in ("at", "flag_at", "base"):
            cells = free[rng.integers(0, len(free), s[name].shape[1])]
            s[name][m] = cells + rng.integers(1, 1024, cells.shape) / 1024
        s["base"][m, 1] = N - s["base"][m, 0]
        s["flag"][m] = rng.integers(0, 3, 2)
        s["carrier"][m] = np.where(s["flag"][m] == CARRIED, rng.permutation(2 * team)[:2], -1)
    s["yaw"], s["pitch"] = rng.integers(0, TURN, s["z"].shape), rng.integers(-400, 401, s["z"].shape)
    s["z"] = rng.integers(0, 300, s["z"].shape) / 1024
    return s


def test_the_teams_see_the_same():
    s, team = scattered(60, 2, 5), 2
    turned = dict(s, grid=np.ascontiguousarray(s["grid"][:, ::-1, ::-1]))
    for name in ("base", "at", "flag_at"):
        turned[name] = N - np.roll(s[name], s[name].shape[1] // 2, 1)
    for name in ("z", "yaw", "pitch", "flag", "carrier"):
        turned[name] = np.roll(s[name], s[name].shape[1] // 2, 1)
    turned["yaw"] = (turned["yaw"] + TURN // 2) % TURN
    turned["carrier"] = np.where(turned["carrier"] < 0, -1, (turned["carrier"] + team) % (2 * team))
    first, second = draw(s), draw(turned)
    swapped = np.roll(second, team, 1)[:, :, ::-1]  # red for blue
    np.testing.assert_array_equal(first, swapped)
    assert (first != second).any()
    assert has(first, v.RED).any()
    assert has(first, v.BLUE).any()


def test_pictures_are_drawn_as_they_always_were_and_matches_do_not_mix():
    s = scattered(12, 3, 6)
    out = draw(s)
    assert hashlib.sha256(out.tobytes()).hexdigest()[:16] == "713c1e6f53612a0d"
    for m in (0, 5, 11):
        np.testing.assert_array_equal(draw({name: array[m : m + 1].copy() for name, array in s.items()})[0], out[m])


def ray(s: dict[str, np.ndarray], m: int, column: int) -> tuple[float, float]:
    """Where a column looks to, for each cell of depth."""
    heading, to_right = 2 * pi * s["yaw"][m, 0] / TURN, (column + 0.5 - 42) / 42
    return cos(heading) - to_right * sin(heading), sin(heading) + to_right * cos(heading)


def wall_depth(s: dict[str, np.ndarray], m: int, column: int) -> float:
    """By trying every line between cells: the nearest one behind which there is a wall."""
    (x, y), (right, down), nearest = s["at"][m, 0], ray(s, m, column), inf
    for line in range(1, N):
        for begin, along, cross, across, flat in ((x, right, y, down, False), (y, down, x, right, True)):
            t = (line - begin) / along
            cell, beside = line if along > 0 else line - 1, int((cross + t * across) // 1)
            if t > 0 and 0 <= beside < N and s["grid"][m][(cell, beside) if flat else (beside, cell)]:
                nearest = min(nearest, t)
    return nearest


def on_floor(s: dict[str, np.ndarray], m: int, row: int, column: int) -> tuple[float, float]:
    """The place on the floor that a pixel shows."""
    horizon = 42 + 42 * tan(2 * pi * s["pitch"][m, 0] / TURN)
    t, (right, down) = 42 * (0.5 + s["z"][m, 0]) / (row + 0.5 - horizon), ray(s, m, column)
    return s["at"][m, 0, 0] + t * right, s["at"][m, 0, 1] + t * down


def test_walls_and_floor_agree_with_a_slow_twin():
    s, tiles = scattered(16, 1, 7), 0
    s |= {name: bare(16)[name] for name in ("base", "flag", "carrier")}
    s["at"][:, 1] = s["at"][:, 0]
    pictures = draw(s)[:, 0]
    sky, dark = has(pictures, v.SKY), has(pictures, v.OTHER_TILE)
    ground = has(pictures, v.TILE) | dark
    for m in range(len(pictures)):
        eye, horizon = 0.5 + s["z"][m, 0], 42 + 42 * tan(2 * pi * s["pitch"][m, 0] / TURN)
        for column in range(84):
            t = wall_depth(s, m, column)
            top, bottom = (horizon + 42 * height / t for height in (eye - 1, eye))
            assert sky[m, :, column].sum() == sum(row + 0.5 < top for row in range(84))
            assert ground[m, :, column].sum() == sum(row + 0.5 >= bottom for row in range(84))
            row = 83 - column % 40
            x, y = on_floor(s, m, row, column)
            if ground[m, row, column] and min(x % 1, y % 1, -x % 1, -y % 1) > 1e-3:
                assert dark[m, row, column] == (int(x) + int(y)) % 2
                tiles += 1
    assert tiles > 190


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


def windows(s: dict[str, np.ndarray]) -> np.ndarray:
    out = np.zeros((*s["yaw"].shape, len(PLANES), SEEN, SEEN), np.uint8)
    v.draw_windows(FlagMatches.of(s), out)
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


@pytest.mark.parametrize(("team", "size"), [(1, 9), (4, 21)])
def test_it_shows_what_a_plain_twin_shows(team, size):
    s = worlds(8, team, size, seed=team)
    out, shown = windows(s), np.zeros(len(PLANES), int)
    for m, p in np.ndindex(s["yaw"].shape):
        same_window(s, out, m, p)
        shown += out[m, p].any((1, 2))
    assert shown[[k for k, name in enumerate(PLANES) if team > 1 or not name.startswith("mate")]].all()


def scene() -> dict[str, np.ndarray]:
    """Walls around; players at places of their own; an opponent carries the first team's flag."""
    s = World(size=N).arrays(2)
    s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = 1
    s["base"][:] = s["flag_at"][:] = (2.5, 2.5), (10.5, 10.5)
    s["at"][1] = (4.5, 2.5), (4.5, 8.5), (8.5, 4.5), (8.5, 8.5)
    s["yaw"][1] = 0, 900, 1800, 2700
    s["flag"][1, 0], s["carrier"][1, 0] = CARRIED, 2
    return s


def colour(picture: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    """Of the map at a point."""
    return tuple(picture[int(y * v.SIDE / N), int(x * v.SIDE / N)].tolist())


def test_the_map_shows_walls_players_and_flags():
    picture = v.draw_match(scene(), 1)
    red, blue = (tuple(v.COLOURS[team].tolist()) for team in (v.RED, v.BLUE))
    assert picture.shape == (v.SIDE, v.SIDE + 2 * (v.VIEW + 2 * v.FRAME), 3)
    assert colour(picture, 0.5, 6.5) == v.STONE
    assert [colour(picture, 4.3, 2.5), colour(picture, 4.3, 8.5)] == [red, red]
    assert [colour(picture, 8.5, 4.5), colour(picture, 8.7, 8.5)] == [red, blue]  # a red flag on a blue player
    assert colour(picture, 10.5, 10.5) == blue
    assert colour(picture, 10.5, 10.25) == tuple(v.COLOURS[v.WHITE].tolist())
    assert colour(picture, 2.5, 2.5) not in (red, blue)  # the flag is away


def test_views_are_the_players_own_in_the_order_of_teams():
    s = scene()
    picture, seen = v.draw_match(s, 1), np.empty((2, 4, 3, v.PIXELS, v.PIXELS), np.uint8)
    v.draw_first_person(FlagMatches.of(s), seen)
    for seat, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        top, left = row * (v.VIEW + 2 * v.FRAME), v.SIDE + column * (v.VIEW + 2 * v.FRAME)
        assert picture[top, left].tolist() == v.COLOURS[(v.RED, v.BLUE)[row]].tolist()
        inside = picture[top + v.FRAME : top + v.FRAME + v.VIEW : 2, left + v.FRAME : left + v.FRAME + v.VIEW : 2]
        assert (inside == seen[1, seat].transpose(1, 2, 0)).all()
