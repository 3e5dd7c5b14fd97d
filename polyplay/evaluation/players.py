"""Who plays in matches of a board game: runs and their checkpoints, opponents by name, and Go programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from polyplay.acting.match import MatchStarts, Watch, match
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.common.tree import Batch
from polyplay.envs.atari import protocols
from polyplay.envs.boards.game import Game, Go
from polyplay.envs.boards.opponents import Opponent, opponent
from polyplay.envs.boards.pool import board_of, show_all
from polyplay.evaluation.gtp_player import PREFIX, GtpPlayer
from polyplay.evaluation.run_agents import RunAgent, find_agent, is_run
from polyplay.systems import System

if TYPE_CHECKING:  # they import torch
    from polyplay.acting.play import PlayOptions
    from polyplay.acting.search.policy import SearchPolicy
    from polyplay.nets import Policy

MORE = ", or the directory of a run"  # beside opponents by name


@dataclass(frozen=True)
class BoardPlayer:
    """name: as it was given. about: what a record says of it."""

    name: str
    board: Game
    moves: Opponent
    about: Row


@dataclass(frozen=True)
class SearchAt:
    """A search as a policy for one step that knows its positions, records int8 [n, record], whole: planes of Go show
    only the last eight of those that may not be repeated.
    """

    search: SearchPolicy
    records: np.ndarray

    noise = 0

    def act(self, step: Batch, state: Batch) -> tuple[Batch, Batch]:
        from polyplay.acting.rows import as_tensors

        action, value = self.search.choose(self.records)
        return as_tensors({"action": action, "value": value}), state


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
        from polyplay.acting.search.policy import SearchPolicy

        n = len(at)
        off, reward = np.zeros(n, bool), np.zeros(n, np.float32)
        step = {"obs": np.zeros((n, *self.board.planes), np.float32), "reward": reward, "first": off}
        step["mask"], found = np.zeros((n, self.board.actions), bool), records[at]
        show_all(self.board.numbers, found, np.arange(n), found[:, 0], step["obs"], step["mask"], off)
        policy = cast("Policy", SearchAt(self.policy, found)) if isinstance(self.policy, SearchPolicy) else self.policy
        action, _ = choose_actions(self.spec, policy, self.how, at, step, {}, self.acts)
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


def player_of(wired: System, policy: Policy, about: Row, options: PlayerOptions, name: str = "") -> BoardPlayer:
    """A policy of a checkpoint. Raises UserError: it has a memory."""
    from polyplay.acting.play import PlayOptions

    moves = PolicyPlayer(wired, policy, PlayOptions(0, options.seed, options.greedy, options.epsilon))
    return BoardPlayer(name, moves.board, moves, about)


def player_of_agent(found: RunAgent, options: PlayerOptions) -> BoardPlayer:
    """Raises UserError: its run plays no board game."""
    from polyplay.acting.play import load_player

    if not protocols.is_board(found.wired.envs):
        raise UserError(f"{found.name} plays {found.wired.envs.title}, and matches are of board games (game:NAME)")
    policy = load_player(found.wired, found.weights, options.device, options.simulations, found.agent)
    return player_of(found.wired, policy, found.about, options, found.name)


def named_player(name: str, board: Game, option: str) -> BoardPlayer:
    """An opponent by name, or a Go program. Raises UserError: there is none of that name."""
    if name.startswith(PREFIX):
        return BoardPlayer(name, board, GtpPlayer(name, board, option), {})
    more = f", gtp:COMMAND{MORE}" if isinstance(board, Go) else MORE
    return BoardPlayer(name, board, opponent(name, board, option, more), {})


def opponent_of(name: str, board: Game, options: PlayerOptions, option: str = "--against ") -> BoardPlayer:
    """A run of that game, or a named_player. option: the words before the name in messages. Raises UserError."""
    if not is_run(name):
        return named_player(name, board, option)
    found = player_of_agent(find_agent(name, options.trust), options)
    if not np.array_equal(found.board.numbers, board.numbers):
        raise UserError(
            f"{option}{name}: it plays game:{found.board.name}; a match is of one game: give a run of game:{board.name}"
        )
    return found


def play_match(
    player: BoardPlayer,
    other: BoardPlayer,
    starts: MatchStarts,
    seed: int,
    watch: Watch = lambda found, moves: True,
) -> np.ndarray:
    """As match.match. A Go program has one game on its board: games with one are played one after the other."""
    programs = list[GtpPlayer]()
    for one, against in ((player, other), (other, player)):
        if isinstance(one.moves, GtpPlayer):
            one.moves.against = against.name
            programs.append(one.moves)

    def over(records: np.ndarray, at: np.ndarray) -> None:
        for program in programs:
            program.over(records, at)

    return match(player.board, player.moves, other.moves, starts, seed, watch, 1 if programs else None, over)
