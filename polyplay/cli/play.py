"""play: play a board game against a run's agent, on a web page (needs polyplay[watch]), in the terminal, or by GTP."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyplay.cli.arguments import check_extra, listen, run_and_options, serve_page
from polyplay.cli.games import GamesOptions, show_games
from polyplay.core import checkpoint
from polyplay.core.errors import Port, Simulations, UserError
from polyplay.games import records
from polyplay.games.boards import Game, Go, KInARow

if TYPE_CHECKING:
    from polyplay.cli.gtp import GtpEngine
    from polyplay.cli.play_session import PlaySession
    from polyplay.search.search import SearchPolicy


class MoveList:
    """A game in progress. It keeps the list of moves and the position after each move."""

    def __init__(self, board: Game):
        self.board = board
        self.moves, self.records, self.result = list[int](), [board.new()], records.GOES_ON

    @property
    def record(self) -> np.ndarray:
        """Current position, encoded as an int8 array."""
        return self.records[-1]

    @property
    def mover(self) -> int:
        """Player whose turn it is: the first player (0) or the second player (1)."""
        return records.mover(self.record)

    @property
    def legal(self) -> list[int]:
        return self.board.legal(self.record) if self.result == records.GOES_ON else []

    @property
    def winner(self) -> int | None:
        return {records.WON: 1 - self.mover, records.LOST: self.mover}.get(self.result)

    @property
    def margin(self) -> float | None:
        """Points by which a finished game was won, or None before the end and in games without points."""
        return None if self.result == records.GOES_ON else self.board.margin(self.record)

    def owners(self) -> list[int]:
        """Return each cell's owner in a finished game of Go (1: first player, 2: second player, 0: none), else []."""
        if self.result == records.GOES_ON or not isinstance(self.board, Go):
            return []
        return self.board.owners(self.record).tolist()

    def play(self, action: int) -> None:
        """Play a move for the player whose turn it is. Raises ValueError if the move is not legal."""
        if action not in self.legal:
            raise ValueError("this move is not legal")
        record = self.record.copy()
        self.result = self.board.play(record, action)
        self.moves.append(action)
        self.records.append(record)

    def undo(self, n: int) -> None:
        """Take back the last n moves."""
        if n:
            del self.moves[-n:], self.records[-n:]
            self.result = records.GOES_ON

    def undoable(self, person: int) -> int:
        """Return how many moves to take back until it is `person`'s turn. Return 0 if `person` has not moved yet."""
        turns = [ply for ply in range(len(self.moves)) if records.mover(self.records[ply]) == person]
        return len(self.moves) - turns[-1] if turns else 0

    def line(self) -> list[int]:
        """Return the cells of all winning lines in ascending order. Return [] if the game has no winning line."""
        if self.result != records.WON or not isinstance(self.board, KInARow):
            return []
        cells, found = self.board.stones(self.record).reshape(self.board.rows, self.board.columns), set[int]()
        for row, column in np.ndindex(cells.shape):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(row + i * down, column + i * right) for i in range(self.board.k)]
                there = line[-1][0] < self.board.rows and 0 <= line[-1][1] < self.board.columns
                if there and all(cells[cell] == 2 - self.mover for cell in line):
                    found |= {y * self.board.columns + x for y, x in line}
        return sorted(found)


MOST = 100_000  # most simulations per search


@dataclass(frozen=True)
class PageOptions:
    """Play a board game against a run's agent: on a web page for this machine only (needs polyplay[watch]), in the
    terminal, or with another Go program.
    """

    terminal: bool = False  # type moves in the terminal, not on a page; also for games that a page cannot show

    gtp: bool = False
    # speak the Go Text Protocol on stdin and stdout, for GoGui, Sabaki and other Go programs

    port: Port = 8766  # port of the page, http://127.0.0.1:PORT
    checkpoint: str | None = None
    # checkpoint to play with: best, or the number its name begins with (none: the newest)
    simulations: Simulations | None = None
    # simulations per search at the start; 0: the network alone (none: as many as in training)
    resign: str = "auto"
    # with --gtp: value below which the agent resigns, from -1 to 0; auto: as learned in self-play; off: never
    trust: bool = False
    # open a run that was made by another user or machine and imports a module for its environment or network

    def __post_init__(self) -> None:
        records.ResignOptions.parse(self.resign)
        if self.terminal and self.gtp:
            raise UserError("--terminal is for typed moves, --gtp for moves of another program; remove one of them")
        if self.resign != "auto" and not self.gtp:
            raise UserError(f"--resign {self.resign}: applies to --gtp only; add --gtp, or remove --resign")


