"""The rules of all board games on records: k in a row, Othello.

The rules of Othello as compiled functions on a record that holds a whole position (records).

Who has no move that turns a disc passes, which is a move; where nobody has one the game ends. The record's own number
is 1 where the mover has to pass.
"""

from __future__ import annotations

import numpy as np

from polyplay.core.compiled import call_address, inlined
from polyplay.games import go, records
from polyplay.games.records import CELLS, COLUMNS, DRAWN, GOES_ON, KIND, LOST, OWN, ROWS, WON, compiled, pass_turn, ply

K, GRAVITY = range(3, 5)  # of a game's numbers


@compiled
def row_legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number."""
    cells = game[COLUMNS] if game[GRAVITY] else game[ROWS] * game[COLUMNS]  # with gravity: those of the top row
    n = 0
    for action in range(cells):
        if record[CELLS + action] == 0:
            out[n] = action
            n += 1
    return n


@compiled
def row_play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, WON or DRAWN."""
    columns = game[COLUMNS]
    row, column = (game[ROWS] - 1, action) if game[GRAVITY] else (action // columns, action % columns)
    while record[CELLS + row * columns + column] != 0:  # gravity: from the bottom up
        row -= 1
    own = record[0] + 1
    record[CELLS + row * columns + column] = own
    pass_turn(record)
    if _in_line(game, record, row, column, own):
        return WON
    return GOES_ON if ply(record) < game[ROWS] * columns else DRAWN


@compiled
def _in_line(game: np.ndarray, record: np.ndarray, row: int, column: int, own: int) -> bool:
    """Whether k stones of `own` lie in a line through that cell."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        n = 1 + _run(game, record, row, column, down, right, own) + _run(game, record, row, column, -down, -right, own)
        if n >= game[K]:
            return True
    return False


@compiled
def _run(game: np.ndarray, record: np.ndarray, row: int, column: int, down: int, right: int, own: int) -> int:
    """Stones of `own` one behind another from that cell on, without it."""
    rows, columns = game[ROWS], game[COLUMNS]
    n, r, c = 0, row + down, column + right
    while 0 <= r < rows and 0 <= c < columns and record[CELLS + r * columns + c] == own:
        n, r, c = n + 1, r + down, c + right
    return n


@compiled
def row_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write what a network sees into out [3, rows, columns]: the mover's stones, the other's, and 1 where the first
    player moves.
    """
    own, columns = record[0] + 1, game[COLUMNS]
    first = 1 if record[0] == 0 else 0
    for row in range(game[ROWS]):
        for column in range(columns):
            cell = record[CELLS + row * columns + column]
            out[0, row, column] = cell == own
            out[1, row, column] = cell == 3 - own
            out[2, row, column] = first


@compiled
def othello_start(game: np.ndarray, record: np.ndarray) -> None:
    """Two discs of each player in the middle, crosswise; the rest of the record is 0."""
    rows, columns = game[ROWS], game[COLUMNS]
    first = CELLS + (rows // 2 - 1) * columns + columns // 2 - 1
    record[first], record[first + 1] = 2, 1
    record[first + columns], record[first + columns + 1] = 1, 2


@inlined
def _turns(rows: int, columns: int, record: np.ndarray, cell: int, down: int, right: int, own: int) -> int:
    """Discs of the other that a disc of `own` on a cell would turn in that direction."""
    row, column, n = cell // columns + down, cell % columns + right, 0
    while 0 <= row < rows and 0 <= column < columns and record[CELLS + row * columns + column] == 3 - own:
        row, column, n = row + down, column + right, n + 1
    inside = 0 <= row < rows and 0 <= column < columns
    return n if inside and record[CELLS + row * columns + column] == own else 0


@compiled
def _fits(rows: int, columns: int, record: np.ndarray, cell: int, own: int) -> bool:
    """Whether a disc of `own` on an empty cell turns any."""
    if record[CELLS + cell] == 0:
        for down in range(-1, 2):
            for right in range(-1, 2):
                if (down != 0 or right != 0) and _turns(rows, columns, record, cell, down, right, own) > 0:
                    return True
    return False


@compiled
def _can_move(game: np.ndarray, record: np.ndarray, own: int) -> bool:
    rows, columns = game[ROWS], game[COLUMNS]
    cell = 0
    while cell < rows * columns and not _fits(rows, columns, record, cell, own):
        cell += 1
    return cell < rows * columns


@compiled
def othello_legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number. A pass is legal alone."""
    rows, columns, count = game[ROWS], game[COLUMNS], 0
    if record[OWN]:
        out[0] = rows * columns
        return 1
    for cell in range(rows * columns):
        if _fits(rows, columns, record, cell, record[0] + 1):
            out[count] = cell
            count += 1
    return count


@compiled
def othello_play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, WON, DRAWN or LOST."""
    rows, columns, own = game[ROWS], game[COLUMNS], record[0] + 1
    if action < rows * columns:
        for down in range(-1, 2):
            for right in range(-1, 2):
                if down != 0 or right != 0:
                    for k in range(1, 1 + _turns(rows, columns, record, action, down, right, own)):
                        record[CELLS + action + k * (down * columns + right)] = own
        record[CELLS + action] = own
    pass_turn(record)
    record[OWN] = 0
    if _can_move(game, record, 3 - own):
        return GOES_ON
    if _can_move(game, record, own):
        record[OWN] = 1
        return GOES_ON
    cells = record[CELLS : CELLS + rows * columns]
    lead = np.count_nonzero(cells == own) - np.count_nonzero(cells == 3 - own)
    return DRAWN if lead == 0 else WON if lead > 0 else LOST


@compiled
def note_passes(game: np.ndarray, records: np.ndarray) -> None:
    """Set records' own numbers by their cells and movers."""
    for record in records:
        record[OWN] = not _can_move(game, record, record[0] + 1)


# A record holds the moves so far, int16 each, behind the header of all records; its own number is 1 where the mover has
# to pass, because in OpenSpiel the other player moves again. What needs the rules is asked of functions of Python
# (open_spiel), whose addresses are in the game's numbers.


LEGAL, PLAY, PLANES, PASS, LONGEST = 3, 4, 5, 6, 7  # of a game's numbers: three addresses, the pass, moves at most
MUST_PASS = 8  # added to a result
MOVER = 1 << 32  # the second player's turn, added to a number of moves
FAILED = -1  # the answer of a function that raised an exception before it gave any


@compiled
def spiel_ask(address: int, record: np.ndarray, moves: int, last: int) -> int:
    """What a function of Python answers. Raises RuntimeError where it raised anything: no exception passes through
    compiled code, so ctypes printed it, and what it returned is arbitrary.
    """
    answer = np.array([FAILED], np.int64)
    at = np.int64(record.ctypes.data) + CELLS
    call_address(address, (at, np.int64(moves), np.int64(last), np.int64(answer.ctypes.data)))
    if answer[0] == FAILED:
        raise RuntimeError("OpenSpiel's rules were interrupted, or failed: what they raised is printed above")
    return answer[0]


@compiled
def spiel_legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number."""
    if record[OWN]:
        out[0] = game[PASS]
        return 1
    return spiel_ask(game[LEGAL], record, ply(record), out.ctypes.data)


@compiled
def spiel_play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, WON, DRAWN or LOST."""
    n = ply(record)
    found = spiel_ask(game[PLAY], record, n, action)
    record[CELLS + 2 * n], record[CELLS + 2 * n + 1] = np.int8(action & 255), np.int8(action >> 8)
    pass_turn(record)
    record[OWN] = found >= MUST_PASS
    return found % MUST_PASS


@compiled
def spiel_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write OpenSpiel's tensor for the mover into out [planes, rows, columns]; last, 1 where the first player moves."""
    shown = np.empty(out.shape, np.float32)
    spiel_ask(game[PLANES], record, np.int64(ply(record)) + MOVER * np.int64(record[0]), shown.ctypes.data)
    out[:] = shown
    out[-1] = 1.0 - record[0]


# `game` is a game's numbers (boards.Game.numbers): int64 [8], of which the first is its kind and decides which rules
# hold. So whatever is compiled with these functions serves every game.


@compiled
def start(game: np.ndarray, record: np.ndarray) -> None:
    """Write the initial position."""
    record[:] = 0
    if game[KIND] == records.OTHELLO:
        othello_start(game, record)


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number."""
    if game[KIND] == records.GO:
        return go.legal(game, record, out)
    if game[KIND] == records.OTHELLO:
        return othello_legal(game, record, out)
    if game[KIND] == records.SPIEL:
        return spiel_legal(game, record, out)
    return row_legal(game, record, out)


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, or WON, DRAWN or LOST for who made it."""
    if game[KIND] == records.GO:
        return go.play(game, record, np.int64(action))
    if game[KIND] == records.OTHELLO:
        return othello_play(game, record, np.int64(action))
    if game[KIND] == records.SPIEL:
        return spiel_play(game, record, np.int64(action))
    return row_play(game, record, np.int64(action))


@compiled
def write_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write what a network sees into out [planes, rows, columns]: of Go its own planes, of OpenSpiel's games
    their own; of other games the mover's stones, the other's, and 1 where the first player moves.
    """
    if game[KIND] == records.GO:
        go.write_planes(game, record, out)
    elif game[KIND] == records.SPIEL:
        spiel_planes(game, record, out)
    else:
        row_planes(game, record, out)


@compiled
def play_all(game: np.ndarray, records: np.ndarray, at: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A legal move in each of the records `at`; int8 [n] what they lead to."""
    out = np.empty(at.size, np.int8)
    for i in range(at.size):
        out[i] = play(game, records[at[i]], actions[i])
    return out


@compiled
def show_all(
    game: np.ndarray,
    records: np.ndarray,
    at: np.ndarray,
    side: np.ndarray,
    obs: np.ndarray,
    mask: np.ndarray,
    over: np.ndarray,
) -> None:
    """Write what players of `side` see, and which moves are legal: all where the game is over."""
    moves = np.empty(mask.shape[1], np.int16)
    for i in range(at.size):
        lane = at[i]
        record = records[lane]
        if over[lane]:  # the opponent's turn after the player's last move
            record = record.copy()
            record[0] = side[lane]
        write_planes(game, record, obs[lane])
        mask[lane] = over[lane]
        if not over[lane]:
            for m in moves[: legal(game, record, moves)]:
                mask[lane, m] = True


@compiled
def show(game: np.ndarray, records: np.ndarray, planes: np.ndarray) -> None:
    """What movers see of positions."""
    for i in range(len(records)):
        write_planes(game, records[i], planes[i])
