"""A game between a person and an agent, on a web page or in the terminal."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from polyplay.cli.play import MoveList
from polyplay.core.errors import NotFinite
from polyplay.core.files import Row
from polyplay.games import records
from polyplay.games.board_pool import solver, unsolved
from polyplay.games.boards import KInARow
from polyplay.search import Search
from polyplay.search.search import SearchPolicy

LEAVES = 8  # leaves of the tree that the network evaluates at once: with few, a single game makes small batches
SHARE = 16  # least simulations per leaf of such a batch: a smaller search evaluates fewer leaves at once
EVERY = 0.03  # seconds between two looks at a running search

Verdict = tuple[int, int]  # (1: the mover wins, 0: a draw, -1: the mover loses; plies until the end)


class PlaySession:
    """One game between a person and an agent on the web page of `polyplay play`.

    Any thread may call the methods. A method raises ValueError if the game does not allow the change now.
    `about`: facts about the agent that the page shows.
    """

    def __init__(self, policy: SearchPolicy, simulations: int, about: Row):
        self.policy, self.board, self.about, self.simulations = policy, policy.board, about, simulations
        self.game, self.person = MoveList(self.board), 0
        self.found, self.trouble = dict[int, Row](), ""  # found: ply → result of its search
        self.version, self.closed, self.changed = 0, False, threading.Condition()
        self.why_unsolved, self.solved = unsolved(self.board), dict[bytes, dict[int, Verdict]]()  # by position
        self.thread = threading.Thread(target=self._run, daemon=True, name="agent")
        self.thread.start()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Allow changes of the game inside a `with` block, and wake the agent's thread at the end of the block."""
        with self.changed:
            yield
            self.version += 1
            self.trouble = ""
            self.changed.notify_all()

    def close(self) -> None:
        with self._changing():
            self.closed = True
        self.thread.join()

    # -------------------------------------------------------------------------------- what a person does

    def move(self, action: int, ply: int) -> None:
        """Play the person's move. Raises ValueError on the agent's turn, or if the game does not have `ply` moves."""
        with self._changing():
            if self.game.result != records.GOES_ON or ply != len(self.game.moves) or self.game.mover != self.person:
                raise ValueError("it is not your turn")
            self.game.play(action)

    def undo(self) -> None:
        """Take back the person's last move and all later moves."""
        with self._changing():
            n = self.game.undoable(self.person)
            if not n:
                raise ValueError("you have no move to take back")
            self.game.undo(n)
            self.found = {ply: found for ply, found in self.found.items() if ply <= len(self.game.moves)}

    def restart(self, person: int) -> None:
        """Start a new game. The person is the first player (0) or the second player (1)."""
        with self._changing():
            self.game, self.person, self.found = MoveList(self.board), person, {}

    def take_side(self, person: int) -> None:
        """Let the person be the first player (0) or the second player (1). The agent takes the other side."""
        with self._changing():
            self.person = person

    def simulate(self, simulations: int) -> None:
        """Set the number of simulations per search. The current position is searched again."""
        with self._changing():
            self.simulations = simulations

    # -------------------------------------------------------------------------------- what the agent does

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self._wanted())
                if self.closed:
                    return
                version, simulations, record = self.version, self.simulations, self.game.record.copy()
            try:
                self._search(version, simulations, record)
            except Exception as e:  # else the page would wait forever
                trouble = str(e)
                if not isinstance(e, NotFinite):
                    traceback.print_exc()
                    trouble = f"the search failed with {type(e).__name__}: {e}"
                with self.changed:
                    self.trouble = trouble if self.version == version else self.trouble

    def _wanted(self) -> bool:
        if self.game.result != records.GOES_ON or self.trouble:
            return False
        found = self.found.get(len(self.game.moves))
        return self.game.mover != self.person or not (found and found["over"] and found["asked"] == self.simulations)

    def _search(self, version: int, simulations: int, record: np.ndarray) -> None:
        """Search the position `record`, but stop if the game changes. Then make the move if it is the agent's turn."""
        simulate(self.policy, simulations)
        shown = -EVERY
        for search in self.policy.grow(record[None]):
            over = len(search.finished().games) > 0
            if not over and time.monotonic() < shown + EVERY:
                continue
            shown = time.monotonic()
            with self.changed:
                if self.version != version:
                    return
                self.found[len(self.game.moves)] = report(search) | {"over": over}
                if over and self.game.mover != self.person:
                    with self._changing():
                        self.game.play(int(search.choose(search.finished())[0]))

    # -------------------------------------------------------------------------------- what a page shows

    def state(self) -> Row:
        with self.changed:
            game, board, ply = self.game, self.board, len(self.game.moves)
            return {
                "about": self.about,
                "board": {"title": board.title, "rows": board.rows, "columns": board.columns, "goal": board.goal},
                "gravity": board.gravity,
                "slanted": board.slanted,
                "counted": board.counted,
                "others": [] if board.gravity else list(range(board.cells, board.actions)),  # moves that are not cells
                "names": [board.move_name(action) for action in range(board.actions)],
                "cells": board.stones(game.record).tolist(),
                "moves": list(game.moves),
                "mover": game.mover,
                "person": self.person,
                "legal": game.legal,
                "over": game.result != records.GOES_ON,
                "winner": game.winner,
                "margin": game.margin,
                "owners": game.owners(),
                "line": game.line(),
                "undo": self.game.undoable(self.person) > 0,
                "simulations": self.simulations,
                "thinking": self._wanted(),
                "now": self.found.get(ply),
                "before": self.found.get(ply - 1),
                "values": [self._value(i) for i in range(ply + 1)],
                "solver": self._solved(),
                "trouble": self.trouble,
            }

    def _solved(self) -> Row:
        """Return the solver's result of each move (win, draw or loss) and the number of moves until the end."""
        record, key = self.game.record, self.game.record.tobytes()
        if not self.why_unsolved and self.game.result == records.GOES_ON and key not in self.solved:
            found = solver()
            scores = found.scores(record).items()
            self.solved[key] = {move: (int(np.sign(score)), found.plies(record, score)) for move, score in scores}
        return {"verdicts": self.solved.get(key, {}), "why_not": self.why_unsolved}

    def _value(self, ply: int) -> float | None:
        """Return a position's value for the first player. At the end of the game, the value is the result."""
        if ply == len(self.game.moves) and self.game.result != records.GOES_ON:
            return 0.0 if self.game.winner is None else 1.0 - 2.0 * self.game.winner
        return self.found[ply]["value"] if ply in self.found else None


