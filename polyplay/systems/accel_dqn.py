"""Accel RL, value learning (Stooke & Abbeel 2018): batched acting for two groups of lanes in turn, a replay each.

replica:  envs, group 0 ─┐
                         ├─► ε-greedy ─► transitions ─► Replay ─► draws: loss (DQN, CatDQN, ε-Rainbow) ─► update
          envs, group 1 ─┘
          … × replicas, one per core or GPU: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Whole, Workers
from polyplay.core.machine import cores
from polyplay.learning import CategoricalLoss, Hyperparameters, Inline, LearnerSpec, QLoss, Replayed, learn
from polyplay.learning.parts import TargetNetwork
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, divide_among, plays_atari, q_network, replay_of, replica_envs
from polyplay.weights import Chunked, OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(AgentOptions):
    """Defaults: the paper's categorical DQN of table 2, batch 2,048, with accel_rl's settings (algos/dqn, scripts)."""

    atari: str = "accel"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal["dqn", "catdqn", "rainbow"] = "catdqn"  # rainbow: ε-Rainbow, without noisy layers
    sync: Literal["allreduce", "chunked"] = "allreduce"  # replicas learn in step, or (chunked) asynchronously
    lanes: Count = 64  # parallel environments (num-envs), over all replicas
    replicas: Workers = 0  # copies of the loop, each with a share of everything and one core (0: as many as cores)
    groups: Count = 2  # groups of a replica's lanes, stepped in turn
    unroll: Count = 4  # agent steps per lane between updates (horizon)
    ratio: Positive = 8.0  # transitions drawn per agent step (training intensity)
    batch: Count = 2_048  # transitions in one update, over all replicas
    capacity: Count = 1_000_000  # transitions in the replays of all replicas together
    learning_starts: Count = 50_000  # agent steps before the first update
    target_update: Count = 39  # updates between two updates of the target network: 10,000 agent steps at batch 2,048
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "accel_large"  # accel, accel_large, auto, nature, a3c, …, mlp, or module:callable
    dueling: bool = False  # separate streams for value and advantages; rainbow: always
    v_max: Positive = 10.0  # largest return of the value distribution; the smallest is its negative
    epsilon: Fraction = 0.01  # probability of a random action at the end of the schedule
    epsilon_decay_steps: Whole = 1_000_000  # agent steps over which ε falls from 1 to --epsilon
    learning_rate: Positive = 2.5e-4  # learning rate, constant
    optimizer: str = "adam"  # adam, or rmsprop_a3c, which is Lasagne's, with decay 0.95
    optimizer_eps: Positive = 0.01 / 2_048  # the optimizer's ε
    max_grad_norm: NonNegative = 0.0  # clip the gradient's global norm to this, 0 is off
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    # envs: a replica's lanes, in --groups: one group steps while the policy acts for the other
    # replicas: copies of the loop, at most one for each core; lanes and batch divide among them
    envs, replicas = replica_envs(c, crew, batch=c.batch, most=cores())
    # each replica's share of these four
    each = divide_among(replace(c, replicas=replicas), "replicas", "lanes", "batch", "capacity", "learning_starts")
    rainbow, atoms = c.algo == "rainbow", 0 if c.algo == "dqn" else 51
    head = {"dueling": True, "scale": 2**-0.5} if c.dueling or rainbow else {}  # scale: of the streams' gradients
    policy = q_network(c, envs, **head, atoms=atoms, support=(-c.v_max, c.v_max))
    network = policy()  # for its shapes: each worker makes its own
    # ε from 1 to --epsilon, by the agent steps of all replicas' lanes together
    explore = LinearEpsilon(1.0, c.epsilon, over=c.epsilon_decay_steps, after=c.learning_starts, lanes=c.lanes)
    sampler = Proportional(alpha=0.5, beta=0.4, last=1.0) if rainbow else None  # β rises to 1 over the run
    reward = "sign" if plays_atari(c) else "none"
    # each: its lanes, batch, capacity and learning_starts
    replay = replay_of(each, envs, network, sampler, gamma=c.gamma, n_step=c.n_step, reward=reward, ratio=c.ratio)
    # acts with the weights that it learns
    source = Replayed(Inline(envs, c.unroll, explore), replay)
    loss = CategoricalLoss(-c.v_max, c.v_max, double=rainbow) if atoms else QLoss(reduction="mean")
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, alpha=0.95, clip=c.max_grad_norm)  # alpha: RMSProp's decay
    chunked = c.sync == "chunked"  # the paper's asynchronous variant
    update = Chunked.of(optimizer, policy, workers=replicas) if chunked else averaged(optimizer, replicas, policy)
    target, hyper = TargetNetwork(every=c.target_update), Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    lost: Any = "replace" if chunked else "fail"  # fail: the run ends, as replicas in step need each other
    crew.add(learn, n=replicas, name="replica", if_lost=lost, source=source, spec=spec)
    metrics, epsilon = (*loss.metrics, *REPLAY_METRICS), 0.001 if atoms else 0.05  # of evaluations, as published
    # resolved: what --replicas 0 became
    return System(envs, policy, metrics, resolved={"replicas": replicas}, epsilon=epsilon)
