"""Exact values of k in a row with gravity: negamax on bitboards, with null windows and a hash table. Imports no torch.

A position is two int64: `own` the mover's stones, `mask` all stones. A column has rows + 1 bits from the bottom up; the
highest stays empty, so that no line runs on into the next column. `left` is the number of empty cells. All arithmetic
is int64: mixed with uint64 it would become float64.

A value is positive where the mover wins, and the greater, the sooner: of n cells, a win with stone number p is worth
(n + 2 - p) // 2, a loss the negative of that, a draw 0. An entry of the table is a position's key and the least and
greatest value that it can have, 62 bits. It is one number, so threads may share a table.
"""

from __future__ import annotations

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.boards.records import CELLS, COLUMNS, ROWS
from polyplay.envs.boards.row_kernels import K

BITS = 50  # (rows + 1) · columns at most
BOTTOM, FULL, HIGH, WIDE, LINE = range(5)  # of a board, int64 [5]
OWN, MASK, GOAL, UNTRIED, MOVES = range(5)  # of a row of the stack, int64 [left + 1, MOVES + columns]
NO, YES, OPEN = range(3)
VALUE = 6  # bits of a value
ZERO = 1 << (VALUE - 1)  # as which 0 is stored
FACTOR = 0x1E3779B97F4A7C15  # of the hash: odd
STORED = 8  # positions with more empty cells are stored,
PROBED = 16  # with more, those after each move are looked up first,
FOLDED = 20  # and with more, mirror images share an entry

_compiled = cached_njit()


@_compiled
def board_of(game: np.ndarray) -> np.ndarray:
    """What the other functions take of a game's numbers."""
    bottom, high = 0, game[ROWS] + 1
    for column in range(game[COLUMNS]):
        bottom |= 1 << (column * high)
    return np.array([bottom, bottom * ((1 << game[ROWS]) - 1), high, game[COLUMNS], game[K]], np.int64)


@_compiled
def bitboards(game: np.ndarray, record: np.ndarray) -> tuple[int, int, int]:
    """own, mask and left of a record."""
    own, mask, left = 0, 0, 0
    for row in range(game[ROWS]):
        for column in range(game[COLUMNS]):
            cell = record[CELLS + row * game[COLUMNS] + column]
            bit = 1 << (column * (game[ROWS] + 1) + game[ROWS] - 1 - row)
            left += cell == 0
            mask |= bit if cell else 0
            own |= bit if cell == record[0] + 1 else 0
    return own, mask, left


@_compiled
def winning_cells(board: np.ndarray, own: int) -> int:
    """Cells, empty or not, that complete a line of `own`."""
    found = own << 1  # of a column: upwards alone
    for _ in range(board[LINE] - 2):
        found = (found & own) << 1
    for shift in range(board[HIGH] - 1, board[HIGH] + 2):
        right, left = own << shift, own >> shift  # next to one stone on that side
        right2, left2 = (right & own) << shift, (left & own) >> shift  # to two
        if board[LINE] == 4:
            found |= ((right2 & own) << shift) | (right2 & left) | (right & left2) | ((left2 & own) >> shift)
        elif board[LINE] == 3:
            found |= right2 | (right & left) | left2
        else:
            found |= right | left
    return found & board[FULL]


@_compiled
def playable(board: np.ndarray, mask: int) -> int:
    """The lowest empty cell of each column."""
    return (mask + board[BOTTOM]) & board[FULL]


@_compiled
def key_of(board: np.ndarray, own: int, mask: int) -> int:
    """A number that a position and its mirror image share with no other."""
    key, image = own + mask + board[BOTTOM], 0
    column, rest = (1 << board[HIGH]) - 1, key
    for _ in range(board[WIDE]):
        image = (image << board[HIGH]) | (rest & column)
        rest >>= board[HIGH]
    return min(key, image)


@_compiled
def _entry(board: np.ndarray, own: int, mask: int, left: int, table: np.ndarray) -> tuple[int, int, int, int]:
    """A position's key, its place in the table, and the bounds of its value."""
    half, early = table.size // 2, left > FOLDED
    key = key_of(board, own, mask) if early else own + mask + board[BOTTOM]
    place = (((key * FACTOR) >> 37) & (half - 1)) + early * half  # early ones, worth more, are written over less
    entry = table[place]
    if entry >> (2 * VALUE) != key:
        return key, place, -ZERO, ZERO
    return key, place, (entry & (2 * ZERO - 1)) - ZERO, ((entry >> VALUE) & (2 * ZERO - 1)) - ZERO


