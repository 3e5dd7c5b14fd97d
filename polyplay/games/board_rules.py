"""Rules of board games as compiled functions that work on records of positions (see games/records.py). The rules of k
in a row and of Othello are defined in this module.

In Othello, a player who can flip no disc must pass, and a pass counts as a move. The game ends when neither player can
flip a disc. In Othello, `record[OWN]` is 1 if the player to move must pass.
"""

from __future__ import annotations

import threading

import numpy as np

from polyplay.core.compiled import call_address, inlined
from polyplay.core.errors import UserError
from polyplay.games import go, records
from polyplay.games.records import CELLS, COLUMNS, DRAWN, GOES_ON, KIND, LOST, OWN, ROWS, WON, compiled, pass_turn, ply

K, GRAVITY = range(3, 5)  # indices into `Game.numbers`


@compiled
def row_legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions in ascending order into `out`, int16 [actions]. Return the number of legal actions."""
    cells = game[COLUMNS] if game[GRAVITY] else game[ROWS] * game[COLUMNS]  # with gravity, check the top row only
    n = 0
    for action in range(cells):
        if record[CELLS + action] == 0:
            out[n] = action
            n += 1
    return n


@compiled
def row_play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in a record, in place. Return GOES_ON, WON or DRAWN."""
    columns = game[COLUMNS]
    row, column = (game[ROWS] - 1, action) if game[GRAVITY] else (action // columns, action % columns)
    while record[CELLS + row * columns + column] != 0:  # with gravity, find the lowest empty cell
        row -= 1
    own = record[0] + 1
    record[CELLS + row * columns + column] = own
    pass_turn(record)
    if _in_line(game, record, row, column, own):
        return WON
    return GOES_ON if ply(record) < game[ROWS] * columns else DRAWN


@compiled
def _in_line(game: np.ndarray, record: np.ndarray, row: int, column: int, own: int) -> bool:
    """Tell whether at least k adjacent stones of color `own` (1 or 2) lie on a line through the cell (row, column)."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        n = 1 + _run(game, record, row, column, down, right, own) + _run(game, record, row, column, -down, -right, own)
        if n >= game[K]:
            return True
    return False


@compiled
def _run(game: np.ndarray, record: np.ndarray, row: int, column: int, down: int, right: int, own: int) -> int:
    """Count consecutive stones of color `own` in the direction (down, right) from a cell, without the cell itself."""
    rows, columns = game[ROWS], game[COLUMNS]
    n, r, c = 0, row + down, column + right
    while 0 <= r < rows and 0 <= c < columns and record[CELLS + r * columns + c] == own:
        n, r, c = n + 1, r + down, c + right
    return n


@compiled
def row_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write the network's input into `out`, [3, rows, columns]. The planes are: the stones of the player to move; the
    stones of the opponent; all 1 if the first player is to move, else all 0.
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
    """Place two discs of each player crosswise in the middle of a record of zeros."""
    rows, columns = game[ROWS], game[COLUMNS]
    first = CELLS + (rows // 2 - 1) * columns + columns // 2 - 1
    record[first], record[first + 1] = 2, 1
    record[first + columns], record[first + columns + 1] = 1, 2


@inlined
def _turns(rows: int, columns: int, record: np.ndarray, cell: int, down: int, right: int, own: int) -> int:
    """Count the opponent's discs that a new disc of color `own` on `cell` would flip in the direction (down, right)."""
    row, column, n = cell // columns + down, cell % columns + right, 0
    while 0 <= row < rows and 0 <= column < columns and record[CELLS + row * columns + column] == 3 - own:
        row, column, n = row + down, column + right, n + 1
    inside = 0 <= row < rows and 0 <= column < columns
    return n if inside and record[CELLS + row * columns + column] == own else 0


@compiled
def _fits(rows: int, columns: int, record: np.ndarray, cell: int, own: int) -> bool:
    """Tell whether a cell is empty and a new disc of color `own` on the cell would flip a disc."""
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
    """Write the legal actions in ascending order into `out`, int16 [actions]. Return the number of legal actions. A
    pass is legal only if no other move is.
    """
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
    """Make a legal move in a record, in place. Return GOES_ON, or WON, DRAWN or LOST for the player who moved."""
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
    """Set `record[OWN]` of each record to 1 if the player to move must pass, else to 0."""
    for record in records:
        record[OWN] = not _can_move(game, record, record[0] + 1)


# Games of users (own_game) and of OpenSpiel: a record is the four numbers of the header, then the game's own position.
# The rules are C functions, made from Python or compiled methods; `Game.numbers` holds the functions' addresses.


LEGAL, PLAY, PLANES, NOTE, LONGEST = range(3, 8)  # indices into `Game.numbers`: four addresses, most moves of a game
FAILED, NO_MOVES, MANY_MOVES, NO_ACTION, TWICE, NO_RESULT = range(-1, -7, -1)  # negative results that report an error
WRONG = {
    FAILED: "raised an exception, which is printed above",
    NO_MOVES: "is empty before the game is over: let play return WON, LOST or DRAWN, or add a pass",
    MANY_MOVES: "has more moves than there are actions",
    NO_ACTION: "names an action outside 0 to `actions` - 1",
    TWICE: "names an action twice",
    NO_RESULT: "returned something other than GOES_ON, WON, DRAWN or LOST",
}


class Failure(threading.local):
    raised = ""  # description of the exception that a method has just raised in this thread
    text = ""  # error message about the last failed call of the rules


failure = Failure()


class RulesFailed(UserError):
    """Raised by compiled code when a call of a game's own rules has failed."""

    def __init__(self) -> None:
        super().__init__(failure.text)


@compiled
def call_rules(game: np.ndarray, which: int, record: np.ndarray, word: int) -> int:
    """Call the method `which` (LEGAL, PLAY or PLANES) of a game's rules. `word`: the action for PLAY, else the memory
    address of the output array. Raises RulesFailed.
    """
    answer = np.array([FAILED], np.int64)
    at = np.int64(record.ctypes.data) + CELLS
    call_address(game[which], (at, np.int64(word), np.int64(answer.ctypes.data)))
    if answer[0] < 0:
        call_address(game[NOTE], (np.int64(which), answer[0], np.int64(0)))
        raise RulesFailed
    return answer[0]


@compiled
def write_legal(found: np.ndarray, out: np.ndarray) -> int:
    """Write the actions `found` in ascending order into `out`, int16 [actions]. Return their number. If they are wrong,
    return a negative key of WRONG.
    """
    if found.size == 0:
        return NO_MOVES
    if found.size > out.size:
        return MANY_MOVES
    ascending = np.sort(found)
    if ascending[0] < 0 or ascending[-1] >= out.size:
        return NO_ACTION
    for i in range(found.size):
        if i > 0 and ascending[i] == ascending[i - 1]:
            return TWICE
        out[i] = ascending[i]
    return found.size


@compiled
def own_play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in a record, in place. Return GOES_ON, or WON, DRAWN or LOST for the player who moved."""
    result = call_rules(game, PLAY, record, action)
    pass_turn(record)
    return DRAWN if result == GOES_ON and ply(record) >= game[LONGEST] else result


@compiled
def own_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write the network's input into `out`, [planes, rows, columns], as the game's own rules define it."""
    shown = np.zeros(out.shape, np.float32)
    call_rules(game, PLANES, record, shown.ctypes.data)
    out[:] = shown


# The functions below serve every game, so callers are compiled once. `game` is boards.Game.numbers, int64 [8], whose
# first number, the kind of game, selects the rules.


@compiled
def start(game: np.ndarray, record: np.ndarray) -> None:
    """Write the initial position into a record."""
    record[:] = 0
    if game[KIND] == records.OTHELLO:
        othello_start(game, record)


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions in ascending order into `out`, int16 [actions]. Return the number of legal actions."""
    if game[KIND] == records.GO:
        return go.legal(game, record, out)
    if game[KIND] == records.OTHELLO:
        return othello_legal(game, record, out)
    if game[KIND] == records.OWN_GAME:
        return call_rules(game, LEGAL, record, out.ctypes.data)
    return row_legal(game, record, out)


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in a record, in place. Return GOES_ON, or WON, DRAWN or LOST for the player who moved."""
    if game[KIND] == records.GO:
        return go.play(game, record, np.int64(action))
    if game[KIND] == records.OTHELLO:
        return othello_play(game, record, np.int64(action))
    if game[KIND] == records.OWN_GAME:
        return own_play(game, record, np.int64(action))
    return row_play(game, record, np.int64(action))


@compiled
def write_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write the network's input into `out`, [planes, rows, columns]."""
    if game[KIND] == records.GO:
        go.write_planes(game, record, out)
    elif game[KIND] == records.OWN_GAME:
        own_planes(game, record, out)
    else:
        row_planes(game, record, out)


@compiled
def play_all(game: np.ndarray, records: np.ndarray, at: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Make the legal move actions[i] in records[at[i]], in place, for each i. Return the results, int8 [n]."""
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
    """Write the planes (network input) and masks of the lanes `at`, as the players to move see them. If a lane's game
    is over, write the planes as player side[lane] sees them, and a mask that allows all moves.
    """
    moves = np.empty(mask.shape[1], np.int16)
    for i in range(at.size):
        lane = at[i]
        record = records[lane]
        if over[lane]:  # show the board from the player's side, whoever moved last
            record = record.copy()
            record[0] = side[lane]
        write_planes(game, record, obs[lane])
        mask[lane] = over[lane]
        if not over[lane]:
            for m in moves[: legal(game, record, moves)]:
                mask[lane, m] = True


@compiled
def show(game: np.ndarray, records: np.ndarray, planes: np.ndarray) -> None:
    """Write the network's input for positions [n, record] into `planes`, [n, …], as the players to move see them."""
    for i in range(len(records)):
        write_planes(game, records[i], planes[i])
