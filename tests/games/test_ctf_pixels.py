"""First-person pictures of capture the flag, against geometry worked out by hand and against a slow twin."""

from __future__ import annotations

from math import ceil, cos, inf, pi, sin, tan

import numpy as np
import pytest

from polyplay.games import ctf_views
from polyplay.games.ctf_rules import CARRIED, DROPPED, TURN, World

N = 13
RIGHT, DOWN, LEFT = 0, TURN // 4, TURN // 2  # headings
GIVEN = ("grid", "base", "at", "z", "yaw", "pitch", "flag", "flag_at", "carrier")


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
    ctf_views.draw_first_person(*(s[name] for name in GIVEN), out)
    return out


def seen(s: dict[str, np.ndarray], seat: int = 0) -> np.ndarray:
    return draw(s)[0, seat]


def has(picture: np.ndarray, *colours: int) -> np.ndarray:
    """bool [..., 84, 84]: where a picture has one of these colours."""
    wanted = ctf_views.COLOURS[list(colours)]
    return (np.moveaxis(picture, -3, -1)[..., None, :] == wanted).all(-1).any(-1)


def box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """First and last row, first and last column."""
    rows, columns = np.nonzero(mask)
    return rows.min(), rows.max(), columns.min(), columns.max()


def wall_rows(picture: np.ndarray, column: int = 42) -> tuple[int, int]:
    """First and last row of a column's wall; it has sky above and floor below."""
    sky = has(picture, ctf_views.SKY)[:, column]
    ground = has(picture, ctf_views.TILE, ctf_views.OTHER_TILE)[:, column]
    rows = np.flatnonzero(~sky & ~ground)
    assert sky[: rows[0]].all()
    assert ground[rows[-1] + 1 :].all()
    assert len(rows) == rows[-1] - rows[0] + 1
    return rows[0], rows[-1]


def duel(distance: float = 4, right: float = 0, heading: int = LEFT) -> dict[str, np.ndarray]:
    """Seat 0 looks to the right of the map; seat 1 stands there. Nobody carries."""
    s = bare()
    s["at"][0] = (2.5, 6.5), (2.5 + distance, 6.5 + right)
    s["yaw"][0, 1] = heading
    s["carrier"][:], s["flag"][:], s["flag_at"][:] = -1, DROPPED, (1.5, 1.5)  # behind seat 0
    return s


@pytest.mark.parametrize(
    ("distance", "rows"), [(0.5, (0, 83)), (1, (21, 62)), (2, (31, 51)), (3, (35, 48)), (6, (38, 44))]
)
def test_a_wall_straight_ahead_is_as_high_as_geometry_says(distance: float, rows: tuple[int, int]) -> None:
    s = bare()
    s["at"][0] = 12 - distance, 6.5
    assert wall_rows(seen(s)) == rows
    s["at"][0], s["yaw"][0] = (6.5, 12 - distance), DOWN
    assert wall_rows(seen(s)) == rows


def test_pitch_moves_the_horizon() -> None:
    s = bare()
    s["at"][0] = 6, 6.5
    assert wall_rows(seen(s)) == (38, 44)
    for pitch in (-400, -150, 50, 250, 400):
        s["pitch"][0] = pitch
        middle = 42 + 42 * tan(2 * pi * pitch / TURN)  # looking up, it is lower in the picture
        assert wall_rows(seen(s)) == (ceil(middle - 4), ceil(middle + 3) - 1)


def test_who_jumps_looks_from_higher_up() -> None:
    s = bare()
    s["at"][0], s["z"][0] = (10, 6.5), 0.3
    assert wall_rows(seen(s)) == (38, 58)  # 42 - 0.2 · 21 to 42 + 0.8 · 21


def test_the_view_is_90_degrees_wide_and_right_is_right() -> None:
    s = bare()
    s["at"][0], s["grid"][0, 5, 10] = (6.5, 6.25), 1  # its face is 3.5 ahead, 0.25 to 1.25 to the left
    rows = [wall_rows(seen(s), column)[0] for column in range(84)]
    assert [column for column in range(84) if rows[column] == 36] == list(range(27, 39))  # 42 - 15 to 42 - 3
    assert rows[0] == rows[83] == 38  # the wall behind, 5.5 ahead