@_compiled
def _store(board: np.ndarray, row: np.ndarray, left: int, result: int, table: np.ndarray) -> None:
    """Note whether the position of a stack's row reaches its goal."""
    key, place, least, most = _entry(board, row[OWN], row[MASK], left, table)
    least, most = max(least, -(left // 2)), min(most, (left - 1) // 2)
    if result == YES:
        least = max(least, row[GOAL])
    else:
        most = min(most, row[GOAL] - 1)
    table[place] = (((key << VALUE) | (most + ZERO)) << VALUE) | (least + ZERO)


@_compiled
def bit_count(x: int) -> int:
    n = 0
    while x:
        x &= x - 1
        n += 1
    return n


@_compiled
def _enter(board: np.ndarray, row: np.ndarray, left: int, table: np.ndarray) -> int:
    """YES or NO if it can be seen whether the position of a stack's row, without a win by one stone, reaches its goal;
    otherwise OPEN, and the row has the moves to try.
    """
    own, mask, goal = row[OWN], row[MASK], row[GOAL]
    moves = playable(board, mask)
    threats = winning_cells(board, own ^ mask) & ~mask
    forced = moves & threats
    if forced:
        moves = forced
    moves &= ~(threats >> 1)  # a stone there lets the other win above it
    if (left - 1) // 2 < goal:
        return NO
    if moves == 0 or forced & (forced - 1):
        return YES if -(left // 2) >= goal else NO
    if -((left - 2) // 2) >= goal:
        return YES
    if left > STORED:
        _, _, least, most = _entry(board, own, mask, left, table)
        if least >= goal:
            return YES
        if most < goal:
            return NO
    return _order(board, row, left, moves, table)


@_compiled
def _order(board: np.ndarray, row: np.ndarray, left: int, moves: int, table: np.ndarray) -> int:
    """Write the moves into the row, the best last: of most threats, then next to the middle. YES if the table knows
    that one reaches the goal, otherwise OPEN.
    """
    own, mask, n = row[OWN], row[MASK], 0
    for i in range(board[WIDE]):
        column = board[WIDE] // 2 + (1 - 2 * (i % 2)) * ((i + 1) // 2)  # from the middle outwards
        move = moves & (((1 << board[HIGH]) - 1) << (column * board[HIGH]))
        if move == 0:
            continue
        if left > PROBED and _entry(board, own ^ mask, mask | move, left - 1, table)[3] <= -row[GOAL]:
            return YES
        threats = bit_count(winning_cells(board, own | move) & ~(mask | move))
        j = n
        while j and row[MOVES + j - 1] >> BITS >= threats:
            row[MOVES + j] = row[MOVES + j - 1]
            j -= 1
        row[MOVES + j] = (threats << BITS) | move
        n += 1
    row[UNTRIED] = n
    return OPEN


@_compiled
def _reaches(board: np.ndarray, own: int, mask: int, left: int, goal: int, table: np.ndarray) -> bool:
    """Whether a position without a win by one stone is worth the goal or more: a depth-first search."""
    stack = np.zeros((left + 1, MOVES + board[WIDE]), np.int64)
    stack[0, OWN], stack[0, MASK], stack[0, GOAL] = own, mask, goal
    depth, result = 0, _enter(board, stack[0], left, table)
    while depth or result == OPEN:
        row = stack[depth]
        if result == OPEN:
            row[UNTRIED] -= 1
            move = row[MOVES + row[UNTRIED]] & ((1 << BITS) - 1)
            depth += 1
            below = stack[depth]
            below[OWN], below[MASK], below[GOAL] = row[OWN] ^ row[MASK], row[MASK] | move, 1 - row[GOAL]
            result = _enter(board, below, left - depth, table)
        else:
            depth -= 1
            above = stack[depth]
            result = YES if result == NO else OPEN if above[UNTRIED] else NO
            if result != OPEN and left - depth > STORED:
                _store(board, above, left - depth, result, table)
    return result == YES


@_compiled
def value_of(board: np.ndarray, own: int, mask: int, left: int, limit: int, table: np.ndarray) -> int:
    """A position's value, no further from 0 than the limit: with 1 who wins, and no more. The table's size is a power
    of two.
    """
    if winning_cells(board, own) & playable(board, mask):
        return min(limit, (left + 1) // 2)
    least, most = max(-limit, -(left // 2)), min(limit, (left - 1) // 2)
    while least < most:
        middle = 0 if least < 0 < most else (least + most) // 2  # first who wins, then how soon
        if _reaches(board, own, mask, left, middle + 1, table):
            least = middle + 1
        else:
            most = middle
    return least
