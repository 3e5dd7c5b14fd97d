"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, algorithm S3). Each worker plays its own environment, and
updates weights that all workers share.

worker × workers:  env ─► own copy of the weights ─► rollout ─► loss ─► gradient ─► shared weights and statistics
                                    ▲                                                        │  no lock
                                    └─────────────── copied before every rollout ◄───────────┘
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.core.errors import Count, Decay, Fraction, NonNegative, Positive, Width, Workers
from polyplay.core.machine import cores
from polyplay.envs.make import whole_matches
from polyplay.learning import A2C, Hyperparameters, Inline, LearnerSpec, learn
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic, worker_envs
from polyplay.weights import Hogwild, OptimizerSpec
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(PolicyOptions):  # inherits env, core, inputs, actions
    """Defaults: the paper's feed-forward agent for Atari, with details that the author confirmed later."""

    atari: str = "a3c"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    workers: Workers = 0  # workers, each with one environment and one core (0: one per core; the paper had 16)
    unroll: Count = 5  # agent steps between updates of a worker (t_max)
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 1.0  # λ of generalized advantage estimation; 1 is the n-step return
    network: str = "a3c"  # network: auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core_size: Width = 256  # width of the recurrent core
    previous: bool = False  # the core, or the head, also takes the previous action and reward
    auxiliary: str = "none"  # UNREAL's tasks on recent rows: pixel, reward, value, with or without =COST; or none
    init: Literal["auto", "orthogonal", "torch"] = "auto"  # initial weights (auto: as the network was published)
    learning_rate: Positive = 7e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_a3c"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; workers share the statistics
    optimizer_eps: Positive = 0.1  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    decay: Decay = 0.99  # RMSProp's decay
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this; 0: off; 40 is muupan/async-rl's
    anneal: Literal["linear", "constant"] = "linear"  # schedule; linear: the rate falls to 0 over all workers' steps
    value_cost: NonNegative = 0.5  # weight of the value loss (R − V)²; muupan/async-rl: 0.25
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    reduction: Literal["sum", "mean"] = "sum"  # how the loss is reduced over a rollout; sum is the paper's
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a rollout
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    reward_scale: Positive = 1.0  # factor of rewards, before --reward applies
    life_loss: Literal["auto", "ignore", "terminate"] = "auto"  # whether a lost life ends an episode (auto: as --atari)
    frames: Count = 320_000_000  # frames to train for (Atari: four per agent step), unless --steps is given ("1 day")


def build(c: Config, crew: Crew) -> System:
    crew.placement.only_cpu("a3c")  # refuses GPUs: workers share weights in main memory
    workers = c.workers or cores()
    # a worker itself steps one environment; a game of several players has a lane for each player
    envs = whole_matches(worker_envs(c, crew, life_loss=c.life_loss, lanes=1, inline=True))
    # auxiliary tasks add their losses; inexact sums are faster, and their last bits may depend on the size of a batch
    policy = actor_critic(
        c, envs, init=c.init, exact=False, core_size=c.core_size, previous=c.previous, auxiliary=c.auxiliary
    )
    # a worker acts with its own copy of the weights; a rollout ends after t_max steps, or with its episode
    source = Inline(envs, c.unroll, episodes=True)
    loss = A2C(
        c.gamma, c.lam, value_cost=c.value_cost, reward=c.reward, reward_scale=c.reward_scale,
        normalize_advantage=c.normalize_advantage, reduction=c.reduction,
        values="unrolled",  # returns use V of the pass that computes the gradient
    )  # fmt: skip
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, c.decay, clip=c.max_grad_norm)
    update = Hogwild.of(optimizer, policy, workers=workers)  # the shared weights and statistics, without a lock
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    # a lost worker is replaced: no other worker waits for it
    crew.add(learn, n=workers, name="actor_learner", if_lost="replace", source=source, spec=spec)
    return System(envs, spec, resolved={"workers": workers})  # the number chosen for --workers 0
