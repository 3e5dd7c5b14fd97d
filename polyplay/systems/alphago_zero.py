"""AlphaGo Zero (Silver et al. 2017, figure 1): a search plays itself, and a network learns what the search found.

self_play × players:  games at once: search ─► visits, move ─► whole games ─► RolloutQueue ─► learn: replay, π and z
                         ▲  asks the network, in batches                                        │ under a symmetry
                         └── Params of the best, pulled every 32 evaluations ◄─ judge ◄─ Params ┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from polyplay.acting import resignation, search_metrics
from polyplay.acting.resignation import ResignOptions
from polyplay.acting.search.policy import SearchPolicy
from polyplay.acting.self_play import game_rows, self_play
from polyplay.buffers import RolloutQueue, replay_store
from polyplay.common.bounds import Count, Fraction, NonNegative, Positive, SomeWorkers
from polyplay.envs import Envs
from polyplay.envs.boards.pool import board_of
from polyplay.learning import ReplayOfRollouts, learn
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.population.gate import Gate
from polyplay.population.judge import judge
from polyplay.systems._alphago_zero import learner_spec_of, replay_of, search_of
from polyplay.systems._wiring import Crew, System
from polyplay.weights import Params


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's; what it leaves open is AlphaZero's."""

    env: str = "game:go"  # a board game: game:go+size=9+komi=7, game:othello+size=6, game:connect_four, …
    players: SomeWorkers = 2  # workers that play, each with its own copy of the weights
    games: Count = 32  # games that a player searches at once; its network is asked for all of them together
    simulations: Count = 1600  # of a search, for each move
    exploration: Literal["alphago_zero", "alphazero"] = "alphago_zero"  # the exploration term, see the page of docs
    c: Positive = 1.25  # weight of the exploration term; AlphaZero's: the paper does not say
    fpu: Literal["zero", "parent"] = "zero"  # value of a move that was not tried yet
    root: Literal["puct", "gumbel"] = "puct"  # how moves of the root are chosen; gumbel: sequential halving
    considered: Count = 16  # moves of the root that get visits at first, where root is gumbel
    noise: Fraction = 0.25  # share of Dirichlet noise in the priors at the root
    noise_alpha: Positive = 0.03  # α of that noise; about 10 divided by the number of legal moves
    warm: Count = 30  # plies in which moves are drawn by their visits; afterwards the most visited is played
    symmetries: bool = True  # the search asks the network under a random symmetry of the board each time
    evaluator: Literal["torch", "openvino", "auto"] = "torch"  # computes the search's network; auto: the faster here
    keep_tree: bool = True  # keep the part of the tree below the move that was played
    resign: str = "auto"  # auto: where values say so, learnt from a tenth of the games; off; or below a value like -0.9
    blocks: Count = 19  # residual blocks of the network
    filters: Count = 256  # of each convolution
    batch: Count = 2_048  # positions in one update
    ratio: Positive = 1.5  # how often each position is drawn, in the mean
    capacity: Count = 2_000_000  # positions kept
    start: Count = 20_000  # moves before the first update
    learning_rate: Positive = 0.01  # learning rate at the start; see --anneal
    anneal: Literal["linear", "constant"] = "constant"  # how the learning rate falls over the run
    drops: tuple[Count, ...] = (400_000, 600_000)  # updates from which on the learning rate is a tenth of what it was
    momentum: Fraction = 0.9  # of stochastic gradient descent
    l2: NonNegative = 1e-4  # c of the loss's c‖θ‖²
    gate: Fraction = 0.55  # share of a match's points that new weights need more of, to play; 0: they play at once
    gate_games: Count = 400  # of a match; their first plies, half of `warm`, are drawn from the best policy
    gate_every: Count = 1_000  # updates from one match to the next
    budget: Count = 1_000_000_000  # moves to train for when neither --frames nor --steps is given


def quick() -> Config:
    """Connect four on two cores: measured in bench/results/connect_four.md."""
    search = Config("game:connect_four", games=64, simulations=64, noise_alpha=1.0, warm=12, gate=0.0)
    search = replace(search, symmetries=False, resign="off", drops=())
    learner = replace(search, blocks=4, filters=48, batch=256, ratio=3.0, capacity=300_000, start=10_000)
    return replace(learner, learning_rate=0.03, anneal="linear", budget=1_400_000)


def tic_tac_toe() -> Config:
    """Tuned here: never loses after a few core-minutes."""
    search = replace(quick(), env="game:tic_tac_toe", simulations=25, warm=6)
    learner = replace(search, blocks=2, filters=32, ratio=4.0, capacity=20_000, start=2_000)
    return replace(learner, learning_rate=0.02, budget=150_000)


def paper40() -> Config:
    """The larger network, which was trained for 40 days."""
    return replace(Config(), blocks=39)


def alphazero() -> Config:
    """Its successor (Silver et al. 2018), which plays with the newest weights: for Go."""
    search = Config(exploration="alphazero", symmetries=False, simulations=800, gate=0.0)
    return replace(search, batch=4_096, learning_rate=0.02, drops=(100_000, 300_000, 500_000), budget=4_200_000_000)


def go5() -> Config:
    """Go on 5×5, where Black has to take the whole board: measured in bench/results/go5.md."""
    return replace(quick(), env="game:go+size=5+komi=24.5", noise_alpha=0.4, warm=8, symmetries=True, resign="auto")


PRESETS = {"paper": Config, "paper40": paper40, "alphazero": alphazero}
PRESETS |= {"quick": quick, "go5": go5, "tic_tac_toe": tic_tac_toe}
ROW = {"envs": "many games per player, no opponent", "policy runs": "in a search; own copy, batch norm folded"}
ROW |= {"between": "RolloutQueue of whole games, Replay", "pace": "a ratio", "update": "Local, SGD"}
ROW |= {"weights travel": "through a gate; pull every 32 evaluations", "source": "Silver et al. 2017"}


def build(c: Config, crew: Crew) -> System:
    envs = Envs(c.env, c.games, **crew.stepping)
    board = board_of(envs)
    policy = BoardNetworkFactory(envs.spec, c.blocks, c.filters)
    resign, rows, moves = ResignOptions.parse(c.resign), game_rows(board), 4 * (board.longest + 1)
    search, replay = search_of(c), replay_of(c, rows)
    spec = learner_spec_of(c, policy, board, crew.total(envs, c.budget), crew.seed)
    queue = RolloutQueue(rows, {}, moves, 1, 4 * c.players, c.players)
    params = best = Params.of(policy, readers=c.players)
    game: dict[str, Any] = {"envs": envs, "policy": policy, "board": board, "options": search, "on_loss": "replace"}
    if c.gate:
        gate, params = Gate(c.gate, c.gate_games, c.gate_every, c.warm // 2), Params.of(policy)
        crew.add(judge, gate=gate, params=params, best=best, **game)
    crew.add(self_play, n=c.players, out=queue, params=best, backend=c.evaluator, resign=resign, **game)
    crew.add(learn, learner=True, source=ReplayOfRollouts(queue, replay), spec=spec, params=params)
    metrics = (*spec.loss.metrics, *replay_store.NAMES, *search_metrics.NAMES, *resignation.NAMES)
    return System(envs, policy, metrics, player=partial(SearchPolicy, board, search, policy))
