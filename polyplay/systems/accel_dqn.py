"""Accel RL with value learning (Stooke & Abbeel 2018). While the network acts for one group of parallel environments
(lanes), the other group steps. Each replica (copy of this loop) has its own replay buffer.

replica:  envs, group 0 ─┐
                         ├─► ε-greedy ─► transitions ─► Replay ─► draws: loss (DQN, CatDQN, ε-Rainbow) ─► update
          envs, group 1 ─┘
          … × replicas: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from dataclasses import dataclass, replace
from typing import Literal

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Whole, Workers
from polyplay.core.machine import cores
from polyplay.envs.atari import plays_games
from polyplay.learning import CategoricalLoss, Hyperparameters, Inline, LearnerSpec, QLoss, Replayed, learn
from polyplay.learning.parts import TargetNetwork
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, divide_among, q_network, replica_envs
from polyplay.weights import Chunked, OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(AgentOptions):  # inherits env, inputs
    """Defaults: the paper's table 2 (categorical DQN, batch 2,048). The rest is from the authors' code, accel_rl."""

    atari: str = "accel"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal["dqn", "catdqn", "rainbow"] = "catdqn"  # loss; rainbow: ε-Rainbow, without noisy layers
    sync: Literal["allreduce", "chunked"] = "allreduce"  # how replicas learn: in step, or asynchronously (chunked)
    lanes: Count = 64  # parallel environments (num-envs), over all replicas
    replicas: Workers = 0  # copies of the loop, each with a share of everything (0: one; with images one per core)
    groups: Count = 2  # groups of a replica's lanes, stepped in turn
    unroll: Count = 4  # agent steps per lane between updates (horizon)
    ratio: Positive = 8.0  # transitions drawn per agent step (training intensity)
    batch: Count = 2_048  # transitions in one update, over all replicas
    capacity: Count = 1_000_000  # transitions in the replays of all replicas together
    learning_starts: Count = 50_000  # agent steps before the first update
    target_update: Count = 39  # updates between two updates of the target network: 10,000 agent steps at batch 2,048
    gamma: Fraction = 0.99  # discount
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping (--preset rainbow sets 3)
    network: str = "accel_large"  # network: accel, accel_large (DQN's), auto, nature, …, or module:callable
    dueling: bool = False  # separate streams for value and advantages; rainbow: always
    v_max: Positive = 10.0  # largest return of the value distribution; the smallest is -v_max
    epsilon: Fraction = 0.01  # probability of a random action at the end of the schedule
    epsilon_decay_steps: Whole = 1_000_000  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: Positive = 2.5e-4  # learning rate, constant
    optimizer: str = "adam"  # optimizer: adam, or rmsprop_a3c (Lasagne's, with decay 0.95)
    optimizer_eps: Positive = 0.01 / 2_048  # the optimizer's ε
    max_grad_norm: NonNegative = 0.0  # clip the gradient's global norm to this; 0: off
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    rainbow, categorical, chunked = c.algo == "rainbow", c.algo != "dqn", c.sync == "chunked"
    # one replica's environments (one group of lanes steps while the policy acts for the other), and the number of
    # replicas: at most one per core, and a divisor of the batch
    envs, replicas = replica_envs(c, crew, batch=c.batch, most=cores(), several=chunked)
    # c with one replica's shares
    each = divide_among(replace(c, replicas=replicas), "replicas", "lanes", "batch", "capacity", "learning_starts")
    dueling = c.dueling or rainbow
    # both dueling streams scale the gradient that they give the layers below them by 1/√2
    policy = q_network(
        c, envs, dueling=dueling, scale=2**-0.5 if dueling else 1.0, atoms=51 if categorical else 0,
        support=(-c.v_max, c.v_max),
    )  # fmt: skip
    # ε is 1 for the first --learning-starts agent steps of all replicas together, and then falls to --epsilon
    explore = LinearEpsilon(1.0, c.epsilon, after=c.learning_starts, over=c.epsilon_decay_steps, lanes=c.lanes)
    sampler = Proportional(alpha=0.5, beta=0.4, beta_end=1.0) if rainbow else None
    network = policy()  # only for its shapes: each replica makes its own network
    replay = Replay.of(
        envs, network, sampler, lanes=each.lanes, capacity=each.capacity, batch=each.batch,
        start=each.learning_starts, ratio=c.ratio, gamma=c.gamma, n_step=c.n_step,
        reward="sign" if plays_games(envs) else "none",  # transformation of rewards
    )  # fmt: skip
    source = Replayed(Inline(envs, c.unroll, explore), replay)  # a replica itself acts, with the weights that it trains
    loss = CategoricalLoss(-c.v_max, c.v_max, priority="kl", double=rainbow) if categorical else QLoss("mean", clip=1.0)
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.95, clip=c.max_grad_norm)  # RMSProp's decay
    # chunked: replicas update a central vector, one after another of its three parts, without waiting for each other
    update = Chunked.of(optimizer, policy, workers=replicas) if chunked else averaged(optimizer, replicas)
    target, hyper = TargetNetwork(every=c.target_update), Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    # replicas in step need each other, so the run fails if one fails
    crew.add(learn, n=replicas, name="replica", if_lost="replace" if chunked else "fail", source=source, spec=spec)
    # resolved: the number chosen for --replicas 0; epsilon: evaluations play ε-greedily, too
    resolved, epsilon = {"replicas": replicas}, 0.001 if categorical else 0.05
    return System(envs, spec, REPLAY_METRICS, resolved=resolved, epsilon=epsilon)
