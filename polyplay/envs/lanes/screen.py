"""A match of the lane game as people look at it, from above. Imports no torch."""

from __future__ import annotations

import itertools

import numpy as np

from polyplay.common.tree import Batch
from polyplay.envs.lanes.world import (
    CORE_X,
    FIRST_LANE,
    HEALTH,
    LANE_APART,
    LEVEL,
    MANA,
    MANA_A_LEVEL,
    MANA_AT_FIRST,
    MOST,
    SLOTS,
    TURN_X,
    WIDTH,
    X,
    Y,
)

DOT = 50  # of length, to a pixel
GROUND, ROAD, BACK = (58, 84, 54), (112, 100, 74), (24, 24, 24)
RIM = (240, 240, 230)
SIDES = ((214, 62, 56), (66, 120, 226))
GREEN, SKY = (96, 220, 96), (120, 190, 255)
HERO, CREEP, TOWER, CORE = 8, 3, 9, 16  # pixels from the middle of a unit to its edge
BAR = 3  # pixels high


def draw_lanes(s: Batch, m: int) -> np.ndarray:
    """uint8 [H, W, 3] of match m: side 0's core is to the left. Heroes are discs with bars of health and mana, creeps
    dots, towers and cores squares with a bar of health.
    """
    units, heroes, lanes = s["units"][m], s["heroes"][m], s["wave"].shape[2]
    half, team, y = len(units) // 2, len(heroes) // 2, FIRST_LANE + LANE_APART * (lanes - 1) // 2
    out = np.empty((2 * y // DOT, WIDTH // DOT, 3), np.uint8)
    out[:] = GROUND
    for lane in range(lanes):
        _road(out, y, FIRST_LANE + LANE_APART * lane)
    order = [*range(team + SLOTS * lanes, half), *range(team, team + SLOTS * lanes), *range(team)]  # heroes on top
    for k, side in ((k, side) for k in order for side in range(2)):
        unit = units[side * half + k]
        if unit[HEALTH] <= 0:
            continue
        size = HERO if k < team else CORE if k == half - 1 else TOWER if k >= team + SLOTS * lanes else CREEP
        column, row = int(unit[X]) // DOT, int(unit[Y]) // DOT
        if size == HERO:
            _mark(out, column, row, size + 2, False, RIM)
        _mark(out, column, row, size, k >= team + SLOTS * lanes, SIDES[side])
        if size != CREEP:
            _bar(out, column, row - size - 2 * BAR - 1, unit[HEALTH] / unit[MOST], GREEN)
        if size == HERO:
            hero = heroes[side * team + k]
            mana = hero[MANA] / (MANA_AT_FIRST + MANA_A_LEVEL * hero[LEVEL])
            _bar(out, column, row - size - BAR - 1, mana, SKY)
    return out


def _road(out: np.ndarray, y: int, lane_y: int) -> None:
    """From core to core."""
    ends = [(CORE_X, y), (TURN_X, lane_y), (WIDTH - TURN_X, lane_y), (WIDTH - CORE_X, y)]
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        for part in np.linspace(0.0, 1.0, 400):
            column, row = int(x0 + part * (x1 - x0)) // DOT, int(y0 + part * (y1 - y0)) // DOT
            out[row - 4 : row + 5, column - 4 : column + 5] = ROAD


def _mark(out: np.ndarray, column: int, row: int, size: int, square: bool, colour: tuple[int, int, int]) -> None:
    top, left = max(row - size, 0), max(column - size, 0)
    part = out[top : row + size + 1, left : column + size + 1]
    y, x = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
    part[(y - row) ** 2 + (x - column) ** 2 <= (9 if square else 1) * size**2] = colour


def _bar(out: np.ndarray, column: int, row: int, part: float, colour: tuple[int, int, int]) -> None:
    row, left = max(row, 0), max(column - HERO, 0)
    out[row : row + BAR, left : column + HERO + 1] = BACK
    out[row : row + BAR, left : column - HERO + int(np.ceil(part * (2 * HERO + 1)))] = colour
