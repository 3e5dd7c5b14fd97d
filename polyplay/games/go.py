"""Rules of Go (Tromp and Taylor; Silver et al. 2017) as compiled functions on records. A record is an int8 array that
holds a position and the history of the game.

A record begins with the header and the cells, as in games/records.py. record[OWN] counts consecutive passes. The boards
of the last EIGHT positions begin at index game[BOARDS]. The board after n moves is number n % EIGHT of them. The uint64
hashes of all positions so far begin at index game[HASHES].

Each pair of a color and a cell has a random number. The hash of a position is the sum of its stones' numbers modulo
2⁶⁴. The low ten bits of each number equal 1, so the low ten bits of a hash are the number of stones. A move without a
capture adds one stone. For such a move, `legal` compares only hashes of positions with that number of stones.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from polyplay.core.compiled import inlined
from polyplay.games.records import CELLS, DRAWN, GOES_ON, LOST, OWN, PLIES, ROWS, WON, compiled, pass_turn, ply

KOMI, KO, SUICIDE, BOARDS, HASHES = range(3, 8)  # indices into `Game.numbers`; the komi is in half points
POSITIONAL, SITUATIONAL, SIMPLE = range(3)  # ko rules: what a move may not repeat, see boards.OPTIONS
LARGEST = 19
EIGHT = 8  # number of positions that a network sees, with the present one
BORDER = 3  # value of border places on a padded board
EMPTY = 1  # flag of `_flood`: a region has empty neighbors
STONES = np.uint64(1023)  # mask of the bits of a hash that count stones

_numbers = np.random.Generator(np.random.PCG64(20171018)).integers(0, 2**54, (3, LARGEST * LARGEST), np.uint64)
_STONE = (_numbers << np.uint64(10)) + np.uint64(1)  # numbers of stones for hashes, uint64 [color, cell]


@compiled
def longest(game: np.ndarray) -> int:
    """Return the number of moves after which a game always ends."""
    return 2 * game[ROWS] * game[ROWS]


@compiled
def _hashes(game: np.ndarray, record: np.ndarray) -> np.ndarray:
    """Return a view of the hashes in a record, uint64. Index n is the position after n moves."""
    return record[game[HASHES] :].view(np.uint64)


@inlined
def _beside(n: int, cell: int, side: int) -> int:
    """Return the cell next to `cell` on side 0 (above), 1 (left), 2 (right) or 3 (below), or −1 off the board."""
    if side == 0:
        return cell - n if cell >= n else -1
    if side == 1:
        return cell - 1 if cell % n > 0 else -1
    if side == 2:
        return cell + 1 if cell % n < n - 1 else -1
    return cell + n if cell + n < n * n else -1


# Groups of connected stones on a board with a border. By place: `board`, the stone; `group`, a group's number, which is
# the place of its first stone. By group number: `liberty`, the only liberty (−1: several); `sums` of hash numbers.
Groups = namedtuple("Groups", "board group liberty sums")


@compiled
def _find_groups(n: int, record: np.ndarray) -> Groups:
    width = n + 2
    size = width * width
    board, group, liberty = np.full(size, BORDER, np.int8), np.empty(size, np.int16), np.empty(size, np.int16)
    sums = np.empty(size, np.uint64)
    for row in range(n):
        for column in range(n):
            board[(row + 1) * width + column + 1] = record[CELLS + row * n + column]
    for at in range(width + 1, width * (n + 1)):
        stone = board[at]
        if stone == 0 or stone == BORDER:
            continue
        root = at
        if board[at - 1] == stone:
            root = int(group[at - 1])
            while group[root] != root:
                root = int(group[root])
        if board[at - width] == stone:
            above = int(group[at - width])
            while group[above] != above:
                above = int(group[above])
            group[max(root, above)] = min(root, above)
            root = min(root, above)
        group[at] = root
    for row in range(n):
        for column in range(n):
            at = (row + 1) * width + column + 1
            if board[at] != 0:
                group[at] = group[group[at]]
                if group[at] == at:
                    liberty[at], sums[at] = 0, np.uint64(0)
                sums[group[at]] += _STONE[board[at], row * n + column]
    for at in range(width + 1, width * (n + 1)):
        if board[at] == 0:
            for beside in (at - width, at - 1, at + 1, at + width):
                if board[beside] == 1 or board[beside] == 2:
                    of = group[beside]
                    liberty[of] = at if liberty[of] == 0 or liberty[of] == at else -1
    return Groups(board, group, liberty, sums)


@compiled
def _repeats(game: np.ndarray, record: np.ndarray, found: np.uint64) -> bool:
    """Tell whether the ko rule forbids a move that leads to the position with hash `found`."""
    last, hashes = ply(record), _hashes(game, record)
    if game[KO] == SIMPLE:
        return last > 0 and hashes[last - 1] == found
    step = 2 if game[KO] == SITUATIONAL else 1
    repeated = False
    for i in range(last + 1 - step, -1, -step):
        repeated |= hashes[i] == found
    return repeated


@compiled
def _one_stone_more(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the hashes of forbidden positions with one more stone into `out`. Return their number."""
    last, hashes, n = ply(record), _hashes(game, record), 0
    if game[KO] == SIMPLE:
        first, step = last - 1, last + 1
    else:
        first, step = (last - 1, 2) if game[KO] == SITUATIONAL else (last, 1)
    wanted = (hashes[last] + np.uint64(1)) & STONES
    for i in range(first, -1, -step):
        if hashes[i] & STONES == wanted:
            out[n] = hashes[i]
            n += 1
    return n


