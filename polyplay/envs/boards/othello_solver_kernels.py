"""Exact outcomes of Othello on small boards: negamax on bitboards with null windows. Imports no torch.

A position is two int64, `own` the mover's discs and `other` the other player's: bit i is cell i of a record. A line of
discs to turn never goes on into the next row, since but for columns its inner discs are off the first and last column.
"""

from __future__ import annotations

import numpy as np

from polyplay.envs.boards.records import CELLS, COLUMNS, ROWS, compiled
from polyplay.envs.boards.solver_kernels import NO, OPEN, YES, bit_count

LONGEST_SIDE = 6  # of a board
CELL_BITS = LONGEST_SIDE * LONGEST_SIDE
SIDE, FULL, INNER = range(3)  # of a board, int64 [3]: cells of a side, all cells, all but the first and last column
OWN, OTHER, LEFT, GOAL, UNTRIED, MOVES = range(6)  # of a row of the stack: a position, its empty cells, moves to try
UNSORTED = 5  # with so few empty cells or fewer, moves are tried as they come


@compiled
def othello_board(game: np.ndarray) -> np.ndarray:
    """What the other functions take of a game's numbers."""
    side, full, inner = game[ROWS], (1 << (game[ROWS] * game[COLUMNS])) - 1, 0
    for cell in range(side * side):
        if 0 < cell % side < side - 1:
            inner |= 1 << cell
    return np.array([side, full, inner], np.int64)


@compiled
def discs_of(record: np.ndarray) -> tuple[int, int]:
    """own and other of a record."""
    own, other = 0, 0
    for cell in range(record.size - CELLS):
        disc = record[CELLS + cell]
        own |= (1 << cell) if disc == record[0] + 1 else 0
        other |= (1 << cell) if disc == 2 - record[0] else 0
    return own, other


@compiled
def legal_cells(board: np.ndarray, own: int, other: int) -> int:
    """Empty cells where a disc of `own` turns others; 0: a pass."""
    side, found = board[SIDE], 0
    for shift in (1, side - 1, side, side + 1):
        between = other if shift == side else other & board[INNER]
        after, before = (own << shift) & between, (own >> shift) & between
        for _ in range(side - 3):
            after |= (after << shift) & between
            before |= (before >> shift) & between
        found |= (after << shift) | (before >> shift)
    return found & board[FULL] & ~(own | other)


@compiled
def turned_by(board: np.ndarray, own: int, other: int, move: int) -> int:
    """The discs of `other` that a disc of `own` on a cell, one bit, turns."""
    side, found = board[SIDE], 0
    for shift in (1, side - 1, side, side + 1):
        between = other if shift == side else other & board[INNER]
        after, before = (move << shift) & between, (move >> shift) & between
        for _ in range(side - 3):
            after |= (after << shift) & between
            before |= (before >> shift) & between
        found |= after if (after << shift) & own else 0
        found |= before if (before >> shift) & own else 0
    return found


@compiled
def _enter(board: np.ndarray, row: np.ndarray) -> int:
    """YES or NO if the game of a stack's row is over and reaches its goal or not; otherwise OPEN, and the row has the
    moves to try, of which 0 is a pass.
    """
    own, other = row[OWN], row[OTHER]
    moves = legal_cells(board, own, other)
    row[UNTRIED], row[MOVES] = 1, 0
    if moves:
        _order(board, row, moves)
    elif legal_cells(board, other, own) == 0:
        return YES if bit_count(own) - bit_count(other) >= row[GOAL] else NO
    return OPEN


@compiled
def _order(board: np.ndarray, row: np.ndarray, moves: int) -> None:
    """Write the moves into the row, the best last: with the fewest answers."""
    own, other, n = row[OWN], row[OTHER], 0
    while moves:
        move, answers = moves & -moves, 0
        moves ^= move
        if row[LEFT] > UNSORTED:
            turned = turned_by(board, own, other, move)
            answers = bit_count(legal_cells(board, other ^ turned, own | move | turned))
        j = n
        while j and row[MOVES + j - 1] >> CELL_BITS < answers:
            row[MOVES + j] = row[MOVES + j - 1]
            j -= 1
        row[MOVES + j] = (answers << CELL_BITS) | move
        n += 1
    row[UNTRIED] = n


@compiled
def _reaches(board: np.ndarray, own: int, other: int, left: int, goal: int) -> bool:
    """Whether the mover's discs at the end are more than the other's by the goal, 0 or 1: a depth-first search."""
    stack = np.zeros((2 * left + 1, MOVES + max(left, 1)), np.int64)  # no two passes follow each other
    stack[0, OWN], stack[0, OTHER], stack[0, LEFT], stack[0, GOAL] = own, other, left, goal
    depth, result = 0, _enter(board, stack[0])
    while depth or result == OPEN:
        row = stack[depth]
        if result == OPEN:
            row[UNTRIED] -= 1
            move = row[MOVES + row[UNTRIED]] & board[FULL]
            turned = turned_by(board, row[OWN], row[OTHER], move)
            depth += 1
            below = stack[depth]
            below[OWN], below[OTHER] = row[OTHER] ^ turned, row[OWN] | move | turned
            below[LEFT], below[GOAL] = row[LEFT] - (move != 0), 1 - row[GOAL]
            result = _enter(board, below)
        else:
            depth -= 1
            result = YES if result == NO else OPEN if stack[depth, UNTRIED] else NO
    return result == YES


@compiled
def othello_outcome(board: np.ndarray, own: int, other: int) -> int:
    """1 if the mover wins by perfect play of both, 0 for a draw, -1 if the other wins."""
    left = bit_count(board[FULL] & ~(own | other))
    if _reaches(board, own, other, left, 1):
        return 1
    return 0 if _reaches(board, own, other, left, 0) else -1
