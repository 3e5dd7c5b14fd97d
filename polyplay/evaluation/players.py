"""Who plays in matches of a board game: runs and their checkpoints, and opponents by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.envs.atari import protocols
from polyplay.envs.boards.game import Game
from polyplay.envs.boards.opponents import Opponent, opponent
from polyplay.envs.boards.pool import board_of, show_all
from polyplay.runs.load import choose_checkpoint, crew_of, load_run, split_checkpoint, weights_digest, wire_system
from polyplay.systems import System

if TYPE_CHECKING:  # they import torch
    from polyplay.acting.play import PlayOptions
    from polyplay.nets import Policy

MORE = ", or the directory of a run"  # beside opponents by name


@dataclass(frozen=True)
class Player:
    """name: as it was given. about: what a record says of it."""

    name: str
    board: Game
    moves: Opponent
    about: Row


class PolicyPlayer:
    """A policy that has no memory, on any position of its game: an Opponent."""

    def __init__(self, wired: System, policy: Policy, how: PlayOptions):
        self.board, self.spec, self.policy, self.how, self.acts = board_of(wired.envs), wired.envs.spec, policy, how, 0
        if policy.state_spec():
            raise UserError(
                f"a policy with a memory cannot be asked for a position alone, as that of {wired.envs.title}"
            )

    def __call__(self, records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        from polyplay.acting.play import choose_actions

        n = len(at)
        off, reward = np.zeros(n, bool), np.zeros(n, np.float32)
        step = {"obs": np.zeros((n, *self.board.planes), np.float32), "reward": reward, "first": off}
        step["mask"], found = np.zeros((n, self.board.actions), bool), records[at]
        show_all(self.board.numbers, found, np.arange(n), found[:, 0], step["obs"], step["mask"], off)
        action, _ = choose_actions(self.spec, self.policy, self.how, at, step, {}, self.acts)
        self.acts += 1
        return np.asarray(action, np.int64)


@dataclass(frozen=True)
class PlayerOptions:
    """How runs play. simulations of their searches; None: their own."""

    simulations: int | None = None
    seed: int = 0
    greedy: bool = False
    epsilon: float = 0.0
    device: str = "cpu"
    trust: bool = False


def player_of(wired: System, policy: Policy, found: Path, options: PlayerOptions, name: str = "") -> Player:
    """A policy of a checkpoint. Raises UserError: it has a memory."""
    from polyplay.acting.play import PlayOptions

    moves = PolicyPlayer(wired, policy, PlayOptions(0, options.seed, options.greedy, options.epsilon))
    about = {"checkpoint": found.name, "checkpoint_sha256": weights_digest(found)}
    return Player(name, moves.board, moves, about)


def load_run_player(name: str, options: PlayerOptions) -> Player:
    """The player of a run's directory, or of one of its checkpoints'. Raises UserError."""
    from polyplay.acting.play import load_player

    path, which = split_checkpoint(Path(name))
    page, settings, run_options, _ = load_run(path, options.trust)
    found = choose_checkpoint(path, which)
    wired = wire_system(page, settings, crew_of(replace(run_options, device="cpu")))
    if not protocols.is_board(wired.envs):
        raise UserError(f"{name} plays {wired.envs.title}, and matches are of board games (game:NAME)")
    return player_of(wired, load_player(wired, found, options.device, options.simulations), found, options, name)


def is_run(name: str) -> bool:
    """Whether this is a directory and no opponent by name."""
    return name not in ("random", "perfect") and Path(name).is_dir()


def opponent_of(name: str, board: Game, options: PlayerOptions, plies: int, option: str = "--against ") -> Player:
    """A run of that game, or an opponent by name. plies: random moves before a game; option: the words before the name
    in messages. Raises UserError.
    """
    if not is_run(name):
        return Player(name, board, opponent(name, board, option, MORE, plies), {})
    found = load_run_player(name, options)
    if not np.array_equal(found.board.numbers, board.numbers):
        raise UserError(
            f"{option}{name}: it plays game:{found.board.name}; a match is of one game: give a run of game:{board.name}"
        )
    return found
