"""Gomoku on 7×7 with the swap rule: `polyplay train alphago_zero --env game:gomoku:Gomoku`, in this file's folder.

Five or more stones in a row win. After the first stone the second player may take its side, instead of placing a stone.
A position has the cells from the view of the player to move (1: own stones, -1: the other's), then the ply number.
"""

import numpy as np
from numba import njit

from polyplay.games.own_game import DRAWN, GOES_ON, WON, GameRules, board_symmetries

SIDE, ROW, compiled = 7, 5, njit(cache=True)  # compiled once for all processes
CELLS = SWAP = MOVES = SIDE * SIDE  # SWAP: the action after the cells; MOVES: the entry after them


@compiled
def run(cells, row, column, down, right):
    n = 0  # consecutive own stones from a cell in one direction, without the cell
    while 0 <= row + down < SIDE and 0 <= column + right < SIDE and cells[(row + down) * SIDE + column + right] == 1:
        row, column, n = row + down, column + right, n + 1
    return n


class Gomoku(GameRules):
    actions, planes, longest, size = CELLS + 1, (3, SIDE, SIDE), CELLS + 1, CELLS + 1
    symmetries = board_symmetries(SIDE, SIDE, CELLS + 1)
    goal = "Five in a row win; the second player may swap after the first stone."

    @staticmethod
    @compiled
    def legal(position):
        moves = np.flatnonzero(position[:CELLS] == 0)
        return np.append(moves, SWAP) if position[MOVES] == 1 else moves

    @staticmethod
    @compiled
    def play(position, action):
        cells, row, column, won = position[:CELLS], action // SIDE, action % SIDE, False
        position[MOVES] += 1
        if action != SWAP:  # after a swap the stone still belongs to the opponent of the player to move
            cells[action] = 1
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                won |= run(cells, row, column, down, right) + run(cells, row, column, -down, -right) >= ROW - 1
            cells[:] = -cells
        return WON if won else GOES_ON if np.any(cells == 0) else DRAWN

    @staticmethod
    @compiled
    def write_planes(position, out):
        for cell, stone in enumerate(position[:CELLS]):
            out[0, cell // SIDE, cell % SIDE] = stone == 1
            out[1, cell // SIDE, cell % SIDE] = stone == -1
        out[2] = position[MOVES] == 1  # a swap is legal

    def stones(self, position):
        mine = 1 + position[MOVES] % 2
        return np.choose(position[:CELLS] + 1, (3 - mine, 0, mine))

    def move_name(self, action):
        return "swap" if action == SWAP else ""
