"""Ape-X DQN (Horgan et al. 2018): many actors, each at its own ε, prioritized replays beside them, one learner.

act × actors:   envs ─► own copy of the weights, ε by lane ─► rows, with the policy's values ─► RolloutQueue
                          ▲                                                                            ▼
                 Params, one publication for all          serve_replay × replay_workers: replay, first priorities
                          │                                                                            ▼
learn:          update ◄── loss ◄── batches drawn ahead ◄── SampleQueue ◄─────── and priorities back ────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyplay.acting import EpsilonLadder, GaussianNoise, act
from polyplay.buffers import Proportional, RolloutQueue, SampleQueue, replay_worker, serve_replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers
from polyplay.core.numbers import ValueUnits
from polyplay.envs import Envs
from polyplay.learning import Hyperparameters, LearnerSpec, QLoss, Samples, TargetNetwork, learn
from polyplay.systems import System, described
from polyplay.systems._wiring import ValueOptions, atari_options, nice_of, per_replica, q_network_of, replay_of_rows
from polyplay.weights import OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):
    """Defaults: the paper's for Atari, as far as they are known. It has 360 actors of one lane."""

    atari: str = "apex"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: SomeWorkers = 2  # acting workers, each with its own copy of the weights
    lanes: Count = 4  # parallel environments (num-envs) of each actor
    replay_workers: SomeWorkers = 1  # replay workers, each for a share of the actors
    learners: SomeWorkers = 1  # copies of the learner, whose gradients are averaged
    unroll: Count = 100  # agent steps per lane in a rollout, and between two pulls of the weights
    n_step: Count = 3  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # auto, nature, a3c, mlp, or module:callable
    batch: Count = 512  # transitions in one update, over all learners
    ratio: NonNegative = 0.0  # transitions drawn per agent step; 0: neither side waits for the other
    capacity: Count = 2_000_000  # transitions in all replays together; up to an eighth more between trims
    evict_every: Count = 100  # updates between two trims of the replay to its capacity, oldest transitions first
    learning_starts: Count = 50_000  # agent steps before the first update
    target_update: Count = 2_500  # updates between two updates of the target network
    prefetch: Count = 16  # batches that each replay holds ready for each learner
    alpha: Fraction = 0.6  # exponent α of priorities, which are errors
    epsilon: Fraction = 0.4  # largest probability of a random action; the lanes have values down to its 8th power
    learning_rate: Positive = 6.25e-5  # learning rate, constant
    optimizer: str = "rmsprop_dqn"  # rmsprop_dqn (centered, ε in the root), adam, …: docs/reference/optimizers.md
    optimizer_eps: Positive = 1.5e-7  # the optimizer's ε
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this, 0 is off
    frames: Count = 22_800_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


PRESETS, ROW = described(Config)


def build(c: Config, crew: Crew) -> System:
    envs = Envs(c.env, c.lanes, workers=1, options=atari_options(c), **crew.env_defaults)
    policy = q_network_of(c, envs, dueling=True)
    loss, hyper = QLoss("mean", clip=0.0, double=True), Hyperparameters(learning_rate=c.learning_rate)
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, 0.95, clip=c.max_grad_norm), c.learners, policy())
    spec = LearnerSpec(policy, loss, update, hyper, crew.total(envs, c.frames), (TargetNetwork(c.target_update),))
    return wire_actors(c, crew, envs, spec, EpsilonLadder(c.actors * c.lanes, c.epsilon), reward=c.reward, scale=1.0)


def wire_actors(
    c: Any, crew: Crew, envs: Envs, spec: LearnerSpec, explore: EpsilonLadder | GaussianNoise, reward: str, scale: float
) -> System:
    """The figure above, whatever is learnt."""
    net, each = spec.policy(), per_replica(c, "replay_workers", "actors", "capacity", "learning_starts")
    each = per_replica(each, "learners", "batch")
    replay = replay_of_rows(each, envs, net, Proportional(c.alpha, 0.4, first="td"), each.actors * c.lanes)
    replay = replace(replay, reward=reward, scale=scale, ratio=c.ratio or None, soft=True)
    rollouts = RolloutQueue.of(envs, net, c.unroll, c.actors, readers=c.replay_workers)
    samples, params = SampleQueue(replay, rollouts, c.learners, c.prefetch), Params.of(net, readers=c.actors)
    acts: Any = {"envs": envs, "policy": spec.policy, "explore": explore, "out": rollouts, "params": params}
    crew.add(act, n=c.actors, on_loss="replace", nice=nice_of(c.actors, c.learners), **acts)
    stores: Any = {"source": rollouts, "out": samples, "trim": c.evict_every}
    crew.add(serve_replay, n=c.replay_workers, on_loss="replace", **stores)
    crew.add(learn, n=c.learners, learner=True, source=Samples(samples), spec=spec, publish=params)
    return System(envs, spec.policy, (*spec.loss.metrics, *replay_worker.NAMES), values=ValueUnits(scale))
