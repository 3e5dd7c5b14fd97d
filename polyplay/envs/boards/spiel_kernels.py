"""OpenSpiel's games behind the compiled rules. Imports no torch.

A record holds the moves so far, int16 each, behind the header of all records; its own number is 1 where the mover has
to pass, because in OpenSpiel the other player moves again. What needs the rules is asked of functions of Python
(boards.spiel), whose addresses are in the game's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from polyplay.envs.boards.records import CELLS, OWN, compiled, pass_turn, ply

LEGAL, PLAY, PLANES, PASS, LONGEST = 3, 4, 5, 6, 7  # of a game's numbers: three addresses, the pass, moves at most
MUST_PASS = 8  # added to a result
MOVER = 1 << 32  # the second player's turn, added to a number of moves
FAILED = -1  # the answer of a function that raised an exception before it gave any


def _type_call(typing: Any, address: Any, record: Any, moves: Any, last: Any, answer: Any) -> Any:
    """Of a call of the function at an address: void (int64, int64, int64, int64)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 4).as_pointer())
        builder.call(function, args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, types.int64), generate


_call: Any = intrinsic(_type_call)


@compiled
def ask(address: int, record: np.ndarray, moves: int, last: int) -> int:
    """What a function of Python answers. Raises RuntimeError where it raised anything: no exception passes through
    compiled code, so ctypes printed it, and what it returned is arbitrary.
    """
    answer = np.array([FAILED], np.int64)
    at = np.int64(record.ctypes.data) + CELLS
    _call(address, at, np.int64(moves), np.int64(last), np.int64(answer.ctypes.data))
    if answer[0] == FAILED:
        raise RuntimeError("OpenSpiel's rules were interrupted, or failed: what they raised is printed above")
    return answer[0]


@compiled
def legal(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> int:
    """Write the legal actions, ascending, into out int16 [actions]; their number."""
    if record[OWN]:
        out[0] = game[PASS]
        return 1
    return ask(game[LEGAL], record, ply(record), out.ctypes.data)


@compiled
def play(game: np.ndarray, record: np.ndarray, action: int) -> int:
    """Make a legal move in the record; GOES_ON, WON, DRAWN or LOST."""
    n = ply(record)
    found = ask(game[PLAY], record, n, action)
    record[CELLS + 2 * n], record[CELLS + 2 * n + 1] = np.int8(action & 255), np.int8(action >> 8)
    pass_turn(record)
    record[OWN] = found >= MUST_PASS
    return found % MUST_PASS


@compiled
def write_planes(game: np.ndarray, record: np.ndarray, out: np.ndarray) -> None:
    """Write OpenSpiel's tensor for the mover into out [planes, rows, columns]; last, 1 where the first player moves."""
    shown = np.empty(out.shape, np.float32)
    ask(game[PLANES], record, np.int64(ply(record)) + MOVER * np.int64(record[0]), shown.ctypes.data)
    out[:] = shown
    out[-1] = 1.0 - record[0]
