"""A match as people look at it: every player's view, and the map from above. Imports no torch."""

from __future__ import annotations

import numpy as np

from polyplay.common.tree import Batch
from polyplay.envs.ctf.pixels import (
    BLUE,
    BLUE_FLOOR,
    COLOURS,
    PIXELS,
    RED,
    RED_FLOOR,
    SKIN,
    TILE,
    WHITE,
    draw_first_person,
)
from polyplay.envs.ctf.world import CARRIED, COS, SIN, WALL

PICTURED = ("grid", "base", "at", "z", "yaw", "pitch", "flag", "flag_at", "carrier")
VIEW, FRAME = 2 * PIXELS, 4  # pixels of a side of a view, and around it
SIDE = 2 * (VIEW + 2 * FRAME)  # of the map
STONE = (150, 145, 150)
BODY, NOSE, CLOTH = 0.3, 0.45, 0.22  # cells: radius of a player, how far ahead it looks, half a flag's side


def draw_match(s: Batch, m: int) -> np.ndarray:
    """uint8 [H, W, 3] of match m: the map, and to its right a row of views for each team."""
    match = {k: s[k][m : m + 1] for k in PICTURED}
    seen = np.empty((1, match["yaw"].shape[1], 3, PIXELS, PIXELS), np.uint8)
    draw_first_person(*match.values(), seen)
    large = seen[0].transpose(0, 2, 3, 1).repeat(VIEW // PIXELS, 1).repeat(VIEW // PIXELS, 2)
    n = len(large) // 2
    rows = [
        np.concatenate([_framed(view, COLOURS[(RED, BLUE)[team]]) for view in large[team * n : team * n + n]], 1)
        for team in (0, 1)
    ]
    return np.concatenate([_map({k: v[0] for k, v in match.items()}), np.concatenate(rows)], 1)


def _framed(view: np.ndarray, colour: np.ndarray) -> np.ndarray:
    framed = np.empty((VIEW + 2 * FRAME, VIEW + 2 * FRAME, 3), np.uint8)
    framed[:] = colour
    framed[FRAME:-FRAME, FRAME:-FRAME] = view
    return framed


def _map(s: Batch) -> np.ndarray:
    """From above: bases are squares, flags diamonds, players discs with a nose; who carries a flag has its diamond."""
    size = len(s["grid"])
    y, x = np.mgrid[:SIDE, :SIDE] * (size / SIDE)
    wall = s["grid"][y.astype(int), x.astype(int)] == WALL
    out = np.where(wall[..., None], np.array(STONE, np.uint8), COLOURS[TILE])
    for team in range(2):
        base_x, base_y = s["base"][team]
        out[(abs(x - base_x) < 0.5) & (abs(y - base_y) < 0.5)] = COLOURS[(RED_FLOOR, BLUE_FLOOR)[team]]
    for seat, (at_x, at_y) in enumerate(s["at"]):
        colour = COLOURS[(RED, BLUE)[seat >= len(s["at"]) // 2]]
        out[(x - at_x) ** 2 + (y - at_y) ** 2 < BODY**2] = colour
        yaw = s["yaw"][seat] % len(COS)
        nose_x, nose_y = at_x + NOSE * COS[yaw], at_y + NOSE * SIN[yaw]
        out[(x - nose_x) ** 2 + (y - nose_y) ** 2 < (BODY / 3) ** 2] = COLOURS[SKIN]
    for team in range(2):
        carried = s["flag"][team] == CARRIED
        flag_x, flag_y = s["at"][s["carrier"][team]] if carried else s["flag_at"][team]
        far = abs(x - flag_x) + abs(y - flag_y)
        out[far < CLOTH * 1.4] = COLOURS[WHITE]
        out[far < CLOTH] = COLOURS[(RED, BLUE)[team]]
    return out
