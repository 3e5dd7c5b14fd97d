"""`game:NAME`: a board game as an environment. A lane is one player; its opponent is part of the environment."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Field, Tree
from polyplay.envs.pool import Envs, EnvSpec, options
from polyplay.envs.shared_rows import first_row
from polyplay.envs.spaces import Discrete, describe_actions, describe_fields
from polyplay.games.board_rules import show_all
from polyplay.games.boards import GAMES, OPTIONS, Game, game
from polyplay.games.mcts import Opponent, opponent
from polyplay.games.records import GOES_ON, WORTH
from polyplay.games.toys import ArrayPool, game_streams

PREFIX = "game:"


@dataclass(frozen=True)
class BoardOptions:
    opponent: str = "random"  # or mcts:SIMULATIONS, in connect four perfect


def of(envs: Envs) -> tuple[Game, BoardOptions, Opponent]:
    """What `envs` names: game:NAME, game:NAME+opponent=WHO. Raises UserError."""
    words = envs.title.removeprefix(PREFIX).split("+")
    own = [word for word in words if word.startswith("opponent")]
    board = game("+".join([word for word in words if word not in own]))
    named = dict(word.partition("=")[::2] for word in own)
    rules = {f.name for f in fields(OPTIONS.get(board.name.partition("+")[0], BoardOptions))} - {"opponent"}
    if wrong := {k: v for k, v in envs.options.items() if k in rules}:
        name = "+".join([f"{PREFIX}{board.name}", *(f"{k}={v}" for k, v in wrong.items())])
        raise UserError(f"--env-kwargs: {', '.join(wrong)} given, but rules are part of a game's name: --env {name}")
    given = options(BoardOptions, {**named, **envs.options}, f"{PREFIX}{board.name}")
    return board, given, opponent(given.opponent, board)


def board_of(envs: Envs) -> Game:
    """The rules of the board game that `envs` names. Raises UserError: it names something else."""
    if not envs.title.startswith(PREFIX):
        allowed = ", ".join(PREFIX + name for name in GAMES)
        raise UserError(f"--env: {envs.title} given, allowed: {allowed}, whose rules are known")
    return of(envs)[0]


def describe(envs: Envs) -> EnvSpec:
    """The spec of a board game. Raises UserError."""
    board, given, _ = of(envs)
    obs, action = Field(board.planes, "float32"), Discrete(board.actions)
    text = {"environment": envs.title, "observation": describe_fields(obs), "actions": describe_actions(action)}
    text |= {"action mask": "the legal moves", "opponent": given.opponent}
    return EnvSpec(obs, action, describe=text, mask=Field((board.actions,), "bool"))


class BoardPool(ArrayPool):
    """A Pool of a board game: lanes step in send(), in the caller's thread, against an opponent.

    The player of a lane moves first in every other game: in the first of lanes of even numbers. Observations are the
    board from its side, also at the end.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        board, _, self._opponent = of(envs)
        self._board, self._start, everyone = board, board.new(), np.arange(envs.lanes)
        self._records = np.zeros((envs.lanes, board.record), np.int8)
        # of the player: 1 moves second; a game changes it first
        self._side = ((lane + everyone + 1) % 2).astype(np.int8)
        self._random = game_streams(seed, lane, envs.lanes)
        self._arrays |= {"records": self._records, "side": self._side, "random": self._random}
        self._begin(everyone)

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        over = self._rows["over"][numbers]
        self._play(numbers[~over], np.asarray(action)[~over])
        self._begin(numbers[over])

    def _play(self, at: np.ndarray, actions: np.ndarray) -> None:
        """The players' moves and the opponents' answers. Raises ValueError: an illegal move."""
        illegal = np.flatnonzero(~self._rows["mask"][at, actions])
        if illegal.size:
            sent = f"lane {at[illegal[0]]} was sent the illegal move {actions[illegal[0]]}"
            raise ValueError(f"{self.title}: {sent}; its row's mask has the legal ones")
        own = self._board.play_all(self._records, at, actions)
        on = own == GOES_ON
        reward, over = WORTH[own], ~on
        answers = self._answer(at[on])
        reward[on] = -WORTH[answers]
        over[on] = answers != GOES_ON
        self._write(at, {"reward": reward, "terminated": over, "truncated": False, "first": False, "over": over})

    def _begin(self, at: np.ndarray) -> None:
        """Next games, from the other side; an opponent that moves first has moved."""
        self._side[at] ^= 1
        self._records[at] = self._start
        self._answer(at[self._side[at] == 1])
        self._write(at, first_row(self._rows))

    def _answer(self, at: np.ndarray) -> np.ndarray:
        """The opponents move; what that leads to."""
        return self._board.play_all(self._records, at, self._opponent(self._records, self._random, at))

    def _write(self, at: np.ndarray, row: Batch) -> None:
        tree.write(self._rows, at, row)
        rows = self._rows
        show_all(self._board.numbers, self._records, at, self._side, rows["obs"], rows["mask"], rows["over"])


# As envs.make asks for a pool:
# of lanes of a seed, from a lane on; raises UserError.
connect = BoardPool
