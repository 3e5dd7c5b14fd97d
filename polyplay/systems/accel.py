"""Accel RL, policy gradients (Stooke & Abbeel 2018): batched inference for two groups of lanes in turn, many replicas.

replica:  envs, group 0 ─┐
                         ├─► policy ─► rows ─► loss (A2C or PPO) ─► update     while one group is served the other steps
          envs, group 1 ─┘
          … × replicas, one per core or GPU: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Workers
from polyplay.learning import Hyperparameters, LearnerSpec, replica
from polyplay.learning.policy_losses import A2C, PPO
from polyplay.systems import System
from polyplay.systems._wiring import actor_critic_of, all_envs, epochs_of, replica_envs, replicas_of, with_auxiliary
from polyplay.weights import Chunked, OptimizerSpec, averaged, param_sizes
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: A2C of the paper's table 2 as accel_rl has it (algos/pg), with one replica's 16 environments."""

    env: str = "ALE/Pong-v5"  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
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
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 1.0  # λ of generalized advantage estimation; 1 is the n-step return
    network: str = "accel"  # accel, accel_large, auto, nature, a3c, …, mlp, separate, or module:callable
    core: Literal["none", "lstm", "gru", "temporal"] = "none"  # recurrent core; temporal: FTW's of two clocks
    learning_rate: Positive = 7e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_a3c"  # rmsprop_a3c is Lasagne's; rmsprop_tf, rmsprop_torch or adam
    optimizer_eps: Positive = 1e-6  # the optimizer's ε
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this, 0 is off
    anneal: Literal["linear", "constant"] = "constant"  # how the learning rate falls over the run
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    value_cost: NonNegative = 0.25  # weight of the value loss (R − V)²
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal["clip", "sign", "none"] = "sign"  # learner's rewards
    inputs: Literal["raw", "centre", "normalize"] = "raw"  # centre: subtract mean image; normalize: scale numbers
    actions: Literal["scale", "clip"] = "scale"  # real actions: −1 … 1 is scaled to their bounds, or clip to them
    budget: Count = 200_000_000  # frames to train for when neither --frames nor --steps is given (50M steps)


def chunked() -> Config:
    """The paper's asynchronous A2C, which it calls A3C: two replicas of 16 environments at least."""
    return Config(sync="chunked", lanes=32, replicas=2)


def ppo() -> Config:
    """accel_rl's PPO and its example's horizon, with table 2's 8 environments a replica: a rollout is one minibatch."""
    optim = Config(optimizer="adam", learning_rate=1e-3, optimizer_eps=1e-5, max_grad_norm=0.0)
    loss = replace(optim, algo="ppo", lam=0.95, value_cost=1.0, minibatches=1)
    return replace(loss, lanes=8, replicas=1)


def ppo_chunked() -> Config:
    """The asynchronous PPO that the paper calls APPO: two replicas of 8 lanes, and λ of its example."""
    return replace(ppo(), sync="chunked", lanes=16, replicas=2, lam=1.0)


def quick() -> Config:
    """The fastest on Pong on a small machine, by PPO: measured in bench/results/pong.md."""
    passes = replace(ppo(), epochs=3, minibatches=4, clip_range=0.1, normalize_advantage=True, value_cost=0.5)
    inputs = replace(passes, atari="baselines", network="a3c", inputs="centre", lanes=16, replicas=0, unroll=32)
    return replace(inputs, learning_rate=7e-4, anneal="linear", max_grad_norm=0.5, budget=4_000_000)


PRESETS = {"paper": Config, "chunked": chunked, "ppo": ppo, "ppo_chunked": ppo_chunked, "quick": quick}
ROW = {"envs": "one pool per replica, 2 groups in turn", "policy runs": "learner's own", "between": "nothing"}
ROW |= {"pace": "inline", "update": "AllReduce of replicas, or Chunked"}
ROW |= {"weights travel": "same object; chunked: with each update", "source": "Stooke & Abbeel 2018; astooke/accel_rl"}


def build(c: Config, crew: Crew) -> System:
    whole = all_envs(c, crew)
    replicas = replicas_of(c, crew, whole, c.minibatches if c.core != "none" and c.algo == "ppo" else 1)
    envs = replica_envs(whole, c.groups, replicas)
    policy = actor_critic_of(c, envs)
    loss: A2C | PPO = A2C(c.gamma, c.lam, value_cost=c.value_cost, reward=c.reward)
    passes = None
    if c.algo == "ppo":
        loss = PPO(c.gamma, c.lam, c.clip_range, c.anneal == "linear", value_cost=c.value_cost, reward=c.reward)
        passes = epochs_of(c, replicas, envs.spec.seats)
    loss = with_auxiliary(c, replace(loss, normalize_advantage=c.normalize_advantage))
    optim, net = OptimizerSpec(c.optimizer, c.optimizer_eps, alpha=0.9, clip=c.max_grad_norm), policy()
    update = Chunked(optim, *param_sizes(net), replicas) if c.sync == "chunked" else averaged(optim, replicas, net)
    hyper = Hyperparameters(learning_rate=c.learning_rate, entropy_cost=c.entropy_cost, remaining=1.0)
    spec = LearnerSpec(
        policy, loss, update, hyper, crew.total(envs, c.budget), c.anneal, passes=passes, stored_bootstrap=True
    )
    learner = crew.add(
        replica, n=replicas, learner=True, on_loss="replace" if update.asynchronous else "fail", envs=envs
    )
    learner.T, learner.spec = c.unroll, spec
    return System(envs, policy, loss.metrics, {"replicas": replicas})
