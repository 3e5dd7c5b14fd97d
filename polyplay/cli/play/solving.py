"""The solver in a process of its own, because a position of few stones takes it hours: it can be ended at any time.

As a program, `python -m polyplay.cli.play.solving GAME SECONDS`, it reads a record a line and answers a line for each
legal move, `[action, outcome, plies]`, then `null`. Where it takes longer than that, its own timer ends it. Imports no
torch.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np

from polyplay.cli.play.moves import legal_moves
from polyplay.common.files import Row
from polyplay.envs.boards import game, kernels
from polyplay.envs.boards.solver import RowSolver, Solver, solver_of

SECONDS = 20.0  # for a position
EXACT_LEFT = 30  # with more empty cells, who wins but not how soon, which takes longer

Verdict = tuple[int, int | None]  # 1 the mover wins, 0 a draw, -1 loses; moves of both until the end, where known


class SolverProcess:
    """Asked about one position at a time; a new question ends the one before. seconds: for a position."""

    def __init__(self, name: str, seconds: float = SECONDS):
        self.name, self.seconds, self.lock = name, seconds, threading.Lock()
        self.known, self.ended = dict[bytes, dict[int, Verdict]](), set[bytes]()  # by record
        self.process: subprocess.Popen[str] | None = None
        self.asked = b""  # empty: it has nothing to do

    def ask(self, record: np.ndarray) -> None:
        """Begin with the verdicts on the moves of this position, unless they are known."""
        with self.lock:
            key = record.tobytes()
            if key == self.asked:
                return
            if self.asked:
                self._end()
            if key in self.ended:
                return
            process = self.process or self._start()
            self.asked, self.known[key] = key, {}
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended: so does what it says
                process.stdin.write(f"{json.dumps(record.tolist())}\n")
                process.stdin.flush()

    def state(self, record: np.ndarray) -> Row:
        """The verdicts so far, by move, and whether more may come."""
        with self.lock:
            key = record.tobytes()
            return {"verdicts": dict(self.known.get(key, {})), "solving": key == self.asked}

    def close(self) -> None:
        with self.lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "polyplay.cli.play.solving", self.name, str(self.seconds)]
        made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self.process = made
        threading.Thread(target=self._listen, args=(made,), daemon=True, name="solver").start()
        return made

    def _end(self) -> None:
        process, self.process, self.asked = self.process, None, b""
        if process is not None:
            process.kill()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Take its answers, until it ends."""
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                self._take(process, json.loads(line))
            self._take(process, None, ended=True)

    def _take(self, process: subprocess.Popen[str], answer: list[int] | None, ended: bool = False) -> None:
        """An answer; None: there is no other."""
        with self.lock:
            if self.process is not process:
                return
            if ended:
                self.process = None
            if not self.asked:
                return
            if answer is None:
                self.ended.add(self.asked)
                self.asked = b""
            else:
                self.known[self.asked][answer[0]] = answer[1], answer[2]


def verdicts(solver: Solver, record: np.ndarray) -> Iterator[tuple[int, int, int | None]]:
    """(action, outcome for who makes it, plies until the end where known) of every legal move."""
    counts = isinstance(solver, RowSolver)
    for action in legal_moves(solver.game, record):
        after = record.copy()
        result = kernels.play(solver.game.numbers, after, action)
        left = int(np.count_nonzero(after[kernels.CELLS :] == 0))
        if result != kernels.GOES_ON:
            yield action, int(kernels.WORTH[result]), 1 if counts else None
        elif isinstance(solver, RowSolver) and left < EXACT_LEFT:
            score = -solver.score(after)
            yield action, int(np.sign(score)), left + 2 - abs(score) if score else left + 1
        else:
            yield action, -solver.outcome(after), None


def main(name: str, seconds: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks: then the pipe ends
    solver = solver_of(game.game(name))
    small = game.game("connect:2x2x2" if isinstance(solver, RowSolver) else "othello+size=4")
    list(verdicts(solver_of(small), small.new()))  # compiled before the clock runs
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # whose signal ends a process even in compiled code
        for verdict in verdicts(solver, np.array(json.loads(line), np.int8)):
            print(json.dumps(verdict), flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("null", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
