"""Rainbow (Hessel et al. 2018): DQN with six improvements at once. It is double, dueling, categorical, n-step,
prioritized and noisy.

replica:  envs ─► noisy policy ─► transitions ─► Replay, by priority ─► draws: projected distribution, KL ─► update
                       ▲                                ▲ priorities ◄─────────────────┤ target network        │
                       └──────────────────────────── same weights ─────────────────────┴── a copy now and then ┘
          … × replicas, each with its share of lanes, replay and batch; their gradients are averaged (all-reduce)
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, Whole
from polyplay.learning import CategoricalLoss, Hyperparameters, Inline, LearnerSpec, Replayed, TargetNetwork, learn
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, divide_among, q_network, worker_envs
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(AgentOptions):  # inherits env, inputs
    """Defaults: the paper's table 1."""

    atari: str = "dqn2015"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: Count = 1  # parallel environments (num-envs), over all replicas
    replicas: SomeWorkers = 1  # copies of the loop, each with one core and a share of the lanes, replay and batch
    unroll: Count = 4  # agent steps per lane between updates
    gamma: Fraction = 0.99  # discount
    reward: Literal["clip", "sign", "none"] = "clip"  # how rewards are transformed; clip: limited to ±1
    n_step: Count = 3  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # network: auto, nature, dopamine, a3c, mlp, or module:callable
    variant: Literal["paper", "zoo", "dopamine"] = "paper"  # implementation; dopamine: not double, not dueling
    v_max: Positive = 10.0  # largest return of the value distribution; the smallest is -v_max
    sigma: NonNegative = 0.5  # initial σ of the noisy layers; 0: ε-greedy instead
    batch: Count = 32  # transitions in one update, over all replicas
    ratio: Positive = 8.0  # transitions drawn per agent step: 32 every 4 steps
    capacity: Count = 1_000_000  # transitions in the replays of all replicas together
    learning_starts: Count = 20_000  # agent steps before the first update
    target_update: Count = 2_000  # updates between two updates of the target network: 32,000 frames
    alpha: Fraction = 0.5  # exponent α of priorities
    beta: Fraction = 0.4  # exponent β of importance weights at the start
    epsilon: Fraction = 0.01  # probability of a random action at the end of the schedule, without noisy layers
    epsilon_decay_steps: Whole = 62_500  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: Positive = 6.25e-5  # learning rate, constant
    optimizer: str = "adam"  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: Positive = 1.5e-4  # the optimizer's ε
    max_grad_norm: NonNegative = 10.0  # clip the gradient's global norm to this (dqn_zoo); 0: off
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    zoo, dopamine = c.variant == "zoo", c.variant == "dopamine"
    each = divide_among(c, "replicas", "lanes", "batch", "capacity", "learning_starts")  # c with one replica's shares
    envs = worker_envs(each, crew, inline_single=True)  # a replica itself steps a single Atari game
    noise = "zoo" if zoo else "fortunato"  # dqn_zoo cuts off the noise of Fortunato et al. 2018 at ±2
    policy = q_network(
        c, envs, dueling=not dopamine, atoms=51, support=(-c.v_max, c.v_max), sigma=c.sigma or None,
        noisy=noise if c.sigma else "none", bias="none" if zoo else "each",  # dqn_zoo's last layer has no biases
        init="dopamine" if dopamine else "torch",  # Dopamine's weights are uniform in ±∜3/√fan_in
    )  # fmt: skip
    # ε is 1 for the first --learning-starts agent steps of all replicas together, and then falls to --epsilon
    epsilon = LinearEpsilon(1.0, c.epsilon, after=c.learning_starts, over=c.epsilon_decay_steps, lanes=c.lanes)
    # dqn_zoo draws a transition uniformly with probability 0.001
    sampler = Proportional(c.alpha, c.beta, beta_end=1.0, mixture=1e-3 if zoo else 0.0)
    if dopamine:  # one draw from each of `batch` equal parts of the sum of priorities, at a constant β
        sampler = Proportional(c.alpha, c.beta, stratified=True)
    network = policy()  # only for its shapes: each replica makes its own network
    replay = Replay.of(
        envs, network, sampler, lanes=each.lanes, capacity=each.capacity, batch=each.batch,
        start=each.learning_starts, ratio=c.ratio, gamma=c.gamma, n_step=c.n_step, reward=c.reward,
    )  # fmt: skip
    # a replica itself acts, with the weights that it trains; with noisy layers no ε is needed
    source = Replayed(Inline(envs, c.unroll, explore=None if c.sigma else epsilon), replay)
    # priorities are KL divergences from the target (kl), or cross-entropies (ce), which are never 0
    priority: Literal["kl", "ce"] = "kl" if c.variant == "paper" else "ce"
    loss = CategoricalLoss(-c.v_max, c.v_max, priority=priority, double=not dopamine)
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), c.replicas)
    target, hyper = TargetNetwork(every=c.target_update), Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    crew.add(learn, n=c.replicas, name="replica", source=source, spec=spec)
    # evaluations play ε-greedily if the network has no noise
    return System(envs, spec, REPLAY_METRICS, epsilon=0.0 if c.sigma else 0.001)
