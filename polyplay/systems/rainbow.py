"""Rainbow (Hessel et al. 2018): DQN that is double, dueling, categorical, n-step, prioritized and noisy at once.

replica:  envs ─► noisy policy ─► transitions ─► Replay, by priority ─► draws: projected distribution, KL ─► update
                       ▲                                ▲ priorities ◄─────────────────┤ target network        │
                       └──────────────────────────── same weights ─────────────────────┴── a copy now and then ┘
          … × replicas, each with its share of lanes, replay and batch; their gradients are averaged (all-reduce)
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, Whole
from polyplay.learning import CategoricalLoss, Hyperparameters, Inline, LearnerSpec, Replayed, TargetNetwork, learn
from polyplay.systems import System
from polyplay.systems._wiring import ValueOptions, divide_among, q_network, replay_of, worker_envs
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):
    """Defaults: the paper's table 1."""

    atari: str = "dqn2015"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: Count = 1  # parallel environments (num-envs), over all replicas
    replicas: SomeWorkers = 1  # copies of the loop, each with a share of the lanes, replay and batch, and one core
    unroll: Count = 4  # agent steps per lane between updates
    n_step: Count = 3  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # auto, nature, dopamine, a3c, mlp, or module:callable
    variant: Literal["paper", "zoo", "dopamine"] = "paper"  # implementation (CODES); dopamine: not double, not dueling
    v_max: Positive = 10.0  # largest return of the value distribution; the smallest is its negative
    sigma: NonNegative = 0.5  # initial σ of the noisy layers; 0: ε-greedy instead
    batch: Count = 32  # transitions in one update, over all replicas
    ratio: Positive = 8.0  # transitions drawn per agent step: 32 every 4 steps
    capacity: Count = 1_000_000  # transitions in the replays of all replicas together
    learning_starts: Count = 20_000  # agent steps before the first update
    target_update: Count = 2_000  # updates between two updates of the target network: 32,000 frames
    alpha: Fraction = 0.5  # exponent α of priorities
    beta: Fraction = 0.4  # exponent β of importance weights at the start
    epsilon: Fraction = 0.01  # without noisy layers: probability of a random action at the end of the schedule
    epsilon_decay_steps: Whole = 62_500  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: Positive = 6.25e-5  # learning rate, constant
    optimizer_eps: Positive = 1.5e-4  # Adam's ε
    max_grad_norm: NonNegative = 10.0  # clip the gradient's global norm to this (dqn_zoo), 0 is off
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


CODES: Any = {  # by variant: settings of the sampler, what a priority is, settings of the network
    # last: β at the end; mixture: share of uniform draws; stratified: a draw in each of `batch` equal parts of the sum
    # kl: divergence from the target; ce: cross-entropy, which is never 0. bias: of the last layer. init: of the weights
    "paper": ({"last": 1.0}, "kl", {"dueling": True}),
    "zoo": ({"last": 1.0, "mixture": 1e-3}, "ce", {"dueling": True, "bias": "none"}),
    "dopamine": ({"stratified": True}, "ce", {"init": "dopamine"}),
}


def build(c: Config, crew: Crew) -> System:
    each = divide_among(c, "replicas", "lanes", "batch", "capacity", "learning_starts")  # a replica's share of them
    # workers: environment processes; but a single Atari game is stepped by the replica itself
    envs = worker_envs(each, crew, workers=1, inline_single=True)
    sampling, priority, head = CODES[c.variant]
    # noisy layers by Fortunato et al. 2018, or dqn_zoo's, whose noise is cut off at ±2
    noise = {"noisy": "zoo" if c.variant == "zoo" else "fortunato", "sigma": c.sigma} if c.sigma else {}
    policy = q_network(c, envs, **head, **noise, atoms=51, support=(-c.v_max, c.v_max))
    network = policy()  # for its shapes: each worker makes its own
    # where no noise explores: ε from 1 to --epsilon, by the agent steps of all replicas' lanes together
    schedule = LinearEpsilon(1.0, c.epsilon, over=c.epsilon_decay_steps, after=c.learning_starts, lanes=c.lanes)
    sampler = Proportional(c.alpha, c.beta, **sampling)
    # each: its lanes, batch, capacity and learning_starts
    replay = replay_of(each, envs, network, sampler, gamma=c.gamma, n_step=c.n_step, reward=c.reward, ratio=c.ratio)
    # acts with the weights that it learns
    source = Replayed(Inline(envs, c.unroll, explore=None if c.sigma else schedule), replay)
    loss = CategoricalLoss(-c.v_max, c.v_max, priority=priority, double=c.variant != "dopamine")
    update = averaged(OptimizerSpec("adam", c.optimizer_eps, clip=c.max_grad_norm), c.replicas, policy)
    target, hyper = TargetNetwork(every=c.target_update), Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    crew.add(learn, n=c.replicas, name="replica", source=source, spec=spec)
    epsilon = 0.0 if c.sigma else 0.001  # of evaluations, as published
    return System(envs, policy, (*loss.metrics, *REPLAY_METRICS), epsilon=epsilon)
