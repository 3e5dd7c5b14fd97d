"""AlphaGo Zero (Silver et al. 2017, figure 1): a search plays itself, and a network learns what the search found.

self_play × players:  games at once: search ─► visits, move ─► whole games ─► RolloutQueue ─► learn: replay, π and z
                         ▲  asks the network, in batches                                        │ under a symmetry
                         └── Params of the best, pulled every 32 evaluations ◄─ judge ◄─ Params ┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from polyplay.acting import search_metrics
from polyplay.acting.search import SearchOptions
from polyplay.acting.search.evaluators import check_backend
from polyplay.acting.search.policy import SearchPolicy
from polyplay.acting.self_play import game_rows, self_play
from polyplay.buffers import Replay, RolloutQueue, replay_store
from polyplay.common.bounds import Count, Fraction, NonNegative, Positive, SomeWorkers
from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.boards.pool import board_of
from polyplay.learning import Hyperparameters, LearnerSpec, ReplayOfRollouts, learn
from polyplay.learning.losses.alphazero import AlphaZeroLoss, SymmetricOutputs
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.population.gate import Gate
from polyplay.population.judge import judge
from polyplay.systems._wiring import Crew, System
from polyplay.weights import Local, OptimizerSpec, Params


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's, where they do not need Go; what it leaves open is AlphaZero's."""

    env: str = "game:connect_four"  # a board game: game:tic_tac_toe, game:connect_four, game:connect:ROWSxCOLUMNSxK
    players: SomeWorkers = 2  # workers that play, each with its own copy of the weights
    games: Count = 32  # games that a player searches at once; its network is asked for all of them together
    simulations: Count = 1600  # of a search, for each move
    exploration: Literal["alphago_zero", "alphazero"] = "alphago_zero"  # the exploration term, see the page of docs
    c: Positive = 1.25  # weight of the exploration term; AlphaZero's: the paper does not say
    fpu: Literal["zero", "parent"] = "zero"  # value of a move that was not tried yet
    noise: Fraction = 0.25  # share of Dirichlet noise in the priors at the root
    noise_alpha: Positive = 0.3  # α of that noise; about 10 divided by the number of legal moves
    warm: Count = 30  # plies in which moves are drawn by their visits; afterwards the most visited is played
    evaluator: Literal["torch", "openvino", "auto"] = (
        "torch"  # computes the search's network; auto: the faster, measured
    )
    keep_tree: bool = True  # keep the part of the tree below the move that was played
    blocks: Count = 19  # residual blocks of the network
    filters: Count = 256  # of each convolution
    batch: Count = 2_048  # positions in one update
    ratio: Positive = 1.5  # how often each position is drawn, in the mean
    capacity: Count = 2_000_000  # positions kept
    start: Count = 20_000  # moves before the first update
    learning_rate: Positive = 0.01  # learning rate at the start; see --anneal
    anneal: Literal["linear", "constant"] = "constant"  # how the learning rate falls over the run
    momentum: Fraction = 0.9  # of stochastic gradient descent
    l2: NonNegative = 1e-4  # c of the loss's c‖θ‖²
    gate: Fraction = 0.55  # share of a match's points that new weights need more of, to play; 0: they play at once
    gate_games: Count = 400  # of a match; their first plies, half of `warm`, are drawn from the best policy
    gate_every: Count = 1_000  # updates from one match to the next
    budget: Count = 150_000_000  # moves to train for when neither --frames nor --steps is given


def tic_tac_toe() -> Config:
    """Tuned here: never loses after a few core-minutes."""
    search = Config("game:tic_tac_toe", games=64, simulations=25, noise_alpha=1.0, warm=6, gate=0.0)
    learner = replace(search, blocks=2, filters=32, batch=256, ratio=4.0, capacity=20_000, start=2_000)
    return replace(learner, learning_rate=0.02, anneal="linear", budget=150_000)


def quick() -> Config:
    """Connect four on two cores: measured in bench/results/connect_four.md."""
    search = Config(games=64, simulations=64, noise_alpha=1.0, warm=12, gate=0.0)
    learner = replace(search, blocks=4, filters=48, batch=256, ratio=3.0, capacity=300_000, start=10_000)
    return replace(learner, learning_rate=0.03, anneal="linear", budget=1_400_000)


PRESETS = {"paper": Config, "quick": quick, "tic_tac_toe": tic_tac_toe}
ROW = {"envs": "many games per player, no opponent", "policy runs": "in a search; own copy, batch norm folded"}
ROW |= {"between": "RolloutQueue of whole games, Replay", "pace": "a ratio", "update": "Local, SGD"}
ROW |= {"weights travel": "through a gate; pull every 32 evaluations", "source": "Silver et al. 2017"}


def build(c: Config, crew: Crew) -> System:
    if c.capacity < c.batch:
        raise UserError(f"--capacity: {c.capacity} given, allowed: as many as --batch, which is {c.batch}, or more")
    check_backend(c.evaluator)
    envs = Envs(c.env, c.games, **crew.stepping)
    board = board_of(envs)
    policy = BoardNetworkFactory(envs.spec, c.blocks, c.filters)
    rows, moves = game_rows(board), 4 * (board.longest + 1)
    search = SearchOptions(c.simulations, c.exploration, c.c, fpu=c.fpu, reuse=c.keep_tree)
    search = replace(search, noise=c.noise, noise_alpha=c.noise_alpha, temperature=((0, 1.0), (c.warm, 0.0)))
    optim = OptimizerSpec("sgd", momentum=c.momentum, decay=2 * c.l2)
    loss, hyper = AlphaZeroLoss(), Hyperparameters(learning_rate=c.learning_rate)
    outputs = SymmetricOutputs(board, crew.seed)
    spec = LearnerSpec(policy, loss, Local(optim), hyper, crew.total(envs, c.budget), c.anneal, outputs=outputs)
    stored = {k: v for k, v in rows.items() if k != "agent"}
    replay = Replay(stored, c.players, c.capacity, c.batch, gamma=0.0, start=c.start, ratio=c.ratio)
    queue = RolloutQueue(rows, {}, moves, 1, 4 * c.players, c.players)
    params = best = Params.of(policy, readers=c.players)
    game: dict[str, Any] = {"envs": envs, "policy": policy, "board": board, "options": search, "on_loss": "replace"}
    if c.gate:
        gate, params = Gate(c.gate, c.gate_games, c.gate_every, c.warm // 2), Params.of(policy)
        crew.add(judge, gate=gate, params=params, best=best, **game)
    crew.add(self_play, n=c.players, out=queue, params=best, backend=c.evaluator, **game)
    crew.add(learn, learner=True, source=ReplayOfRollouts(queue, replay), spec=spec, params=params)
    metrics = (*spec.loss.metrics, *replay_store.NAMES, *search_metrics.NAMES)
    return System(envs, policy, metrics, player=partial(SearchPolicy, board, search, policy))