class TerminalGame:
    """A game between a person and an agent in the terminal. The person types moves."""

    def __init__(self, policy: SearchPolicy, simulations: int):
        self.policy, self.board, self.game, self.person = policy, policy.board, MoveList(policy.board), 0
        simulate(policy, simulations)

    def run(self) -> None:
        """Play until the input ends. The person types moves or commands such as undo."""
        print(f"{self.board.title}. {self.board.goal}{' ' * bool(self.board.goal)}You move first.")
        self._help()
        with suppress(EOFError):
            while True:
                self._show()
                typed = input("> ").strip()
                if typed in self.words:
                    self.words[typed]()
                elif (action := self._action(typed)) is not None:
                    self.game.play(action)
                else:
                    legal = " ".join(map(self.board.move_name, self.game.legal))
                    print(f"{typed!r} is not a legal move; legal: {legal or 'none, the game is over'}")
        print()

    def _action(self, typed: str) -> int | None:
        """Return the legal move with this name, or None. In Connect Four, a column's number (from 1) is also a name."""
        columns = isinstance(self.board, KInARow) and self.board.gravity
        names = {str(action + 1): action for action in self.game.legal if columns}
        return (names | {self.board.move_name(action): action for action in self.game.legal}).get(typed)

    @property
    def words(self) -> dict[str, Callable[[], None]]:
        return {"undo": self._undo, "new": self._begin, "sides": self._change_sides, "help": self._help}

    def _help(self) -> None:
        names = [self.board.move_name(action) for action in self.game.legal]
        moves = f" ({', '.join(names[:3])} …)" if names else ""
        print(f"Type a move{moves}, or: {', '.join(self.words)}; Ctrl-D ends")

    def _undo(self) -> None:
        self.game.undo(self.game.undoable(self.person))

    def _begin(self) -> None:
        self.game = MoveList(self.board)

    def _change_sides(self) -> None:
        self.person = 1 - self.person

    def _show(self) -> None:
        """Let the agent play as long as it is the agent's turn, and print the board."""
        while self.game.legal and self.game.mover != self.person:
            moves, values = self.policy.choose(self.game.record[None])
            self.game.play(int(moves[0]))
            print(f"The agent plays {self.board.move_name(int(moves[0]))}, and expects {values[0]:+.2f} (-1 to 1)")
        print(self.board.draw(self.game.record))
        if self.game.result != records.GOES_ON:
            winner = {None: "A draw", self.person: "You win"}.get(self.game.winner, "The agent wins")
            print(
                f"{winner}{f' by {margin:g}' if (margin := self.game.margin) and self.game.winner is not None else ''}"
            )


def simulate(policy: SearchPolicy, simulations: int) -> None:
    """Set the number of simulations per search, and the number of tree leaves that are evaluated at once."""
    leaves = max(1, min(LEAVES, simulations // SHARE))
    if (policy.options.simulations, policy.options.leaves) != (simulations, leaves):
        policy.simulate(simulations, leaves)


def report(search: Search) -> Row:
    """Return the current results of a search in one game. `q` has values for the player to move. `value` and `raw` are
    values for the first player.
    """
    found = search.look(np.array([0]))
    sign = 1 - 2 * records.mover(found.records[0])
    return {
        "asked": search.options.simulations,
        "done": int(search.tree.plays["done"][0]),
        "mover": records.mover(found.records[0]),
        "legal": np.flatnonzero(found.legal[0]).tolist(),
        "visits": found.visits[0].tolist(),
        "priors": found.priors[0].round(4).tolist(),
        "q": found.q[0].round(4).tolist(),
        "value": round(sign * float(found.value[0]), 4),
        "raw": round(sign * float(found.raw[0]), 4),
        "variation": search.principal_variation(0, int(search.choose(found)[0])),
    }