def test_a_player_is_where_geometry_says() -> None:
    picture = seen(duel())
    assert box(has(picture, ctf_views.BLUE)) == (42, 46, 39, 44)  # 42 ± 3.15; from 42 + 5.25 upwards, a cell is 10.5
    assert box(has(picture, ctf_views.BLUE, ctf_views.DARK_BLUE, ctf_views.SKIN)) == (
        40,
        46,
        39,
        44,
    )  # 7.35 rows in all
    assert box(has(seen(duel(right=1)), ctf_views.BLUE)) == (42, 46, 49, 55)  # 52.5 ± 3.15
    assert box(has(seen(duel(right=-1)), ctf_views.BLUE)) == (42, 46, 28, 34)
    assert not has(picture, ctf_views.RED, ctf_views.DARK_RED).any()  # oneself
    jumping = duel()
    jumping["z"][0, 1] = 0.3
    assert box(has(seen(jumping), ctf_views.BLUE)) == (39, 43, 39, 44)
    above = duel()
    above["z"][0, 0] = 0.3
    assert box(has(seen(above), ctf_views.BLUE)) == (45, 49, 39, 44)  # 42 + 3.36 to 42 + 8.4
    above["z"][0, 0], above["pitch"][0, 0] = 0, 250
    assert box(has(seen(above), ctf_views.BLUE)) == (62, 66, 39, 44)  # the horizon is at 61.6


def test_walls_hide_players() -> None:
    s = duel()
    s["grid"][0, 6, 8] = 1
    assert has(seen(s), ctf_views.BLUE).sum() == 30  # a wall behind
    s["grid"][0, 6, 4] = 1
    assert not has(seen(s), ctf_views.BLUE, ctf_views.DARK_BLUE, ctf_views.SKIN).any()
    s["grid"][0, 6, 4], s["grid"][0, 5, 4] = 0, 1  # left of the line of sight: its far corner is at 42 - 8.4
    s["at"][0, 1] = 6.5, 5.75
    assert box(has(seen(s), ctf_views.BLUE))[2:] == (34, 36)  # 34.1 ± 3.15, hidden to 33.6
    s["grid"][0, 5, 4], s["grid"][0, 7, 4], s["at"][0, 1] = 0, 1, (6.5, 7.25)
    assert box(has(seen(s), ctf_views.BLUE))[2:] == (47, 49)  # 49.9 ± 3.15, hidden from 50.4


def test_the_nearer_player_hides_the_farther_one() -> None:
    s = bare(team=2)
    s["carrier"][:], s["flag"][:], s["flag_at"][:] = -1, DROPPED, (1.5, 1.5)
    s["at"][0] = (2.5, 6.5), (4.5, 6.5), (6.5, 6.5), (8.5, 6.5)
    picture = seen(s)
    assert has(picture, ctf_views.RED).any()
    assert not has(picture, ctf_views.BLUE, ctf_views.DARK_BLUE).any()
    s["at"][0, 1], s["at"][0, 2] = s["at"][0, 2].copy(), s["at"][0, 1].copy()
    picture = seen(s)
    assert has(picture, ctf_views.BLUE).any()
    assert not has(picture, ctf_views.RED, ctf_views.DARK_RED).any()


def test_team_colours_are_the_same_for_everybody() -> None:
    s = bare(team=2)
    s["carrier"][:], s["flag"][:], s["flag_at"][:] = -1, DROPPED, (6.5, 1.5)
    s["at"][0], s["yaw"][0] = ((3.5, 5.5), (9.5, 5.5), (3.5, 6.5), (9.5, 6.5)), (RIGHT, LEFT, RIGHT, LEFT)
    pictures = draw(s)[0]
    for seat, red_on_the_right in enumerate((False, True, False, True)):
        red, blue = box(has(pictures[seat], ctf_views.RED)), box(has(pictures[seat], ctf_views.BLUE))
        assert red[2] > blue[3] if red_on_the_right else red[3] < blue[2]


def test_a_face_shows_where_a_player_looks() -> None:
    middles = []
    for heading in (LEFT, DOWN, -DOWN):
        left, right = box(has(seen(duel(2, heading=heading)), ctf_views.SKIN))[2:]
        middles.append((left + right) / 2)
    assert middles[0] == 41.5
    assert middles[1] > 42.5
    assert middles[2] < 40.5
    assert not has(seen(duel(2, heading=RIGHT)), ctf_views.SKIN).any()  # from behind


