"""Go programs as players of matches, `gtp:COMMAND`. Our rules decide which moves are legal, and the score."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from polyplay.acting.match import GIVES_UP
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import Game, Go
from polyplay.envs.boards.go_kernels import area
from polyplay.envs.boards.go_moves import moves_between
from polyplay.envs.boards.kernels import mover, ply
from polyplay.envs.boards.opponents import Opponent
from polyplay.envs.boards.records import OWN
from polyplay.evaluation.gtp_program import ILLEGAL, GtpFault, GtpProgram

PREFIX = "gtp:"
COLORS = ("black", "white")


class GtpPlayer:
    """An Opponent. Its program runs within `with`, has one game on its board, and is told the moves that it lacks.

    option: the words before the name in messages.
    """

    def __init__(self, name: str, board: Game, option: str = ""):
        self.name, self.option, self.against = name, option, ""
        if not isinstance(board, Go):
            raise UserError(f"{option}{name} given, but a Go program plays game:go, and this is game:{board.name}")
        self.board = board
        try:
            self.command = shlex.split(name.removeprefix(PREFIX))
        except ValueError as e:
            raise UserError(f"{option}{name} given, but its words can't be told apart: {e}; close the quotes") from None
        if not self.command:
            raise UserError(f"{option}{name} given, allowed: gtp:COMMAND, as in 'gtp:gnugo --mode gtp'")
        self.faults, self.scored, self.agreed = list[str](), 0, 0
        self._program: GtpProgram | None = None
        self._known: np.ndarray | None = None  # the position on its board

    def __enter__(self) -> GtpPlayer:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._program is not None:
            self._program.close()

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.array([self._move(records[game], game) for game in at.tolist()], np.int64)

    def over(self, records: np.ndarray, at: np.ndarray) -> None:
        """Ask for the score of games that ended by two passes: does it name our winner?"""
        for record in records[at]:
            if record[OWN] == 2:
                self._compare_score(record)

    @property
    def about(self) -> Row:
        """What a record says of its games."""
        return {"program": self.name, "scored": self.scored, "agreed": self.agreed, "faults": list(self.faults)}

    # ---------------------------------------------------------------------------------------------- its program

    def _start(self) -> GtpProgram:
        """Raises UserError: it can't be started, or does not play this game."""
        given = f"{self.option}{self.name}"
        try:
            self._program, self._known = GtpProgram(self.command), None
        except OSError as e:
            raise UserError(
                f"{given}: {self.command[0]} can't be started: {e.strerror}; install it, or give its path"
            ) from None
        try:
            for command in (f"boardsize {self.board.rows}", f"komi {self.board.halves / 2:g}"):
                self._program.ask(command)
        except GtpFault as e:
            self._program.close()
            fix = f"give a program that speaks GTP and plays game:{self.board.name}, as 'gtp:gnugo --mode gtp'"
            raise UserError(f"{given}: {e.answered}; {fix}") from None
        return self._program

    def _running(self) -> GtpProgram:
        return self._start() if self._program is None or self._program.lost else self._program

    def _tell(self, record: np.ndarray) -> GtpProgram:
        """The program, with that position on its board. Raises GtpFault."""
        program = self._running()
        moves = None if self._known is None else moves_between(self.board, self._known, record)
        if moves is None:
            program.ask("clear_board")
            self._known = self.board.new()
            moves = moves_between(self.board, self._known, record)
        if self._known is None or moves is None:
            raise ValueError("a position that no moves from an empty board lead to")
        for action in moves:
            program.ask(f"play {COLORS[mover(self._known)]} {self.board.move_name(action)}")
            kernels.play(self.board.numbers, self._known, action)
        return program

    def _move(self, record: np.ndarray, game: int) -> int:
        try:
            command = f"genmove {COLORS[mover(record)]}"
            answer = self._tell(record).ask(command)
            if answer.lower() == "resign":
                self._known = None
                return GIVES_UP
            action, room = self.board.action_of(answer), np.empty(self.board.actions, np.int16)
            if action is None or action not in room[: kernels.legal(self.board.numbers, record, room)]:
                raise GtpFault(ILLEGAL, command, answer)
        except (GtpFault, UserError) as e:  # UserError: it can't be started again
            lost = f"{self.name} lost game {game + 1} against {self.against} at move {ply(record) + 1}"
            self.faults.append(f"{lost}: {e}")
            self._known = None
            return GIVES_UP
        assert self._known is not None
        kernels.play(self.board.numbers, self._known, action)
        return action

    def _compare_score(self, record: np.ndarray) -> None:
        """No answer counts neither way: the game is over, and not every program has the command."""
        if self._program is None or self._program.lost:
            return
        try:
            answer = self._tell(record).ask("final_score").upper()
        except GtpFault:
            self._known = None
            return
        lead = 2 * area(self.board.numbers, record) - self.board.halves
        self.scored += 1
        self.agreed += answer[:1] == ("B" if lead > 0 else "W" if lead < 0 else "0")


@contextmanager
def programs_running(players: Iterable[Opponent]) -> Iterator[list[GtpPlayer]]:
    """The Go programs among players, which run meanwhile. Raises UserError: one can't be started."""
    found = [player for player in players if isinstance(player, GtpPlayer)]
    with ExitStack() as stack:
        for player in found:
            stack.enter_context(player)
        yield found
