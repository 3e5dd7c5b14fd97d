"""Soft actor-critic (Haarnoja et al. 2018b): the policy (actor) keeps its entropy near a target. By default there are
two critics, and learning uses the lower of their values.

replica:  envs ─► actor π ─► transitions ─► Replay ─► `ratio` draws per step: critics, actor, temperature ─► update
                    ▲                                   ▲ target critics                                       │
                    └────────── same weights ───────────┴── moved by τ of the way in every update ◄────────────┘
"""

from dataclasses import dataclass
from typing import Literal, cast

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Real, Whole
from polyplay.learning import Hyperparameters, Inline, LearnerSpec, Replayed, SACLoss, TargetNetwork, learn
from polyplay.nets.critics import CriticsNetwork
from polyplay.systems import System
from polyplay.systems._wiring import check_critics, critics_envs, critics_network, entropy_target
from polyplay.weights import Local, OptimizerSpec, parts_of
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: version 2 of the paper. Actions: bounded and continuous, discrete (Christodoulou 2019), or both."""

    env: str = "Pendulum-v1"  # environment: a Gymnasium id, module:callable, or toy:NAME
    lanes: Count = 1  # parallel environments (num-envs)
    unroll: Count = 1  # agent steps per lane between updates
    gamma: Fraction = 0.99  # discount
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "auto"  # network: auto (mlp, or convolutions for images) or module:callable; sizes: --hidden 256 256
    critics: Count = 2  # number of critics; their least value is the target
    critic_width: Whole = 0  # units of each critic layer; 0: as in the actor
    subset: Whole = 0  # critics drawn for each update, whose least value is the target; 0: all
    actor_value: Literal["min", "mean"] = "min"  # value that the actor maximizes, over the critics
    delay: Count = 1  # updates of the critics per update of the actor and of the temperature
    normalization: Literal["none", "layer", "batch"] = "none"  # normalization in critics; batch: no target network
    dropout: Fraction = 0.0  # share of critic units that a pass leaves out
    log_std: Literal["clip", "tanh"] = "clip"  # how log σ is bounded: clipped to −20 … 2, or by tanh to −5 … 2
    temperature: NonNegative = 0.0  # a fixed temperature; 0: it is learned
    entropy: Real | None = None  # target entropy in nats; none: −dim of a Box, 0.89·ln of the number of legal actions
    tau: Fraction = 0.005  # fraction of the distance the target network moves in an update
    target_update: Count = 1  # updates between two updates of the target network
    batch: Count = 256  # transitions in one update
    ratio: Positive = 256.0  # transitions drawn per agent step: one update per step
    capacity: Count = 1_000_000  # transitions in the replay
    learning_starts: Whole = 10_000  # agent steps before the first update; their actions are uniform
    alpha: Fraction = 0.0  # exponent α of priorities (TD errors); 0: uniform draws
    learning_rate: Positive = 3e-4  # learning rate of the actor, constant
    critic_rate: Positive = 1.0  # learning rate of the critics, as a multiple of --learning-rate
    temperature_rate: Positive = 1.0  # learning rate of the temperature, as a multiple of --learning-rate
    optimizer: str = "adam"  # optimizer: adam; others (docs/reference/optimizers.md) need all rates equal and --delay 1
    beta1: Fraction = 0.9  # β₁ of Adam
    frames: Count = 1_000_000  # agent steps to train for, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = critics_envs(c, crew, discrete=True)  # refuses actions of other kinds
    check_critics(c)
    critics = {"critics": c.critics, "width": c.critic_width, "normalization": c.normalization, "dropout": c.dropout}
    policy = critics_network(c, envs, actor="gaussian", log_std=c.log_std, alpha=c.temperature or 1.0, **critics)
    # actions are uniform in the first --learning-starts agent steps
    explore = LinearEpsilon(1.0, 0.0, after=c.learning_starts, over=1, lanes=c.lanes)
    network = cast("CriticsNetwork", policy())  # only for its shapes: each worker makes its own network
    replay = Replay.of(
        envs, network, Proportional(c.alpha, 0.4, beta_end=1.0) if c.alpha else None, batch=c.batch,
        capacity=c.capacity, start=max(c.learning_starts, 1), ratio=c.ratio, gamma=c.gamma, n_step=c.n_step,
    )  # fmt: skip
    source = Replayed(Inline(envs, c.unroll, explore), replay)  # the replica acts with the weights that it trains
    joint = c.normalization == "batch"  # one pass of the critics for s and s'; no target network
    redq = c.subset, c.actor_value == "mean", c.delay
    loss = SACLoss(entropy_target(c, envs), c.temperature, *redq, joint, masked=c.entropy is None)
    rates = {"actor": (1.0, c.delay), "log_alpha": (c.temperature_rate, c.delay)}  # an Adam for each part
    parts = parts_of(network, critics=(c.critic_rate, 1), trunk=(c.critic_rate, 1), **rates)
    optim = OptimizerSpec(c.optimizer, beta1=c.beta1, parts=parts)
    hyper = Hyperparameters(learning_rate=c.learning_rate)
    targets = () if joint else (TargetNetwork(every=c.target_update, tau=c.tau),)
    spec = LearnerSpec(policy, loss, Local(optim), hyper, crew.agent_steps(envs, c.frames), parts=targets)
    crew.add(learn, name="replica", source=source, spec=spec)
    return System(envs, spec, REPLAY_METRICS)
