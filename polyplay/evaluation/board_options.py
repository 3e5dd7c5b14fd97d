"""Options of the protocols of board games, checked before anything heavy is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from polyplay.common.bounds import MATCH
from polyplay.common.errors import UserError
from polyplay.envs.atari import protocols

if TYPE_CHECKING:
    from polyplay.evaluation.evaluate import EvaluateOptions


def check_board_options(options: EvaluateOptions) -> None:
    """Raises UserError: options that do not belong to the protocol."""
    name, board = options.protocol, protocols.protocol(options.protocol).board
    given = {"--against": options.against, "--opening-plies": options.opening_plies}
    if wrong := [f"{flag} {value}" for flag, value in given.items() if value is not None and name != "versus"]:
        raise UserError(f"{wrong[0]} is for --protocol versus, {name} given")
    if wrong := [f"--{flag}" for flag in ("video", "render") if getattr(options, flag) and board]:
        raise UserError(f"{wrong[0]} is not for --protocol {name}: use --protocol run")
    if name != "versus":
        return
    if options.against is None:
        raise UserError(
            "--protocol versus needs --against: random, mcts:N, perfect, gtp:COMMAND, or the directory of a run"
        )
    if options.episodes and options.episodes > MATCH:
        raise UserError(f"--episodes {options.episodes} given, but a match has {MATCH:,} games at most: lower it")
    if options.episodes and options.episodes % 2:
        raise UserError(
            f"--episodes {options.episodes} given, but both colours play every opening: give an even number"
        )


def describe_label(label: str, options: EvaluateOptions) -> str:
    """The protocol as tables name it, with the opponent and the simulations that were asked for."""
    name = options.against or ""
    against = f" {name if name.startswith('gtp:') else Path(name).name}" if name else ""
    asked = "" if options.simulations is None else f", {options.simulations} simulations"
    return f"{label}{against}{asked}"
