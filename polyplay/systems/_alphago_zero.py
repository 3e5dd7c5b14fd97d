"""What the page of AlphaGo Zero's Config means for its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from polyplay.buffers import Replay
from polyplay.core.errors import UserError
from polyplay.games.boards import Game
from polyplay.learning import Hyperparameters, LearnerSpec, RateDrops
from polyplay.learning.alphazero_loss import AlphaZeroLoss
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search import SearchOptions
from polyplay.search.self_play import game_rows
from polyplay.systems._wiring import per_replica
from polyplay.weights import OptimizerSpec
from polyplay.weights.update import averaged

if TYPE_CHECKING:
    from polyplay.systems.alphago_zero import Config


SEARCH = (  # options of a search that are the page's
    *("simulations", "exploration", "c", "fast_simulations", "leaves", "fpu", "root", "gumbel_actions"),
    *("noise", "noise_alpha"),
)


def search_of(c: Config) -> SearchOptions:
    """Raises UserError, which names a field of the page."""
    try:
        given: dict[str, Any] = {name: getattr(c, name) for name in SEARCH}
        turns = ((0, 1.0), (c.temperature_plies, 0.0))
        return SearchOptions(**given, temperature=turns, symmetries=c.symmetries == "all", reuse=c.keep_tree)
    except UserError as e:
        name, colon, why = str(e).removeprefix("search ").partition(":")
        raise UserError(f"--{name.replace('_', '-')}{colon}{why}") from None


def replay_of(c: Config, board: Game) -> Replay:
    """Of positions. Raises UserError."""
    if c.capacity < c.batch:
        raise UserError(f"--capacity: {c.capacity} given, allowed: as many as --batch, which is {c.batch}, or more")
    stored = {k: v for k, v in game_rows(board).items() if k != "agent"}
    each = per_replica(c, "learners", "batch")
    kept = Replay(stored, c.players, c.capacity, each.batch, gamma=0.0, start=c.learning_starts, ratio=c.ratio)
    return replace(kept, grows_from=c.window)


def learner_spec_of(c: Config, policy: BoardNetworkFactory, board: Game, total: float, seed: int) -> LearnerSpec:
    """Equation 1, by SGD; on positions under symmetries."""
    update = averaged(OptimizerSpec("sgd", momentum=c.momentum, decay=2 * c.l2), c.learners, policy())
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate)
    loss = AlphaZeroLoss(board, seed, turned=c.symmetries != "none")
    return LearnerSpec(policy, loss, update, hyper, total, (RateDrops(c.drops),))
