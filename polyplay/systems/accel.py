"""Accel RL, policy gradients (Stooke & Abbeel 2018): batched inference for two groups of lanes in turn, many replicas.

replica:  envs, group 0 ─┐
                         ├─► policy ─► rows ─► loss (A2C or PPO) ─► update     while one group is served the other steps
          envs, group 1 ─┘
          … × replicas, one per core or GPU: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Workers
from polyplay.learning import A2C, PPO, Epochs, Hyperparameters, Inline, LearnerSpec, Passes, Source, learn
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic, check_minibatches, replica_envs, with_auxiliary
from polyplay.weights import Chunked, OptimizerSpec, averaged
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
    whole_lanes = c.core != "none" and c.algo == "ppo"  # in a minibatch: lanes divide among them
    # replicas: copies of the loop, each with its share of the lanes
    envs, replicas = replica_envs(c, crew, minibatches=c.minibatches if whole_lanes else 1)
    policy = actor_critic(c, envs)
    source: Source = Inline(envs, c.unroll)
    common: Any = {"value_cost": c.value_cost, "reward": c.reward, "normalize_advantage": c.normalize_advantage}
    loss: Any = A2C(c.gamma, c.lam, bootstrap="acted", **common)  # V of the last row is that of acting
    if c.algo == "ppo":
        check_minibatches(c, envs)  # none may be empty
        source = Passes(source, Epochs(c.epochs, c.minibatches))
        loss = PPO(c.gamma, c.lam, c.clip_range, anneal_clip=c.anneal == "linear", **common)
    loss = with_auxiliary(loss, c.core)  # a temporal core adds two KL divergences
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, alpha=0.9, clip=c.max_grad_norm)  # alpha: Lasagne's decay
    chunked = c.sync == "chunked"
    update = Chunked.of(optimizer, policy, workers=replicas) if chunked else averaged(optimizer, replicas, policy)
    # remaining: part of the run to come, by which the clip range falls
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost, remaining=1.0)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    lost: Any = "replace" if chunked else "fail"  # replicas in step can't do without one
    crew.add(learn, n=replicas, name="replica", learner=True, if_lost=lost, source=source, spec=spec)
    return System(envs, policy, loss.metrics, resolved={"replicas": replicas})
