"""Let Go programs play matches (`gtp:COMMAND`). Polyplay's rules decide which moves are legal, and the score."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from subprocess import PIPE

import numpy as np

from polyplay.core import platform
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.games import records
from polyplay.games.board_pool import Opponent
from polyplay.games.boards import Game, Go


def _agree(board: Go, record: np.ndarray, later: np.ndarray) -> bool:
    """Tell whether the position `later` can follow the position `record` in one game."""
    now, last, stones = records.ply(record), records.ply(later), records.CELLS + board.cells
    if now == last:
        return np.array_equal(record[:stones], later[:stones])
    return now < last and np.array_equal(board.hashes(record)[: now + 1], board.hashes(later)[: now + 1])


def moves_between(board: Go, record: np.ndarray, later: np.ndarray) -> list[int] | None:
    """Return the moves that lead from `record` to `later`, or None if these positions are not of one game."""
    moves = list[int]()
    while (same := _agree(board, record, later)) and records.ply(record) < records.ply(later):
        empty = np.flatnonzero(board.stones(record) == 0).tolist()
        for action in (board.cells, *empty):  # the pass first: no legal stone leaves the position unchanged
            tried = record.copy()
            over = board.play(tried, action) != records.GOES_ON
            if (not over or records.ply(tried) == records.ply(later)) and _agree(board, tried, later):
                record = tried
                moves.append(action)
                break
        else:
            return None
    return moves if same else None


# A Go program in a separate process that answers commands of the Go Text Protocol, version 2.


PREFIX = "gtp:"
COLORS = ("black", "white")
SECONDS, MOST_LINES = 60.0, 10_000  # most seconds and lines of an answer
QUIT = 2.0  # seconds that a program may take to quit
TOLD = 200  # most characters of an answer in an error message
TIMEOUT, ILLEGAL, CRASH = "timeout", "illegal move", "crash"


class GtpFault(Exception):
    """A wrong answer of a Go program.

    TIMEOUT: the answer is too late.
    CRASH: the answer is not in the protocol GTP, for example because the program has ended.
    ILLEGAL: an illegal move, or a refusal. The program can continue.
    """

    def __init__(self, kind: str, command: str, answer: str):
        answered, late = " ".join(answer.split())[:TOLD], f" in {SECONDS:g} seconds" if kind == TIMEOUT else ""
        shown = f"'{answered}'" if answered else "nothing"
        self.answered = f"it answered {command} with {shown}{late}"
        super().__init__(f"{kind}: {self.answered}")


def program_line(about: Row) -> str:
    """Summarize in one line the games that a Go program played."""
    text, lost = f"{about['program']}: agreed on {about['agreed']} of {about['scored']} winners", len(about["faults"])
    return f"{text}, lost {lost} game{'s' * (lost != 1)} by its own fault" if lost else text


class GtpPlayer:
    """A Go program as an opponent in matches. `start` runs the program. Its standard error goes to the standard error
    of this process. `option`: the words before `name` in error messages.
    """

    def __init__(self, name: str, board: Game, option: str = ""):
        self.name, self.option, self.against = name, option, ""
        if not isinstance(board, Go):
            raise UserError(f"{option}{name} given, but a Go program plays game:go, not game:{board.name}")
        self.board, self.command = board, list[str]()
        with contextlib.suppress(ValueError):  # an unclosed quotation
            self.command = shlex.split(name.removeprefix(PREFIX))
        if not self.command:
            raise UserError(f"{option}{name} given, allowed: gtp:COMMAND, as in 'gtp:gnugo --mode gtp'")
        self.faults, self.scored, self.agreed = list[str](), 0, 0
        self._process: subprocess.Popen[str] | None = None
        self._number = 0  # number of commands sent
        self._known: np.ndarray | None = None  # position on the program's board; None: unknown

    @property
    def about(self) -> Row:
        """Entries about the program's games for the record of a match."""
        return {"program": self.name, "scored": self.scored, "agreed": self.agreed, "faults": list(self.faults)}

    def start(self) -> None:
        """Start the program. Raises UserError if it cannot be started, or does not play this game."""
        given, self._known = f"{self.option}{self.name}", None
        try:
            self._process = subprocess.Popen(
                self.command, stdin=PIPE, stdout=PIPE, encoding="utf-8", errors="replace", start_new_session=True
            )
        except OSError as e:
            why = f"{self.command[0]} cannot be started: {e.strerror}"
            raise UserError(f"{given}: {why}; install it, or give its path") from None
        try:
            for command in (f"boardsize {self.board.rows}", f"komi {self.board.halves / 2:g}"):
                self._send(command)
        except GtpFault as e:
            self.close()
            fix = f"give a program that speaks GTP and plays game:{self.board.name}, as 'gtp:gnugo --mode gtp'"
            raise UserError(f"{given}: {e.answered}; {fix}") from None

    def close(self, seconds: float | None = None) -> None:
        """End the program and all its processes. Kill those that do not end within `seconds` (default: QUIT)."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write("quit\n")
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(QUIT if seconds is None else seconds)
        _kill(process)
        process.wait()
        process.stdout.close()

    def _send(self, command: str) -> str:
        """Send a command, and return the text of the answer, without status and number. Raises GtpFault."""
        process, overdue = self._process, threading.Event()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None

        def stop_waiting() -> None:
            overdue.set()
            _kill(process)

        timer = threading.Timer(SECONDS, stop_waiting)
        timer.start()
        self._number += 1
        try:
            with contextlib.suppress(BrokenPipeError):  # the program has ended, so the answer below is empty
                process.stdin.write(f"{self._number} {command}\n")
                process.stdin.flush()
            lines = itertools.dropwhile(lambda line: not line, map(str.strip, process.stdout))
            answer = "\n".join(itertools.islice(itertools.takewhile(bool, lines), MOST_LINES))
        finally:
            timer.cancel()
        found = re.fullmatch(rf"([=?]){self._number}(?:\s+(.*))?", answer, re.DOTALL)
        if overdue.is_set() or not found:
            self.close(0)
            raise GtpFault(TIMEOUT if overdue.is_set() else CRASH, command, answer)
        if found[1] == "?":
            raise GtpFault(ILLEGAL, command, f"? {found[2] or ''}")
        return found[2] or ""

    def _ask(self, record: np.ndarray, command: str) -> str:
        """Set up a position on the program's board. Return the answer to `command`. Raises GtpFault and UserError."""
        if self._process is None:
            self.start()
        moves = None if self._known is None else moves_between(self.board, self._known, record)
        if self._known is None or moves is None:
            self._send("clear_board")
            self._known = self.board.new()
            moves = moves_between(self.board, self._known, record)
        if moves is None:
            raise ValueError("no moves from an empty board lead to this position")
        for action in moves:
            self._send(f"play {COLORS[records.mover(self._known)]} {self.board.move_name(action)}")
            self.board.play(self._known, action)
        return self._send(command)

    def __call__(self, positions: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.array([self._move(positions[game], game) for game in at.tolist()], np.int64)

    def _move(self, record: np.ndarray, game: int) -> int:
        from polyplay.acting.play import GIVES_UP  # loads torch

        try:
            command = f"genmove {COLORS[records.mover(record)]}"
            answer = self._ask(record, command)
            if answer.lower() == "resign":
                self._known = None
                return GIVES_UP
            action = self.board.action_of(answer)
            if action is None or action not in self.board.legal(record):
                raise GtpFault(ILLEGAL, command, answer)
        except (GtpFault, UserError) as e:  # UserError: the program cannot be restarted
            lost = f"{self.name} lost game {game + 1} against {self.against} at move {records.ply(record) + 1}"
            self.faults.append(f"{lost}: {e}")
            self._known = None
            return GIVES_UP
        assert self._known is not None
        self.board.play(self._known, action)
        return action

    def over(self, positions: np.ndarray, at: np.ndarray) -> None:
        """Compare the winners of ended games with the winners by the program's score. Count the games that ended by two
        passes (`scored`), and those with the same winner (`agreed`). Omit games that the program cannot score.
        """
        for record in positions[at]:
            if record[records.OWN] != 2 or self._process is None:
                continue
            try:
                answer = self._ask(record, "final_score").upper()
            except GtpFault:
                self._known = None
                continue
            lead = 2 * self.board.area(record) - self.board.halves
            self.scored += 1
            self.agreed += answer[:1] == ("B" if lead > 0 else "W" if lead < 0 else "0")


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        platform.kill_group(process.pid)


@contextmanager
def programs_running(players: Iterable[Opponent]) -> Iterator[list[GtpPlayer]]:
    """Run the Go programs among the players inside this context. Raises UserError if a program cannot be started."""
    found = [player for player in players if isinstance(player, GtpPlayer)]
    with ExitStack() as stack:
        for player in found:
            stack.callback(player.close)
            player.start()
        yield found
