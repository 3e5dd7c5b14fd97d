"""AlphaGo Zero (Silver et al. 2017, figure 1). An agent that chooses moves by tree search plays against itself. A
network learns from the results of these searches.

self_play × players:  games at once: search ─► visits, move ─► whole games ─► RolloutQueue ─► replay ─► learn × learners
                         ▲  asks the network, in batches                                        π, z under a symmetry │
                         └── Params of the champion, pulled now and then ◄─ judge ◄─ Params of the candidate ◄────────┘
judge (the paper's evaluator): a match of a candidate against the champion; one that wins enough becomes champion
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from polyplay.buffers import REPLAY_METRICS, SampleQueue, serve_replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, UserError, Whole
from polyplay.envs import Envs
from polyplay.games.board_pool import board_of
from polyplay.games.records import ResignOptions
from polyplay.learning import Hyperparameters, LearnerSpec, RateDrops, Replayed, Rollouts, Samples, Source, learn
from polyplay.learning.losses import AlphaZeroLoss
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.population.judge import Gate, judge
from polyplay.search.search import SearchPolicy
from polyplay.search.self_play import SELF_PLAY_METRICS, self_play
from polyplay.systems import System
from polyplay.systems._wiring import divide_among, game_queue, position_replay, search_options
from polyplay.weights import OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's values. Where the paper gives no value, the default is AlphaZero's."""

    env: str = "game:go"  # a board game: game:go+size=9+komi=7, game:othello+size=6, game:connect_four, …
    players: SomeWorkers = 2  # workers that play, each with its own copy of the weights
    games: Count = 32  # games that a player searches at once, with joint batches for the network
    simulations: Count = 1600  # simulations per search; one search per move
    leaves: Count = 8  # leaves of a search evaluated in one batch; until then each counts as a lost visit
    fast_simulations: Whole = 0  # simulations of three in four searches, which are not learned from; 0: all are full
    exploration: Literal["alphago_zero", "alphazero"] = "alphago_zero"
    # exploration term: c·P·√N/(1 + n); alphazero: c grows with log N
    c: Positive = 1.25  # weight of the exploration term; AlphaZero's: the paper gives none
    fpu: Literal["zero", "parent"] = "zero"  # value of an untried move
    root: Literal["puct", "gumbel", "gumbel_mctx"] = "puct"
    # rule at the root; gumbel: Danihelka et al. 2022; gumbel_mctx: with mctx's q
    gumbel_actions: Count = 16  # moves that a Gumbel root visits at first
    noise: Fraction = 0.25  # share of Dirichlet noise in the root's priors
    noise_alpha: Positive = 0.03  # α of Dirichlet noise; about 10 ÷ the number of legal moves
    temperature_plies: Count = 30  # first plies, with drawn moves; afterwards the best is played
    symmetries: Literal["all", "learning", "none"] = "all"  # random board symmetries; learning: not in searches
    evaluator: Literal["torch", "openvino", "auto"] = "torch"  # library that runs self-play's network; auto: fastest
    keep_tree: bool = True  # keep the part of the tree below the move that was played
    resign: str = "auto"  # resign below this value, as -0.9; auto: learned from the tenth of games played out; off
    blocks: Count = 19  # residual blocks of the network
    filters: Count = 256  # filters of each convolution
    learners: SomeWorkers = 64  # learners, whose gradients are averaged; batch norm is over each learner's share
    batch: Count = 2_048  # positions in one update, over all learners
    ratio: Positive = 1.46  # how often each position is learned from, on average
    capacity: Count = 100_000_000  # positions kept: about 500,000 games
    window: Whole = 0  # positions after which the replay grows more slowly, up to capacity; 0: capacity from the start
    learning_starts: Count = 20_000  # moves before the first update
    learning_rate: Positive = 0.01  # learning rate at the start; see --anneal
    anneal: Literal["linear", "constant"] = "constant"  # schedule; linear: the learning rate falls to 0 over the run
    drops: tuple[Count, ...] = (400_000, 600_000)  # updates at which the learning rate is divided by 10
    optimizer: str = "sgd"  # optimizer: sgd, another of docs/reference/optimizers.md, or module:callable
    momentum: Fraction = 0.9  # momentum of sgd
    l2: NonNegative = 1e-4  # weight of ‖θ‖² in the loss, with sgd only
    gate: Fraction = 0.55  # share of points that a candidate must exceed to become champion; 0: no gate
    gate_games: Count = 400  # games per match; the champion draws each opening: half of --temperature-plies
    gate_every: Count = 1_000  # fewest updates between matches
    champion_games: Whole = 25_000  # fewest games that a champion plays before the next match
    frames: Count = 980_000_000  # moves to train for, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = Envs(c.env, c.games, **crew.env_defaults)
    board = board_of(envs)  # the rules of the game
    search = search_options(c)  # the search's options, from --simulations to --keep-tree
    policy = BoardNetworkFactory(envs.spec, c.blocks, c.filters)
    champion = Params.of(policy, readers=c.players)  # the weights that self-play pulls
    candidate = Params.of(policy) if c.gate else champion  # the weights that learners publish
    queue = game_queue(board, c.players)  # finished games, with π and z of every position
    shared: dict[str, Any] = {"envs": envs, "policy": policy, "board": board, "options": search, "if_lost": "replace"}
    if c.gate:
        # the champion draws the first plies of a match; in the paper matches begin at the empty board
        gate = Gate(c.gate, c.gate_games, c.gate_every, plies=c.temperature_plies // 2, reign=c.champion_games)
        crew.add(judge, gate=gate, params=candidate, publish=champion, **shared)
    # backend: the library that computes the network in searches
    resign = ResignOptions.parse(c.resign)
    crew.add(self_play, n=c.players, out=queue, params=champion, backend=c.evaluator, resign=resign, **shared)
    if c.capacity < c.batch:
        raise UserError(f"--capacity: {c.capacity} given, allowed: at least --batch, which is {c.batch}")
    replay = position_replay(
        board, lanes=c.players,  # each player writes finished games, one after another
        capacity=c.capacity, start=c.learning_starts, ratio=c.ratio, grows_from=c.window,
        batch=divide_among(c, "learners", "batch").batch,  # a learner's share
    )  # fmt: skip
    # one learner has the replay in its own memory; for several, a worker stores games and draws batches
    source: Source = Replayed(Rollouts(queue, n=1), replay)
    if c.learners > 1:
        samples = SampleQueue(replay, queue, c.learners)
        crew.add(serve_replay, source=queue, out=samples)
        source = Samples(samples)
    # (z − v)² − πᵀ·log p, of positions turned by random symmetries
    loss = AlphaZeroLoss(board, crew.seed, turned=c.symmetries != "none")
    # sgd adds the gradient of l2·‖θ‖²
    update = averaged(OptimizerSpec(c.optimizer, momentum=c.momentum, l2=c.l2), c.learners)
    hyper, drops = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate), RateDrops(c.drops)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(drops,))
    crew.add(learn, n=c.learners, source=source, spec=spec, publish=candidate)
    player = partial(SearchPolicy, board, search, policy)  # evaluations also search
    return System(envs, spec, (*REPLAY_METRICS, *SELF_PLAY_METRICS), player=player)
