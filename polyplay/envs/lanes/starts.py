"""Where matches of the lane game begin, and with `randomise` how unlike each other: as if in the middle of a match, so
that all of it is learnt from the start on (Berner et al. 2019 vary heroes, lanes and health). Imports no torch.
"""

from __future__ import annotations

import numpy as np

from polyplay.envs.lanes import rules
from polyplay.envs.lanes.units import middle
from polyplay.envs.lanes.world import (
    AWAY,
    CORE_HEALTH,
    CORE_X,
    CREEP_RANGE,
    DEAD,
    EXPERIENCE,
    EXPERIENCE_LOT,
    FIRST_LANE,
    GOLD,
    GOLD_LOT,
    HEALTH,
    HEALTH_A_LEVEL,
    HEALTH_AT_FIRST,
    LANE_APART,
    LATE,
    LEVEL,
    LOT,
    MANA,
    MANA_A_LEVEL,
    MANA_AT_FIRST,
    MOST,
    OUTER_X,
    RETURNS,
    SLOTS,
    SPAWN_X,
    SPREAD,
    TO_LEVEL,
    TOWER_HEALTH,
    TURN_X,
    UNEVEN,
    WAVE,
    WIDTH,
    WORN,
    LaneWorld,
    X,
    Y,
)
from polyplay.envs.toys.still import Arrays, Draw


def start_matches(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """New matches, in LaneWorld.arrays."""
    units, n = s["units"], len(s["units"])
    for u in heroes_of(world, units):
        units[:, u, MOST] = HEALTH_AT_FIRST * _unlike(world, draw, n)
    for side, lane in np.ndindex(2, world.lanes):
        s["wave"][:, side, lane] = s["wave"][:, side, lane] * _unlike(world, draw, n)
    rules.begin_lanes(units, s["heroes"])
    if world.randomise:
        late = world.randomise * LATE * draw() * (world.length // world.repeat)
        s["age"][:] = late.astype(np.int64) * world.repeat  # matches that begin together do not stay in step
        _grow(world, s, draw)
        _spread(world, s, draw)
        _wear(world, units, draw)
        _meet(world, units, s["wave"], draw)


def heroes_of(world: LaneWorld, units: np.ndarray) -> list[int]:
    """The units of seats, in order."""
    half = units.shape[1] // 2
    return [*range(world.team), *range(half, half + world.team)]


def _unlike(world: LaneWorld, draw: Draw, n: int) -> np.ndarray:
    """By what something is more or less in n matches."""
    return 1.0 + LOT * world.randomise * (2.0 * draw() - 1.0) if world.randomise else np.ones(n)


def _grow(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Experience and gold: one side may have much more of it than the other."""
    units, heroes, ahead = s["units"], s["heroes"], [world.randomise * draw() for _ in range(2)]
    for p, u in enumerate(heroes_of(world, units)):
        side = p // world.team
        experience = (EXPERIENCE_LOT * ahead[side] * draw()).astype(np.int64)
        level = ((1.0 + np.sqrt(1.0 + 4.0 * experience / TO_LEVEL)) / 2.0).astype(np.int64)
        heroes[:, p, EXPERIENCE], heroes[:, p, LEVEL] = experience, level
        heroes[:, p, GOLD] = GOLD_LOT * ahead[side] * draw()
        heroes[:, p, MANA] = MANA_AT_FIRST + MANA_A_LEVEL * level
        units[:, u, MOST] += HEALTH_A_LEVEL * (level - 1).astype(np.int32)
        units[:, u, HEALTH] = units[:, u, MOST]


def _spread(world: LaneWorld, s: Arrays, draw: Draw) -> None:
    """Heroes begin anywhere on their way to the other core; some are dead and return later."""
    units, chance = s["units"], world.randomise
    for p, u in enumerate(heroes_of(world, units)):
        x = SPAWN_X + (chance * draw() * (WIDTH - CORE_X - SPAWN_X)).astype(np.int64)
        lane = (draw() * world.lanes).astype(np.int64)
        y = np.where(x > TURN_X, FIRST_LANE + LANE_APART * lane, units[:, u, Y])
        units[:, u, X] = x if p < world.team else WIDTH - x
        units[:, u, Y] = np.where(x > WIDTH - TURN_X, middle(world.lanes), y)
        dead, away = draw() < DEAD * chance, (AWAY * draw()).astype(np.int64)
        units[:, u, HEALTH] = np.where(dead, 0, units[:, u, HEALTH])
        s["heroes"][:, p, RETURNS] = np.where(dead, s["age"] + 1 + away, 0)


def _wear(world: LaneWorld, units: np.ndarray, draw: Draw) -> None:
    """Some of the buildings' health is gone, in each lane from the outer one on; one side has a little to catch up."""
    half, both = units.shape[1] // 2, [WORN * draw() for _ in range(world.lanes)]
    for side in range(2):
        first, gone = side * half + world.team + SLOTS * world.lanes, np.zeros(len(units))
        for lane in range(world.lanes):
            lost = world.randomise * (both[lane] + UNEVEN * draw())
            gone = np.maximum(gone, lost)
            for tower in range(2):
                left = np.ceil(TOWER_HEALTH * np.clip(1.0 + tower - lost, 0.0, 1.0))
                units[:, first + 2 * lane + tower, HEALTH] = left
        units[:, first + 2 * world.lanes, HEALTH] = np.ceil(CORE_HEALTH * np.clip(3.0 - gone, 0.0, 1.0))


def _meet(world: LaneWorld, units: np.ndarray, wave: np.ndarray, draw: Draw) -> None:
    """In each lane a wave of each side, face to face somewhere between the outer towers."""
    half = units.shape[1] // 2
    for lane in range(world.lanes):
        front = WIDTH // 2 + (world.randomise * (draw() - 0.5) * (WIDTH - 2 * OUTER_X)).astype(np.int64)
        for side, k in np.ndindex(2, WAVE):
            u, behind = side * half + world.team + SLOTS * lane + k, CREEP_RANGE // 2 + k * SPREAD
            units[:, u, X] = front + (behind if side else -behind)
            units[:, u, Y] = FIRST_LANE + LANE_APART * lane
            units[:, u, HEALTH] = units[:, u, MOST] = wave[:, side, lane]
