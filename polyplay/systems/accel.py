"""Accel RL, policy gradients (Stooke & Abbeel 2018): batched inference for two groups of lanes in turn, many replicas.

replica:  envs, group 0 ─┐
                         ├─► policy ─► rows ─► loss (A2C or PPO) ─► update     while one group is served the other steps
          envs, group 1 ─┘
          … × replicas, one per core or GPU: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Workers
from polyplay.learning import A2C, PPO, Hyperparameters, Inline, LearnerSpec, Passes, Source, learn
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic_of, divided_envs, epochs_of, with_auxiliary
from polyplay.weights import Chunked, OptimizerSpec, averaged, param_sizes
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(PolicyOptions):
    """Defaults: A2C of the paper's table 2 as accel_rl has it (algos/pg), with one replica's 16 environments."""

    atari: str = "accel"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal["a2c", "ppo"] = "a2c"  # the loss; a2c makes one pass over a rollout, ppo several
    sync: Literal["allreduce", "chunked"] = "allreduce"  # replicas learn in step (allreduce) or asynchronously
    lanes: Count = 16  # parallel environments (num-envs), over all replicas
    replicas: Workers = 0  # copies of the loop, each with a share of lanes and a core or GPU (0: one per core or GPU)
    groups: Count = 2  # groups of a replica's lanes, stepped in turn
    unroll: Count = 5  # agent steps per lane in a rollout (horizon)
    epochs: Count = 4  # ppo: passes over a rollout
    minibatches: Count = 4  # ppo: minibatches per pass; with a recurrent core each has whole lanes
    clip_range: Positive = 0.2  # ppo: ε of the clipped ratio π/μ; falls with the learning rate
    lam: Fraction = 1.0  # λ of generalized advantage estimation; 1 is the n-step return
    network: str = "accel"  # accel, accel_large, auto, nature, a3c, …, mlp, separate, or module:callable
    learning_rate: Positive = 7e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_a3c"  # rmsprop_a3c is Lasagne's; rmsprop_tf, rmsprop_torch or adam
    optimizer_eps: Positive = 1e-6  # the optimizer's ε
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this, 0 is off
    anneal: Literal["linear", "constant"] = "constant"  # how the learning rate falls over the run
    value_cost: NonNegative = 0.25  # weight of the value loss (R − V)²
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal["clip", "sign", "none"] = "sign"  # learner's rewards
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given (50M steps)


def build(c: Config, crew: Crew) -> System:
    envs, replicas = divided_envs(c, crew, c.minibatches if c.core != "none" and c.algo == "ppo" else 1)
    policy = actor_critic_of(c, envs)
    loss: A2C | PPO = A2C(c.gamma, c.lam, bootstrap="acted", value_cost=c.value_cost, reward=c.reward)
    source: Source = Inline(envs, c.unroll)
    if c.algo == "ppo":
        loss = PPO(c.gamma, c.lam, c.clip_range, c.anneal == "linear", value_cost=c.value_cost, reward=c.reward)
        source = Passes(source, epochs_of(c, replicas, envs.spec.seats))
    loss = with_auxiliary(c, replace(loss, normalize_advantage=c.normalize_advantage))
    optim, net = OptimizerSpec(c.optimizer, c.optimizer_eps, alpha=0.9, clip=c.max_grad_norm), policy()
    update = Chunked(optim, *param_sizes(net), replicas) if c.sync == "chunked" else averaged(optim, replicas, net)
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost, remaining=1.0)
    steps, lost = crew.total(envs, c.frames), cast(Any, "replace" if update.asynchronous else "fail")
    spec = LearnerSpec(policy, loss, update, hyper, steps)
    crew.add(learn, n=replicas, name="replica", learner=True, on_loss=lost, source=source, spec=spec)
    return System(envs, policy, loss.metrics, {"replicas": replicas})
