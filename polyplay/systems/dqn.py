"""DQN (Mnih et al. 2015): a network of action values acts ε-greedily. It learns from batches that are drawn from a
replay buffer of past transitions.

replica:  envs ─► ε-greedy policy ─► transitions ─► Replay ─► `ratio` draws per step: loss ─► update
                        ▲                                        ▲ target network           │
                        └─────────────────── same weights ───────┴── a copy now and then ◄──┘
          … × replicas, each with its share of lanes, replay and batch; their gradients are averaged (all-reduce)
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay
from polyplay.core.errors import Count, Fraction, Positive, SomeWorkers, Whole
from polyplay.learning import Hyperparameters, Inline, LearnerSpec, QLoss, Replayed, TargetNetwork, learn
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, divide_among, q_network, worker_envs
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(AgentOptions):  # inherits env, inputs
    """Defaults: extended data table 1 of the paper. As there, `target_update` counts updates, not agent steps."""

    atari: str = "dqn2015"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: Count = 1  # parallel environments (num-envs), over all replicas
    replicas: SomeWorkers = 1  # copies of the loop, each with one core and a share of the lanes, replay and batch
    unroll: Count = 4  # agent steps per lane between updates
    gamma: Fraction = 0.99  # discount
    reward: Literal["clip", "sign", "none"] = "clip"  # how rewards are transformed; clip: limited to ±1
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # network: auto, nature, dqn (as released), a3c, mlp, or module:callable
    double: bool = False  # double DQN: the online network chooses the next action, the target network evaluates it
    head: Literal["plain", "shared", "dueling"] = "plain"
    # last layer; shared: one bias for all actions; dueling: Wang et al. 2016
    batch: Count = 32  # transitions in one update, over all replicas
    ratio: Positive = 8.0  # transitions drawn per agent step: 32 every 4 steps
    capacity: Count = 1_000_000  # transitions in the replays of all replicas together
    learning_starts: Count = 50_000  # agent steps before the first update
    target_update: Count = 10_000  # updates between two updates of the target network
    alpha: Fraction = 0.0  # exponent α of priorities (TD errors); 0: uniform draws
    beta: Fraction = 0.4  # exponent β of importance weights at the start; rises to 1
    epsilon: Fraction = 0.1  # probability of a random action at the end of the schedule
    epsilon_decay_steps: Whole = 1_000_000  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: Positive = 2.5e-4  # learning rate, constant
    optimizer: str = "rmsprop_dqn"
    # optimizer: rmsprop_dqn (centered, ε inside the root), adam, … (docs/reference/optimizers.md)
    optimizer_eps: Positive = 0.01  # the optimizer's ε
    reduction: Literal["sum", "mean"] = "sum"  # reduction of the loss over a batch; TD errors are clipped to ±1
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    each = divide_among(c, "replicas", "lanes", "batch", "capacity", "learning_starts")  # c with one replica's shares
    envs = worker_envs(each, crew, inline_single=True)  # a replica itself steps a single Atari game
    dueling = c.head == "dueling"
    # both dueling streams scale the gradient that they give the layers below them by 1/√2
    policy = q_network(
        c, envs, dueling=dueling, scale=2**-0.5 if dueling else 1.0, bias="shared" if c.head == "shared" else "each"
    )
    # ε is 1 for the first --learning-starts agent steps of all replicas together, and then falls to --epsilon
    explore = LinearEpsilon(1.0, c.epsilon, after=c.learning_starts, over=c.epsilon_decay_steps, lanes=c.lanes)
    sampler = Proportional(c.alpha, c.beta, beta_end=1.0) if c.alpha else None
    network = policy()  # only for its shapes: each replica makes its own network
    replay = Replay.of(
        envs, network, sampler, lanes=each.lanes, capacity=each.capacity, batch=each.batch,
        start=each.learning_starts, ratio=c.ratio, gamma=c.gamma, n_step=c.n_step, reward=c.reward,
    )  # fmt: skip
    source = Replayed(Inline(envs, c.unroll, explore), replay)  # a replica itself acts, with the weights that it trains
    # TD errors beyond ±1 have the gradient ±1; reduction "sum" is over the transitions of all replicas
    loss = QLoss(c.reduction, clip=1.0, double=c.double, replicas=c.replicas)
    clip = 10.0 if dueling else 0.0  # Wang et al. 2016 clip the gradient's norm
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.95, clip=clip), c.replicas)
    target, hyper = TargetNetwork(every=c.target_update), Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    crew.add(learn, n=c.replicas, name="replica", source=source, spec=spec)
    # ε in evaluations: 0.05 in DQN's paper, 0.001 in Double DQN's tuned version
    return System(envs, spec, REPLAY_METRICS, epsilon=0.001 if c.double else 0.05)