def test_a_carrier_has_the_flag_above_it_and_a_strip_in_its_own_picture() -> None:
    s = duel(3)
    assert not has(seen(s), ctf_views.RED, ctf_views.WHITE).any()
    s["flag"][0, 0], s["carrier"][0, 0] = CARRIED, 1
    s["flag_at"][0, 0] = 3.5, 6.5  # where it was
    picture, own = draw(s)[0]
    assert box(has(picture, ctf_views.RED))[1] < box(has(picture, ctf_views.DARK_BLUE))[0]
    assert has(picture, ctf_views.WHITE).any()
    assert not has(picture[:, 60:], ctf_views.RED).any()
    assert has(own[:, 78:], ctf_views.RED).all()
    assert not has(own[:, 77:78], ctf_views.RED).any()
    s["carrier"][0], s["flag"][0] = (-1, 0), (DROPPED, CARRIED)
    assert has(seen(s)[:, 78:], ctf_views.BLUE).all()


@pytest.mark.parametrize("team", [0, 1])
def test_flags_that_stand_are_drawn_and_walls_hide_them(team: int) -> None:
    colour, other = (ctf_views.RED, ctf_views.BLUE)[:: 1 - 2 * team]
    s = bare()
    s["at"][0], s["flag"][0, team], s["flag_at"][0, team] = (2.5, 6.5), DROPPED, (5.5, 6.5)
    s["carrier"][0, team] = -1
    picture = seen(s)
    assert box(has(picture, ctf_views.WHITE))[:3] == (36, 48, 42)  # from 42 - 0.45 · 14 to 42 + 0.5 · 14
    assert box(has(picture, colour)) == (36, 39, 42, 46)
    assert has(picture, colour).sum() == 20
    assert not has(picture, other).any()
    s["grid"][0, 6, 4] = 1
    assert not has(seen(s), ctf_views.WHITE, colour).any()


def test_bases_are_discs_on_the_floor() -> None:
    s = bare()
    s["base"][0], s["grid"][0, 6, 5] = ((5.5, 5.75), (4.25, 7.5)), 1  # a wall hides a part of the first
    s["at"][0], s["yaw"][0] = (2.6, 7.1), -300
    picture, checked = seen(s), 0
    ground = has(seen(s | {"base": bare()["base"]}), ctf_views.TILE, ctf_views.OTHER_TILE)
    assert not has(picture, ctf_views.RED_FLOOR, ctf_views.BLUE_FLOOR)[~ground].any()
    for row, column in np.argwhere(ground):
        x, y = on_floor(s, 0, row, column)
        for team, colour in enumerate((ctf_views.RED_FLOOR, ctf_views.BLUE_FLOOR)):
            inside = np.hypot(x - s["base"][0, team, 0], y - s["base"][0, team, 1]) < ctf_views.DISC
            assert has(picture, colour)[row, column] == inside
            checked += inside
    assert checked > 60
    assert has(picture, ctf_views.RED_FLOOR).any()
    assert has(picture, ctf_views.BLUE_FLOOR).any()


def test_walls_near_a_base_have_its_colour_and_sides_of_a_corner_differ() -> None:
    s = bare(3)
    s["base"][:] = (10.5, 6.5), (10.5, 1.5)
    s["base"][1] = s["base"][1, ::-1]
    s["base"][2] = -50
    s["at"][:] = 10.7, 6.3
    reds, blues = (draw(s)[:, 0, channel, 42, 42].astype(int) for channel in (0, 2))
    assert reds[0] > blues[0] + 30
    assert blues[1] > reds[1] + 30
    assert reds[2] == blues[2]
    s = bare()
    s["at"][0], s["grid"][0, 7, 7], s["yaw"][0] = (5.75, 5.75), 1, TURN // 8  # a corner straight ahead
    picture = seen(s).astype(int)
    assert abs(picture[0, 42, 38] - picture[0, 42, 45]) > 15


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


def test_the_teams_see_the_same() -> None:
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
    assert has(first, ctf_views.RED).any()
    assert has(first, ctf_views.BLUE).any()


def test_every_pixel_is_drawn_and_matches_do_not_mix() -> None:
    s = scattered(12, 3, 6)
    out = draw(s)
    for m in (0, 5, 11):
        np.testing.assert_array_equal(draw({name: array[m : m + 1].copy() for name, array in s.items()})[0], out[m])
    other = np.zeros_like(out)
    ctf_views.draw_first_person(*(s[name] for name in GIVEN), other)
    np.testing.assert_array_equal(other, out)


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


def test_walls_and_floor_agree_with_a_slow_twin() -> None:
    s, tiles = scattered(250, 1, 7), 0
    s |= {name: bare(250)[name] for name in ("base", "flag", "carrier")}
    s["at"][:, 1] = s["at"][:, 0]
    pictures = draw(s)[:, 0]
    sky, dark = has(pictures, ctf_views.SKY), has(pictures, ctf_views.OTHER_TILE)
    ground = has(pictures, ctf_views.TILE) | dark
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
    assert tiles > 3000