@compiled
def _gone(at: int, width: int, groups: Groups, takes: bool, own: int) -> np.uint64:
    """Sum the hash numbers of groups whose only liberty is `at`: the opponent's if `takes`, else own groups."""
    total, last = np.uint64(0), (-1, -1, -1)  # last: groups that are counted already
    for beside in (at - width, at - 1, at + 1, at + width):
        stone, of = groups.board[beside], int(groups.group[beside])
        if stone == 0 or stone == BORDER or (stone == own) == takes or groups.liberty[of] != at:
            continue
        if of != last[0] and of != last[1] and of != last[2]:
            last, total = (last[1], last[2], of), total + groups.sums[of]
    return total


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, in ascending order (the pass is last), into `out`. Return their number."""
    n, own, former = game[ROWS], record[0] + 1, np.empty(longest(game), np.uint64)
    groups, width = _find_groups(n, record), n + 2
    board, group, liberty, _ = groups
    now, more, count = _hashes(game, record)[ply(record)], _one_stone_more(game, record, former), 0
    for row in range(n):
        for column in range(n):
            at = (row + 1) * width + column + 1
            if board[at] != 0:
                continue
            alive, takes, joins = False, False, False
            for beside in (at - width, at - 1, at + 1, at + width):
                stone = board[beside]
                if stone == 0:
                    alive = True
                elif stone == own:
                    joins = True
                    alive |= liberty[group[beside]] != at
                elif stone != BORDER:
                    takes |= liberty[group[beside]] == at
            cell = row * n + column
            fine = alive or takes or (joins and game[SUICIDE] == 1)
            if fine and alive and not takes:
                after = now + _STONE[own, cell]
                for i in range(more):
                    fine &= former[i] != after
            elif fine:
                after = now + _STONE[own, cell] if takes else now
                fine = not _repeats(game, record, after - _gone(at, width, groups, takes, own))
            if fine:
                out[count] = cell
                count += 1
    out[count] = n * n
    return count + 1


@compiled
def _flood(n: int, record: np.ndarray, cell: int, found: np.ndarray, stop: int) -> tuple[int, int]:
    """Find the connected cells with the same content as `cell`. Write them into `found`, int16 [n²]. Return their
    number, and flags of their neighbors: EMPTY, 2 for a stone of the first player, 4 for a stone of the second player.

    If a neighbor has a flag in `stop`, the search ends early, with the cells found so far.
    """
    what, count, done, met = record[CELLS + cell], 1, 0, 0
    mark = what + 4
    found[0] = cell
    record[CELLS + cell] = mark
    while done < count and met & stop == 0:
        at = int(found[done])
        done += 1
        for side in range(4):
            beside = _beside(n, at, side)
            if beside >= 0:
                value = record[CELLS + beside]
                if value == what:
                    record[CELLS + beside] = mark
                    found[count] = beside
                    count += 1
                elif value != mark:
                    met |= 1 << value
    for i in range(count):
        record[CELLS + found[i]] = what
    return count, met


@compiled
def _take(n: int, record: np.ndarray, cell: int, found: np.ndarray) -> np.uint64:
    """Remove the group at `cell` if it has no liberty. Return the sum of the removed stones' hash numbers."""
    stone, total = record[CELLS + cell], np.uint64(0)
    count, met = _flood(n, record, cell, found, EMPTY)
    for i in range(0 if met & EMPTY else count):
        record[CELLS + found[i]] = 0
        total += _STONE[stone, found[i]]
    return total


