"""What the page of AlphaGo Zero's Config means for its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyplay.acting.search import SearchOptions
from polyplay.acting.search.evaluators import check_backend
from polyplay.buffers import Replay
from polyplay.common.errors import UserError
from polyplay.common.tree import Spec
from polyplay.envs.boards.game import Game
from polyplay.learning import Hyperparameters, LearnerSpec
from polyplay.learning.losses.alphazero import AlphaZeroLoss, SymmetricOutputs
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.weights import Local, OptimizerSpec

if TYPE_CHECKING:
    from polyplay.systems.alphago_zero import Config


def search_of(c: Config) -> SearchOptions:
    """Raises UserError."""
    check_backend(c.evaluator)
    return SearchOptions(
        c.simulations,
        c.exploration,
        c.c,
        fpu=c.fpu,
        root=c.root,
        considered=c.considered,
        noise=c.noise,
        noise_alpha=c.noise_alpha,
        temperature=((0, 1.0), (c.warm, 0.0)),
        symmetries=c.symmetries,
        reuse=c.keep_tree,
    )


def replay_of(c: Config, rows: Spec) -> Replay:
    """Of positions. Raises UserError."""
    if c.capacity < c.batch:
        raise UserError(f"--capacity: {c.capacity} given, allowed: as many as --batch, which is {c.batch}, or more")
    stored = {k: v for k, v in rows.items() if k != "agent"}
    return Replay(stored, c.players, c.capacity, c.batch, gamma=0.0, start=c.start, ratio=c.ratio)


def learner_spec_of(c: Config, policy: BoardNetworkFactory, board: Game, total: float, seed: int) -> LearnerSpec:
    """Equation 1 on positions under symmetries, by SGD."""
    return LearnerSpec(
        policy,
        AlphaZeroLoss(),
        Local(OptimizerSpec("sgd", momentum=c.momentum, decay=2 * c.l2)),
        Hyperparameters(learning_rate=c.learning_rate),
        total,
        c.anneal,
        c.drops,
        outputs=SymmetricOutputs(board, seed),
    )
