"""What players and people see of capture the flag: geometry by hand, slow twins, and both teams alike."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from polyplay.games import ctf_views as v
from polyplay.games.ctf_rules import CARRIED, DROPPED, PLANES, SEEN, TURN, FlagMatches, World

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


def has(picture: np.ndarray, *colors: int) -> np.ndarray:
    """bool [..., 84, 84]: where a picture has one of these colors."""
    wanted = v.COLORS[list(colors)]
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


def test_bases_are_discs_on_the_floor_in_front_of_walls():
    s = duel()
    plain = has(seen(s), v.RED_FLOOR, v.BLUE_FLOOR)
    s["base"][0] = (5.5, 6.5), (5.5, 8.5)
    picture = seen(s)
    assert not plain.any()
    assert box(has(picture, v.RED_FLOOR)) == (48, 49, 36, 47)  # 42 + 21 / (3 ± 0.45); 42 ± 42 · 0.45 / 3
    assert box(has(picture, v.BLUE_FLOOR))[2] > 60
    s["grid"][0, 6, 4] = 1
    assert not has(seen(s), v.RED_FLOOR).any()


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


def test_a_window_shows_what_is_around_turned_with_the_player():
    """Cell [5 - a, 5 + r] is a cells ahead and r to the right; behind a wall it is dark."""
    s = World(size=N).arrays(1)
    s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = s["grid"][0, 6, 9] = 1
    s["at"][0] = (6.5, 6.5), (8.5, 6.5), (6.5, 8.5), (10.5, 6.5)
    s["base"][0] = s["flag_at"][0] = (4.5, 6.5), (6.5, 3.5)
    s["flag"][0, 0], s["carrier"][0, 0], s["score"][0], s["loads"][0, 0] = CARRIED, 2, (1, 4), 4
    wall, out = np.zeros((SEEN, SEEN), bool), np.zeros((1, 4, len(PLANES), SEEN, SEEN), np.uint8)
    wall[2, 5] = True
    for yaw in (RIGHT, DOWN):
        s["yaw"][0], out[:] = yaw, 0
        v.draw_windows(FlagMatches.of(s), out)
        turns = -1 if yaw == DOWN else 0
        planes = {k: np.rot90(plane > 0, turns) for k, plane in zip(PLANES, out[0, 0], strict=True)}
        assert (planes["wall"] == wall).all()
        assert np.argwhere(planes["dark"]).tolist() == [[0, 5], [1, 5]], "so nobody sees seat 3"
        cells = {k: np.argwhere(plane).tolist() for k, plane in planes.items() if k not in ("wall", "dark")}
        assert {k: at for k, at in cells.items() if at} == {
            "mate": [[3, 5]], "opponent_carries": [[5, 7]], "own_base": [[7, 5]], "their_base": [[5, 2]],
            "their_flag": [[5, 2]],
        }  # fmt: skip
    facts = np.empty((1, 4, 12), np.float32)
    v.know(FlagMatches.of(s), 100, facts)
    assert facts[0, 0].tolist() == pytest.approx([-0.6, 1, 0, 1, 0, 1, 0, 0, 0, 0.5, 0, 0])
    assert facts[0, 2].tolist() == pytest.approx([0.6, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0])


def scene() -> dict[str, np.ndarray]:
    """Walls around; players at places of their own; an opponent carries the first team's flag."""
    s = World(size=N).arrays(2)
    s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = 1
    s["base"][:] = s["flag_at"][:] = (2.5, 2.5), (10.5, 10.5)
    s["at"][1] = (4.5, 2.5), (4.5, 8.5), (8.5, 4.5), (8.5, 8.5)
    s["yaw"][1] = 0, 900, 1800, 2700
    s["flag"][1, 0], s["carrier"][1, 0] = CARRIED, 2
    return s


def color(picture: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    """Of the map at a point."""
    return tuple(picture[int(y * v.SIDE / N), int(x * v.SIDE / N)].tolist())


def test_the_map_shows_walls_players_and_flags():
    picture = v.draw_match(scene(), 1)
    red, blue = (tuple(v.COLORS[team].tolist()) for team in (v.RED, v.BLUE))
    assert picture.shape == (v.SIDE, v.SIDE + 2 * (v.VIEW + 2 * v.FRAME), 3)
    assert color(picture, 0.5, 6.5) == v.STONE
    assert [color(picture, 4.3, 2.5), color(picture, 4.3, 8.5)] == [red, red]
    assert [color(picture, 8.5, 4.5), color(picture, 8.7, 8.5)] == [red, blue]  # a red flag on a blue player
    assert color(picture, 10.5, 10.5) == blue
    assert color(picture, 10.5, 10.25) == tuple(v.COLORS[v.WHITE].tolist())
    assert color(picture, 2.5, 2.5) not in (red, blue)  # the flag is away