@compiled
def _put(n: int, record: np.ndarray, cell: int) -> np.uint64:
    """Place a stone of the player to move, and remove captured stones. If the stone captures nothing and its group has
    no liberty, remove this group. Return the change of the position's hash.
    """
    own, found = record[0] + 1, np.empty(n * n, np.int16)
    record[CELLS + cell] = own
    change = _STONE[own, cell]
    for side in range(4):
        beside = _beside(n, cell, side)
        if beside >= 0 and record[CELLS + beside] == 3 - own:
            change -= _take(n, record, beside, found)
    if change == _STONE[own, cell]:
        change -= _take(n, record, cell, found)
    return change


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in place. Return the result for the player who moved: GOES_ON, WON, DRAWN or LOST."""
    n, now, hashes = game[ROWS], ply(record), _hashes(game, record)
    cells, slot = n * n, game[BOARDS] + now % EIGHT * n * n
    for i in range(cells):
        record[slot + i] = record[CELLS + i]
    after = hashes[now]
    if action == cells:
        record[OWN] += 1
    else:
        record[OWN] = 0
        after += _put(n, record, action)
    pass_turn(record)
    if record[OWN] < 2 and now + 1 < longest(game):
        hashes[now + 1] = after
        return GOES_ON
    lead = 2 * area(game, record) - game[KOMI]
    if lead == 0:
        return DRAWN
    return WON if (lead > 0) == (record[0] == 1) else LOST  # record[0] == 1: the first player has just moved


@compiled
def owners(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write the owner of each cell (1, 2, or 0 for none) into `out`, int8 [n²]. An empty region belongs to a player if
    it touches only this player's stones.
    """
    n = game[ROWS]
    found = np.empty(n * n, np.int16)
    for cell in range(n * n):
        out[cell] = record[CELLS + cell] if record[CELLS + cell] else -1
    for cell in range(n * n):
        if out[cell] < 0:
            count, met = _flood(n, record, cell, found, 0)
            for i in range(count):
                out[found[i]] = met // 2 if met < 6 else 0


@compiled
def area(game: np.ndarray, record: np.ndarray) -> int:
    """Return the number of cells that the first player owns, minus the number that the second player owns."""
    out = np.empty(game[ROWS] * game[ROWS], np.int8)
    owners(game, record, out)
    return int(np.count_nonzero(out == 1) - np.count_nonzero(out == 2))


@compiled
def write_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write the network's input into `out` [17, n, n].

    For the present position and the seven before it, newest first, there are two planes: the stones of the player to
    move, and the opponent's stones. The last plane is 1 if the first player is to move, else 0.
    """
    n, now, own = game[ROWS], ply(record), record[0] + 1
    cells = n * n
    for back in range(EIGHT):
        begin = CELLS if back == 0 else game[BOARDS] + (now - back) % EIGHT * cells
        for row in range(n):
            for column in range(n):
                stone = record[begin + row * n + column] if back <= now else 0
                out[2 * back, row, column] = stone == own
                out[2 * back + 1, row, column] = stone == 3 - own
    first = 1 if record[0] == 0 else 0
    for row in range(n):
        for column in range(n):
            out[2 * EIGHT, row, column] = first


@compiled
def read_planes(game: np.ndarray, planes: np.ndarray, records: np.ndarray) -> None:
    """Restore records from `planes`, bool [m, 17, n²]. `records` must be zeros.

    Planes do not show the number of moves. It is estimated from the number of stones, and is at least EIGHT.
    """
    cells = game[ROWS] * game[ROWS]
    for i in range(len(records)):
        record, shown = records[i], planes[i]
        own, stones, repeated = 1 if shown[2 * EIGHT, 0] else 2, 0, True
        for cell in range(cells):
            stones += shown[0, cell] or shown[1, cell]
            repeated &= shown[0, cell] == shown[2, cell] and shown[1, cell] == shown[3, cell]
        now = max(EIGHT, stones)
        now += now % 2 != own - 1
        record[0], record[1], record[2] = own - 1, now % PLIES, now // PLIES
        record[OWN] = repeated and (stones > 0 or own == 2)
        hashes = _hashes(game, record)
        for back in range(EIGHT):
            total, slot = np.uint64(0), game[BOARDS] + (now - back) % EIGHT * cells
            for cell in range(cells):
                stone = own if shown[2 * back, cell] else 3 - own if shown[2 * back + 1, cell] else 0
                record[slot + cell] = stone
                if stone:
                    total += _STONE[stone, cell]
                if back == 0:
                    record[CELLS + cell] = stone
            hashes[now - back] = total
