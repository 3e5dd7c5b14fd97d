"""Accel RL, value learning (Stooke & Abbeel 2018): batched acting for two groups of lanes in turn, a replay a replica.

replica:  envs, group 0 ─┐
                         ├─► ε-greedy ─► rows ─► Replay ─► draws: loss (DQN, CatDQN, ε-Rainbow) ─► update
          envs, group 1 ─┘
          … × replicas, one per core or GPU: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from polyplay.acting import LinearEpsilon
from polyplay.buffers import Proportional, Uniform, replay_worker
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Whole, Workers
from polyplay.core.machine import cores
from polyplay.learning import CategoricalLoss, Hyperparameters, Inline, LearnerSpec, QLoss, Replayed, learn
from polyplay.learning.parts import TargetNetwork
from polyplay.systems import System
from polyplay.systems import _wiring as wiring
from polyplay.weights import Chunked, OptimizerSpec, averaged, param_sizes
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(wiring.AgentOptions):
    """Defaults: the paper's categorical DQN of table 2, batch 2,048, with accel_rl's settings (algos/dqn, scripts)."""

    atari: str = "accel"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal["dqn", "catdqn", "rainbow"] = "catdqn"  # rainbow: ε-Rainbow, without noisy layers
    sync: Literal["allreduce", "chunked"] = "allreduce"  # replicas learn in step (allreduce) or asynchronously
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
    whole = wiring.all_envs(c, crew)
    least = c.groups * whole.spec.seats
    fits = (n for n in range(1, cores() + 1) if not (c.lanes % (n * least) or c.batch % n))
    replicas = wiring.replicas_of(replace(c, replicas=c.replicas or max(fits, default=1)), crew, whole)
    shared = "lanes", "batch", "capacity", "learning_starts"
    each = wiring.per_replica(replace(c, replicas=replicas), "replicas", *shared)
    envs = wiring.replica_envs(whole, c.groups, replicas)
    rainbow, atoms = c.algo == "rainbow", 51 if c.algo != "dqn" else 0
    head = {"dueling": True, "scale": 2**-0.5} if c.dueling or rainbow else {}
    policy = wiring.q_network_of(c, envs, **head, atoms=atoms, support=(-c.v_max, c.v_max))
    net, sampler = policy(), Proportional(0.5, 0.4, last=1.0) if rainbow else Uniform()
    reward = "sign" if envs.title.startswith("ALE/") else "none"
    replay = replace(wiring.replay_of_rows(each, envs, net, sampler), reward=reward, ratio=c.ratio)
    loss = CategoricalLoss(-c.v_max, c.v_max, double=rainbow) if atoms else QLoss(reduction="mean")
    optim = OptimizerSpec(c.optimizer, c.optimizer_eps, 0.95, clip=c.max_grad_norm)
    update = Chunked(optim, *param_sizes(net), replicas) if c.sync == "chunked" else averaged(optim, replicas, net)
    hyper, steps = Hyperparameters(learning_rate=c.learning_rate), crew.total(envs, c.frames)
    spec = LearnerSpec(policy, loss, update, hyper, steps, (TargetNetwork(c.target_update),))
    lost: Any = "replace" if update.asynchronous else "fail"
    explore = LinearEpsilon(1.0, c.epsilon, c.epsilon_decay_steps, c.learning_starts, c.lanes)
    source = Replayed(Inline(envs, c.unroll, explore), replay)
    crew.add(learn, n=replicas, name="replica", learner=True, on_loss=lost, source=source, spec=spec)
    return System(envs, policy, (*loss.metrics, *replay_worker.NAMES), {"replicas": replicas}, 0.001 if atoms else 0.05)
