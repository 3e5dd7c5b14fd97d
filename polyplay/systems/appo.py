"""Asynchronous PPO (Sample Factory, Petrenko et al. 2020): IMPALA's figure, PPO's surrogate, several passes.

act × actors:  envs ─► own copy of the weights ─► rollouts ─► RolloutQueue ─► learn × learners: epochs × minibatches:
                          ▲                                                clipped loss on V-trace ─► update
                          └─────────────── Params, pulled once per rollout ◄───┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polyplay.buffers import slots_per_batch
from polyplay.core.errors import Count, Fraction, Lag, NonNegative, Positive, SomeWorkers, UserError, Workers
from polyplay.envs import Envs
from polyplay.learning import APPO, Epochs, Hyperparameters, LearnerSpec
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic_of, atari_options, with_auxiliary
from polyplay.systems.impala import wire_actors
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import fewest_actors


@dataclass(frozen=True)
class Config(PolicyOptions):
    """Defaults: Sample Factory's for Atari (sf_examples/atari), but asynchronous and with V-trace."""

    atari: str = "impala"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: Workers = 2  # acting workers, each with its own copy of the weights (0: measured; two on two cores)
    lanes: Count = 4  # parallel environments (num-envs) of each actor; a slot holds one rollout of all of them
    learners: SomeWorkers = 1  # synchronous learners, whose gradients are averaged
    slots: Count = 2  # rollout buffers per actor: it fills one, the others wait for a learner or are in an update
    lag: Lag = -1  # rounds that acting may be ahead of learning: 0 synchronous, 1 overlapping, -1 unlimited
    unroll: Count = 128  # agent steps per lane in a rollout
    batch: Count = 8  # trajectories for the passes of one batch, over all learners
    epochs: Count = 4  # passes over a batch
    minibatches: Count = 4  # minibatches per pass, of whole trajectories
    clip_range: Positive = 0.1  # ε: the ratio π/μ is clipped to 1 ± ε
    lam: Fraction = 0.95  # λ of V-trace
    network: str = "auto"  # auto, nature, a3c, ga3c, impala, mlp, separate, five, or module:callable
    learning_rate: Positive = 2.5e-4  # learning rate at the start; see --anneal
    optimizer_eps: Positive = 1e-5  # Adam's ε
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this, 0 is off
    anneal: Literal["linear", "constant"] = "linear"  # how the learning rate falls over the run
    value_cost: NonNegative = 0.5  # weight of the value loss (v − V)²
    normalize_advantage: bool = True  # scale advantages to mean 0 and deviation 1 over a minibatch
    frames: Count = 40_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    n = c.actors or fewest_actors(c.learners)
    slots = slots_per_batch(c.batch, c.lanes, n, c.slots, c.learners, c.lag)
    if slots * c.lanes < c.minibatches:
        raise UserError(f"--minibatches {c.minibatches} of {slots * c.lanes} trajectories per learner: raise --batch")
    envs = Envs(c.env, c.lanes, workers=crew.placement.env_threads(n), options=atari_options(c), **crew.env_defaults)
    policy = actor_critic_of(c, envs, previous=c.core != "none")
    loss = APPO(c.gamma, c.lam, c.clip_range, value_cost=c.value_cost, reward=c.reward)
    loss = with_auxiliary(c, replace(loss, normalize_advantage=c.normalize_advantage))
    update = averaged(OptimizerSpec("adam", c.optimizer_eps, clip=c.max_grad_norm), c.learners, policy())
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.total(envs, c.frames))
    return wire_actors(c, crew, envs, spec, slots, Epochs(c.epochs, c.minibatches))
