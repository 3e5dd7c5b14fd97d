"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, algorithm S3).

replica × workers:  env ─► own copy of the weights ─► rows ─► loss ─► gradient ─► shared weights and statistics
                                     ▲                                                     │  no lock
                                     └───────────── copied before every rollout ◄──────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from polyplay.core.errors import Count, Decay, Fraction, NonNegative, Positive, Width, Workers
from polyplay.core.machine import cores
from polyplay.envs import Envs
from polyplay.envs.make import whole_matches
from polyplay.learning import A2C, Hyperparameters, Inline, LearnerSpec, learn
from polyplay.learning.unreal import UnrealWindows
from polyplay.systems import System
from polyplay.systems import _wiring as wiring
from polyplay.weights import Hogwild, OptimizerSpec, param_sizes
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(wiring.PolicyOptions):
    """Defaults: the paper's feed-forward agent for Atari, with details that its author confirmed later."""

    atari: str = "a3c"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    workers: Workers = 0  # workers, each with one environment and one core (0: as many as cores; the paper had 16)
    unroll: Count = 5  # agent steps between two updates of a worker (t_max)
    lam: Fraction = 1.0  # λ of generalized advantage estimation; 1 is the n-step return
    network: str = "a3c"  # auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core_size: Width = 256  # width of the recurrent core
    previous: bool = False  # the core, or the head, also takes the previous action and reward
    auxiliary: str = "none"  # UNREAL's tasks: pixel, reward, value, each may have =COST, a comma between; or none
    init: Literal["auto", "orthogonal", "torch"] = "auto"  # initial weights (auto: as the network was published)
    learning_rate: Positive = 7e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_a3c"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; all share its statistics
    optimizer_eps: Positive = 0.1  # the optimizer's ε
    decay: Decay = 0.99  # RMSProp's decay
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this, 0 is off; muupan/async-rl's
    anneal: Literal["linear", "constant"] = "linear"  # how the learning rate falls over all workers' steps
    value_cost: NonNegative = 0.5  # weight of the value loss (R − V)²; muupan/async-rl: 0.25
    reduction: Literal["sum", "mean"] = "sum"  # mean or sum over a rollout; sum is the paper's
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a rollout
    reward_scale: Positive = 1.0  # factor of rewards, before --reward applies
    life_loss: Literal["auto", "ignore", "terminate"] = "auto"  # whether a lost life ends an episode (auto: as --atari)
    frames: Count = 320_000_000  # frames to train for (Atari: four per agent step), unless --steps is given ("1 day")


def build(c: Config, crew: Crew) -> System:
    crew.placement.only_cpu("a3c")
    workers = c.workers or cores()
    stepping = {**crew.env_defaults, "inline": True}  # a worker steps its one environment itself
    envs = whole_matches(Envs(c.env, 1, workers=1, options=wiring.atari_options(c, c.life_loss), **stepping))
    tasks = wiring.auxiliary_of(c)
    given = {"core_size": c.core_size, "previous": c.previous, "auxiliary": tuple(tasks)}
    policy = wiring.actor_critic_of(c, envs, c.init, exact=False, **given)
    loss = A2C(c.gamma, c.lam, values="unrolled", value_cost=c.value_cost, normalize_advantage=c.normalize_advantage)
    loss = replace(loss, reduction=c.reduction)
    loss = wiring.with_auxiliary(c, replace(loss, reward=c.reward, reward_scale=c.reward_scale), tasks)
    optim = OptimizerSpec(c.optimizer, c.optimizer_eps, c.decay, clip=c.max_grad_norm)
    weights = Hogwild(optim, *param_sizes(policy()), workers)
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    parts = (UnrealWindows(),) if tasks else ()
    spec = LearnerSpec(policy, loss, weights, hyper, crew.total(envs, c.frames), parts)
    own: Any = {"source": Inline(envs, c.unroll, episodes=True), "spec": spec, "on_loss": "replace"}
    crew.add(learn, n=workers, name="episodic_replica", learner=True, **own)
    return System(envs, policy, loss.metrics, {"workers": workers}, values=wiring.units_of(c))
