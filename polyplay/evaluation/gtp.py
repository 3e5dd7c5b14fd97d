"""Go programs as players of matches, `gtp:COMMAND`. Our rules decide which moves are legal, and the score."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from subprocess import PIPE

import numpy as np

from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.games import records
from polyplay.games.board_pool import Opponent
from polyplay.games.boards import Game, Go


def _agree(board: Go, record: np.ndarray, later: np.ndarray) -> bool:
    """Whether a game in `record` can have gone on to `later`."""
    now, last, stones = records.ply(record), records.ply(later), records.CELLS + board.cells
    if now == last:
        return np.array_equal(record[:stones], later[:stones])
    return now < last and np.array_equal(board.hashes(record)[: now + 1], board.hashes(later)[: now + 1])


def moves_between(board: Go, record: np.ndarray, later: np.ndarray) -> list[int] | None:
    """The moves that lead from a position to a later one of the same game; None: it is not of the same game. Two moves
    never lead to the same stones: a stone that stays shows its cell, and groups that a suicide takes had one liberty.
    """
    moves = list[int]()
    while (same := _agree(board, record, later)) and records.ply(record) < records.ply(later):
        empty = np.flatnonzero(board.stones(record) == 0).tolist()
        for action in (board.cells, *empty):  # the pass first: no legal stone leaves the position as it is
            tried = record.copy()
            over = board.play(tried, action) != records.GOES_ON
            if (not over or records.ply(tried) == records.ply(later)) and _agree(board, tried, later):
                record = tried
                moves.append(action)
                break
        else:
            return None
    return moves if same else None


# A Go program in a process of its own that answers commands of the Go Text Protocol, version 2.


PREFIX = "gtp:"
COLORS = ("black", "white")
SECONDS, MOST_LINES = 60.0, 10_000  # for an answer
QUIT = 2.0  # for its end
TOLD = 200  # letters of an answer, in a message
TIMEOUT, ILLEGAL, CRASH = "timeout", "illegal move", "crash"


class GtpFault(Exception):
    """A program's answer to a command is late (TIMEOUT), no legal move or a refusal (ILLEGAL), or no GTP, as where it
    has ended (CRASH). After an illegal move it can be asked again.
    """

    def __init__(self, kind: str, command: str, answer: str):
        answered, late = " ".join(answer.split())[:TOLD], f" in {SECONDS:g} seconds" if kind == TIMEOUT else ""
        shown = f"'{answered}'" if answered else "nothing"
        self.answered = f"it answered {command} with {shown}{late}"
        super().__init__(f"{kind}: {self.answered}")


def program_line(about: Row) -> str:
    """What came of a program's games, in one line for people."""
    text, lost = f"{about['program']}: agreed on {about['agreed']} of {about['scored']} winners", len(about["faults"])
    return f"{text}, lost {lost} game{'s' * (lost != 1)} by its own fault" if lost else text


class GtpPlayer:
    """An Opponent. Its program runs from `start` on, has one game on its board, and is told the moves that it lacks.
    Its standard error is ours.

    option: the words before the name in messages.
    """

    def __init__(self, name: str, board: Game, option: str = ""):
        self.name, self.option, self.against = name, option, ""
        if not isinstance(board, Go):
            raise UserError(f"{option}{name} given, but a Go program plays game:go, and this is game:{board.name}")
        self.board, self.command = board, list[str]()
        with contextlib.suppress(ValueError):  # a quotation that is not closed
            self.command = shlex.split(name.removeprefix(PREFIX))
        if not self.command:
            raise UserError(f"{option}{name} given, allowed: gtp:COMMAND, as in 'gtp:gnugo --mode gtp'")
        self.faults, self.scored, self.agreed = list[str](), 0, 0
        self._process: subprocess.Popen[str] | None = None
        self._number = 0  # of commands
        self._known: np.ndarray | None = None  # the position on its board

    @property
    def about(self) -> Row:
        """What a record says of its games."""
        return {"program": self.name, "scored": self.scored, "agreed": self.agreed, "faults": list(self.faults)}

    def start(self) -> None:
        """Raises UserError: it can't be started, or does not play this game."""
        given, self._known = f"{self.option}{self.name}", None
        try:
            self._process = subprocess.Popen(
                self.command, stdin=PIPE, stdout=PIPE, encoding="utf-8", errors="replace", start_new_session=True
            )
        except OSError as e:
            why = f"{self.command[0]} can't be started: {e.strerror}"
            raise UserError(f"{given}: {why}; install it, or give its path") from None
        try:
            for command in (f"boardsize {self.board.rows}", f"komi {self.board.halves / 2:g}"):
                self._send(command)
        except GtpFault as e:
            self.close()
            fix = f"give a program that speaks GTP and plays game:{self.board.name}, as 'gtp:gnugo --mode gtp'"
            raise UserError(f"{given}: {e.answered}; {fix}") from None

    def close(self, seconds: float | None = None) -> None:
        """End it, and whatever it started. It has so many seconds to quit (None: QUIT)."""
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
        """The answer, without status and number. Raises GtpFault."""
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
            with contextlib.suppress(BrokenPipeError):  # it has ended: so has its output
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
        """The program's answer, with that position on its board. Raises GtpFault, UserError."""
        if self._process is None:
            self.start()
        moves = None if self._known is None else moves_between(self.board, self._known, record)
        if self._known is None or moves is None:
            self._send("clear_board")
            self._known = self.board.new()
            moves = moves_between(self.board, self._known, record)
        if moves is None:
            raise ValueError("a position that no moves from an empty board lead to")
        for action in moves:
            self._send(f"play {COLORS[records.mover(self._known)]} {self.board.move_name(action)}")
            self.board.play(self._known, action)
        return self._send(command)

    def __call__(self, positions: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.array([self._move(positions[game], game) for game in at.tolist()], np.int64)

    def _move(self, record: np.ndarray, game: int) -> int:
        from polyplay.acting.play import GIVES_UP  # it loads torch

        try:
            command = f"genmove {COLORS[records.mover(record)]}"
            answer = self._ask(record, command)
            if answer.lower() == "resign":
                self._known = None
                return GIVES_UP
            action = self.board.action_of(answer)
            if action is None or action not in self.board.legal(record):
                raise GtpFault(ILLEGAL, command, answer)
        except (GtpFault, UserError) as e:  # UserError: it can't be started again
            lost = f"{self.name} lost game {game + 1} against {self.against} at move {records.ply(record) + 1}"
            self.faults.append(f"{lost}: {e}")
            self._known = None
            return GIVES_UP
        assert self._known is not None
        self.board.play(self._known, action)
        return action

    def over(self, positions: np.ndarray, at: np.ndarray) -> None:
        """Ask for the score of games that ended by two passes: does it name our winner? No answer counts neither way:
        the game is over, and not every program has the command.
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
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def programs_running(players: Iterable[Opponent]) -> Iterator[list[GtpPlayer]]:
    """The Go programs among players, which run meanwhile. Raises UserError: one can't be started."""
    found = [player for player in players if isinstance(player, GtpPlayer)]
    with ExitStack() as stack:
        for player in found:
            stack.callback(player.close)
            player.start()
        yield found
