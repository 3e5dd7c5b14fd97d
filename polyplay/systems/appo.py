"""Asynchronous PPO (Sample Factory, Petrenko et al. 2020). It has the workers of IMPALA (impala.py), but PPO's loss and
several passes over each batch. Here each actor has its own copy of the weights. Sample Factory's rollout workers
instead ask policy workers for actions.

act × actors:  envs ─► own copy of the weights ─► rollouts ─► RolloutQueue ─► learn × learners: epochs × minibatches:
                          ▲                              V-trace by the present weights ─► clipped loss ─► update
                          └─────────────── Params, pulled once per rollout ◄───┘
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.core.errors import Count, Fraction, Lag, NonNegative, Positive, SomeWorkers, UserError, Workers
from polyplay.learning import APPO, Epochs, Hyperparameters, LearnerSpec
from polyplay.systems import System
from polyplay.systems._wiring import ValueOptions, actor_critic, actor_envs
from polyplay.systems.impala import wire_impala
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):  # inherits env, core, value, inputs, actions
    """Defaults: Sample Factory's settings for Atari (sf_examples/atari), but with V-trace and asynchronous acting."""

    atari: str = "impala"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: Workers = 2  # acting workers, each with its own copy of the weights (0: measured; two on two cores)
    lanes: Count = 4  # parallel environments (num-envs) of each actor; a slot holds one rollout of all of them
    learners: SomeWorkers = 1  # synchronous learners, whose gradients are averaged
    slots: Count = 2  # rollout buffers per actor: one is filled, others wait for a learner or are in an update
    lag: Lag = -1  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: Count = 128  # agent steps per lane in a rollout
    batch: Count = 8  # trajectories in one batch, over all learners
    epochs: Count = 4  # passes over a batch
    minibatches: Count = 4  # minibatches per pass, of whole trajectories
    clip_range: Positive = 0.1  # ε: the ratio π/μ is clipped to 1 ± ε (Sample Factory: 1/(1+ε) to 1+ε)
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 0.95  # λ of V-trace
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    network: str = "auto"  # network: auto (nature or mlp), nature, a3c, impala, five (unit sets), …, or module:callable
    learning_rate: Positive = 2.5e-4  # learning rate at the start; see --anneal
    optimizer: str = "adam"  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: Positive = 1e-5  # the optimizer's ε
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this; 0: off
    anneal: Literal["linear", "constant"] = "linear"  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: NonNegative = 0.5  # weight of the value loss (v − V)²
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    normalize_advantage: bool = True  # scale advantages to mean 0 and deviation 1 over a minibatch
    frames: Count = 40_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    if (own := c.batch // c.learners) < c.minibatches:
        raise UserError(f"--minibatches {c.minibatches} of {own} trajectories per learner: lower it, or raise --batch")
    envs = actor_envs(c, crew)  # the environments of one actor
    # a recurrent core also takes the previous action and reward
    policy = actor_critic(c, envs, init="orthogonal", previous=c.core != "none")
    # V-trace's targets are recomputed for every minibatch, with ρ̄ = c̄ = 1; PPO's clipped ratio π/μ replaces ρ in the
    # policy gradient
    loss = APPO(
        c.gamma, c.lam, c.clip_range, value_cost=c.value_cost,
        normalize_advantage=c.normalize_advantage, reward=c.reward,
    )  # fmt: skip
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), c.learners)
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    passes = Epochs(c.epochs, c.minibatches)  # passes over each batch
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), passes=passes)
    return wire_impala(c, crew, envs, spec)  # actors, queue and learners as in impala.py
