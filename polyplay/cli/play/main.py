"""The command line of `polyplay play`. Its page needs polyplay[watch]."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from polyplay.cli.arguments import run_and_options
from polyplay.cli.local_page.port import check_extra, check_port, listen, serve_page
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.resign_options import NEVER, ResignOptions
from polyplay.envs.boards.pool import PREFIX
from polyplay.runs.directory import read_config

if TYPE_CHECKING:
    from polyplay.acting.search.policy import SearchPolicy
    from polyplay.cli.play.session import PlaySession

MOST = 100_000  # simulations of a search


@dataclass(frozen=True)
class PageOptions:
    """Serves a page to play a board game against a run's agent, to this machine only. Needs polyplay[watch]. Or answers
    another Go program.
    """

    gtp: bool = False
    """speak the Go Text Protocol on stdin and stdout, instead of a page: for GoGui, Sabaki and other Go programs"""

    port: int = 8766
    """port of the page, http://127.0.0.1:PORT"""
    checkpoint: str | None = None
    """checkpoint to play with: best, or the number its name begins with (none: the newest)"""
    simulations: int | None = None
    """of a search, at the start; 0: the bare network (none: as many as in training)"""
    resign: str = "auto"
    """with --gtp: value below which it gives a game up, from -1 to 0; auto: as learned in self-play; off: never"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""

    def __post_init__(self) -> None:
        check_port(self.port)
        ResignOptions.parse(self.resign)
        if self.resign != "auto" and not self.gtp:
            raise UserError(f"--resign: {self.resign} given, but only --gtp resigns: add --gtp, or leave it out")
        if self.simulations is not None and not 0 <= self.simulations <= MOST:
            raise UserError(f"--simulations: {self.simulations} given, allowed: 0 to {MOST}")


def command(words: list[str]) -> None:
    """Serves until Ctrl-C."""
    directory, options, _ = run_and_options(PageOptions, words, "play")
    config = read_config(directory, whole=True)
    if not str(config["config"].get("env", "")).startswith(PREFIX):
        raise no_game(directory, config)
    if options.gtp:
        answer_gtp(directory, options, config)
        return
    check_extra("play")
    with listen(options.port) as listener, closing(open_session(directory, options, config)) as session:
        from polyplay.cli.play.server import application

        print(f"{session.board.title} against {directory}: http://127.0.0.1:{options.port}/")
        print("Ctrl-C stops the page", flush=True)
        serve_page(listener, application(session, options.port))


def no_game(directory: Path, config: Row) -> UserError:
    given = f"{directory} is a run of {config['system']} on {config['config'].get('env')}"
    return UserError(
        f"play: {given}; allowed: a run of alphago_zero, from polyplay train alphago_zero --env game:connect_four"
    )


def answer_gtp(directory: Path, options: PageOptions, config: Row) -> None:
    """Until `quit` or the end of stdin. Raises UserError."""
    from polyplay import __version__
    from polyplay.cli.play.gtp.engine import GtpEngine
    from polyplay.cli.play.gtp.main import main
    from polyplay.envs.boards.game import Go

    def engine() -> GtpEngine:
        player, first, found = open_player(directory, options, config)
        if not isinstance(player.board, Go):
            raise UserError(f"--gtp: {directory} plays {player.board.name}; allowed: a run of game:go")
        version = f"{__version__}, {checkpoint.update_of(found)} updates"
        return GtpEngine(player, first, version, resign_value(options.resign, found))

    main(engine)


def resign_value(given: str, found: Path) -> float:
    """The value below which an agent gives a game up, by --resign and its checkpoint."""
    from polyplay.acting.resignation import learned_value

    fixed = ResignOptions.parse(given).v
    return NEVER if given == "off" else learned_value(found) if fixed is None else fixed


def open_session(directory: Path, options: PageOptions, config: Row) -> PlaySession:
    """The agent and a game at its start. Raises UserError."""
    from polyplay.cli.play.session import PlaySession

    player, first, found = open_player(directory, options, config)
    if not player.board.placed:
        given = f"play: {directory} plays game:{player.board.name}, whose moves are no cells of a board"
        raise UserError(f"{given}; allowed: games where they are; `polyplay evaluate` and `tournament` play all")
    about = {"run": str(directory), "system": config["system"], "updates": checkpoint.update_of(found), "most": MOST}
    return PlaySession(player, first, about)


def open_player(directory: Path, options: PageOptions, config: Row) -> tuple[SearchPolicy, int, Path]:
    """The agent, its simulations and its checkpoint. Raises UserError: none is usable, or the agent does not search."""
    from polyplay.acting.play import load_player
    from polyplay.acting.search.policy import SearchPolicy
    from polyplay.runs.load import choose_checkpoint, crew_of, load_run, wire_system
    from polyplay.workers import process

    page, settings, run_options, _ = load_run(directory, options.trust)
    found = choose_checkpoint(directory, options.checkpoint)
    system = wire_system(page, settings, crew_of(replace(run_options, device="cpu")))
    process.tune(1)
    player = load_player(system, found)
    if not isinstance(player, SearchPolicy):
        raise no_game(directory, config)
    first = min(player.options.simulations, MOST) if options.simulations is None else options.simulations
    return player, first, found
