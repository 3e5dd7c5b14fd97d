"""Small games of a user's, right and wrong ones: who has two stones side by side in a row of six cells wins."""

from __future__ import annotations

import numpy as np
from numba import njit

from polyplay.games.own_game import DRAWN, GOES_ON, LOST, WON, GameRules, board_symmetries


@njit
def play(position, action):
    position[action] = 1
    won = (action > 0 and position[action - 1] == 1) or (action < 5 and position[action + 1] == 1)
    position[:] = -position
    return WON if won else GOES_ON if np.any(position == 0) else DRAWN


class Row(GameRules):
    actions, planes, longest, size = 6, (2, 1, 6), 6, 6
    symmetries = board_symmetries(1, 6, 6)

    def legal(self, position):
        return np.flatnonzero(position == 0)

    def play(self, position, action):
        return play.py_func(position, action)

    def write_planes(self, position, out):
        out[0, 0], out[1, 0] = position == 1, position == -1


class Compiled(Row):
    title, play = "a row", staticmethod(play)

    @staticmethod
    @njit
    def legal(position):
        return np.flatnonzero(position == 0)

    @staticmethod
    @njit
    def write_planes(position, out):
        out[0, 0], out[1, 0] = position == 1, position == -1


class Stuck(Row):
    def legal(self, position):
        return [] if np.count_nonzero(position) == 1 else super().legal(position)


class CompiledStuck(Compiled):
    @staticmethod
    @njit
    def legal(position):
        moves = np.flatnonzero(position == 0)
        return moves[:0] if moves.size == 5 else moves


class Beyond(Row):
    def legal(self, position):
        return [*super().legal(position), 6]


class Twice(Row):
    def legal(self, position):
        return [0, 0]


class Halves(Row):
    def legal(self, position):
        return [0.5]


class Wide(Row):
    def write_planes(self, position, out):
        out[:] = np.zeros((2, 1, 7))


class Endless(Row):
    def play(self, position, action):
        position[5] += 1
        return GOES_ON

    def legal(self, position):
        return [0]

    def write_planes(self, position, out):
        out[:] = position[5]

    symmetries = ()


class Trap(Row):
    """The first cell loses, so a game may end with its first move."""

    symmetries = ()

    def play(self, position, action):
        return LOST if action == 0 else super().play(position, action)


class Odd(Row):
    def play(self, position, action):
        return 7


class Careless(Row):
    def write_planes(self, position, out):
        position[0] = 1


class Hot(Row):
    def write_planes(self, position, out):
        out[:] = np.inf


class Broken(Row):
    def legal(self, position):
        raise KeyError("cells")


class Floats(Row):
    def start(self):
        return np.zeros(6)


class Crooked(Row):
    symmetries = ((np.arange(6), np.arange(6)[::-1]),)


class Loose(Row):
    symmetries = ((np.arange(5), np.arange(6)),)


class Unsized(GameRules):
    planes, longest, size = (1, 1, 1), 1, 1
    legal = play = write_planes = lambda self, *given: None


class Flat(Row):
    planes = (6,)


class Unfinished(GameRules):
    def legal(self, position):
        return [0]


class Untyped(Compiled):
    @staticmethod
    @njit
    def legal(position):
        return position.nowhere


nothing = 7
