"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, algorithm S3).

replica × workers:  env ─► own copy of the weights ─► rows ─► loss ─► gradient ─► shared weights and statistics
                                     ▲                                                     │  no lock
                                     └───────────── copied before every rollout ◄──────────┘
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.core.errors import Count, Decay, Fraction, NonNegative, Positive, Width, Workers
from polyplay.core.machine import cores
from polyplay.envs.make import whole_matches
from polyplay.learning import A2C, Hyperparameters, Inline, LearnerSpec, learn
from polyplay.learning.unreal import UnrealWindows
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic, task_costs, value_units, with_auxiliary, worker_envs
from polyplay.weights import Hogwild, OptimizerSpec
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(PolicyOptions):
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
    crew.placement.only_cpu("a3c")  # refuses GPUs: workers share weights in the machine's memory
    workers = c.workers or cores()
    one = worker_envs(c, crew, life_loss=c.life_loss, lanes=1, workers=1, inline=True)  # the worker steps it itself
    envs = whole_matches(one)  # of a game of several players, all of them
    tasks = task_costs(c)  # what each costs, by name
    more = {"core_size": c.core_size, "previous": c.previous, "auxiliary": tuple(tasks)}
    # exact=False: a row's outputs may have other bits in a batch of another size, which is faster
    policy = actor_critic(c, envs, c.init, exact=False, **more)
    source = Inline(envs, c.unroll, episodes=True)  # a rollout also ends with its episode
    loss = A2C(
        c.gamma, c.lam, value_cost=c.value_cost, reward=c.reward, reward_scale=c.reward_scale,
        normalize_advantage=c.normalize_advantage, reduction=c.reduction,
        values="unrolled",  # targets are made of V as computed for the gradient, not as stored while acting
    )  # fmt: skip
    loss = with_auxiliary(loss, c.core, tasks)  # a temporal core adds two KL divergences
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, c.decay, clip=c.max_grad_norm)
    update = Hogwild.of(optimizer, policy, workers=workers)
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    parts = (UnrealWindows(),) if tasks else ()  # recent rows, which the tasks draw from
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts)
    crew.add(learn, n=workers, name="episodic_replica", learner=True, if_lost="replace", source=source, spec=spec)
    # values: their unit is the scaled reward, reports show the environment's
    return System(envs, policy, loss.metrics, resolved={"workers": workers}, values=value_units(c))
