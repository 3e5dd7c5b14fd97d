"""The command line of `polyplay play`. Needs polyplay[watch]."""

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
from polyplay.envs.boards.pool import PREFIX
from polyplay.runs.directory import read_config

if TYPE_CHECKING:
    from polyplay.cli.play.session import PlaySession

MOST = 100_000  # simulations of a search


@dataclass(frozen=True)
class PageOptions:
    """Serves a page to play a board game against a run's agent, to this machine only. Needs polyplay[watch]."""

    port: int = 8766
    """port of the page, http://127.0.0.1:PORT"""
    checkpoint: str | None = None
    """checkpoint to play with: best, or the number its name begins with (none: the newest)"""
    simulations: int | None = None
    """of a search, at the start; 0: the bare network (none: as many as in training)"""
    trust: bool = False
    """open a run that was made by another user or machine and imports a module for its environment or network"""

    def __post_init__(self) -> None:
        check_port(self.port)
        if self.simulations is not None and not 0 <= self.simulations <= MOST:
            raise UserError(f"--simulations: {self.simulations} given, allowed: 0 to {MOST}")


def command(words: list[str]) -> None:
    """Serves until Ctrl-C."""
    directory, options, _ = run_and_options(PageOptions, words, "play")
    config = read_config(directory, whole=True)
    if not str(config["config"].get("env", "")).startswith(PREFIX):
        raise no_game(directory, config)
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


def open_session(directory: Path, options: PageOptions, config: Row) -> PlaySession:
    """The agent and a game at its start. Raises UserError: no usable checkpoint, or no agent that searches."""
    from polyplay.acting.play import load_player
    from polyplay.acting.search.policy import SearchPolicy
    from polyplay.cli.play.session import PlaySession
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
    about = {"run": str(directory), "system": config["system"], "updates": checkpoint.update_of(found), "most": MOST}
    return PlaySession(player, first, about)