def command(words: list[str]) -> None:
    """Run `polyplay play`: serve the page until Ctrl-C, play in the terminal, speak GTP, or list recorded games."""
    directory, options, _ = run_and_options(PageOptions, words, "play", (GamesOptions,))
    if isinstance(options, GamesOptions):
        show_games(directory, options)
        return
    if options.gtp:
        from polyplay.cli.gtp import main

        main(lambda: open_engine(directory, options))
        return
    if options.terminal:
        from polyplay.cli.play_session import TerminalGame

        player, first, _, _ = open_player(directory, options)
        TerminalGame(player, first).run()
        return
    check_extra("play")
    with listen(options.port) as listener, closing(open_session(directory, options)) as session:
        from polyplay.cli.pages import play_application

        print(f"{session.board.title} against {directory}: http://127.0.0.1:{options.port}/")
        print("Ctrl-C stops the page", flush=True)
        serve_page(listener, play_application(session))


def open_engine(directory: Path, options: PageOptions) -> GtpEngine:
    """Return an engine with which a run's agent answers GTP commands. Raises UserError if the game is not Go."""
    from polyplay import __version__
    from polyplay.cli.gtp import GtpEngine

    player, first, found, _ = open_player(directory, options)
    if not isinstance(player.board, Go):
        raise UserError(f"--gtp: {directory} plays {player.board.name}; choose a run of game:go")
    version = f"{__version__}, {checkpoint.update_of(found)} updates"
    return GtpEngine(player, first, version, resign_value(options.resign, found))


def resign_value(given: str, found: Path) -> float:
    """Return the value of --resign, below which the agent resigns. For `auto`, return the value that the agent learned
    in self-play.
    """
    from polyplay.search.self_play import learned_value

    fixed = records.ResignOptions.parse(given).v
    return records.NEVER if given == "off" else learned_value(found) if fixed is None else fixed


def open_session(directory: Path, options: PageOptions) -> PlaySession:
    """Return a new game against a run's agent, for a web page. Raises UserError if the page cannot show this game."""
    from polyplay.cli.play_session import PlaySession

    player, first, found, system = open_player(directory, options)
    if not player.board.placed:
        given = f"play: {directory} plays game:{player.board.name}, whose moves are not cells of a board"
        raise UserError(f"{given}; add --terminal, which plays all games")
    about = {"run": str(directory), "system": system, "updates": checkpoint.update_of(found), "most": MOST}
    return PlaySession(player, first, about)


def open_player(directory: Path, options: PageOptions) -> tuple[SearchPolicy, int, Path, str]:
    """Return a run's agent, its simulations per search, the checkpoint, and the system's name. Raises UserError if no
    checkpoint is usable, or if the agent does not search.
    """
    from polyplay.acting import play
    from polyplay.evaluation.agent import open_run
    from polyplay.search.search import SearchPolicy
    from polyplay.workers import process

    wired, found, config = open_run(directory, options.checkpoint, options.trust)
    process.tune(1)
    player = play.load_player(wired, found)
    if not isinstance(player, SearchPolicy):
        given = f"play: {directory} is a run of {config['system']} on {wired.envs.title}"
        allowed = "a run of alphago_zero, from polyplay train alphago_zero --env game:connect_four"
        raise UserError(f"{given}; choose {allowed}")
    first = min(player.options.simulations, MOST) if options.simulations is None else options.simulations
    return player, first, found, config["system"]
