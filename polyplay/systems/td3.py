"""TD3 (Fujimoto et al. 2018): a deterministic policy (actor) and two critics. The actor is updated half as often as the
critics. Learning uses the lower of the critics' values.

replica:  envs ─► actor μ + noise ─► transitions ─► Replay ─► `ratio` draws per step: critics; actor now and then
                    ▲                                   ▲ target actor and critics, noise on actions ▼
                    └────────── same weights ───────────┴── moved by τ of the way with the actor ◄ update
"""

from dataclasses import dataclass
from typing import cast

from polyplay.acting import LinearEpsilon
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Whole
from polyplay.learning import Hyperparameters, Inline, LearnerSpec, Replayed, TargetNetwork, TD3Loss, learn
from polyplay.nets.critics import CriticsNetwork
from polyplay.systems import System
from polyplay.systems._wiring import critics_envs, critics_network
from polyplay.weights import Local, OptimizerSpec, parts_of
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: those of the paper's released code."""

    env: str = "Pendulum-v1"  # environment: a Gymnasium id, module:callable, or toy:NAME; its actions are a bounded Box
    lanes: Count = 1  # parallel environments (num-envs)
    unroll: Count = 1  # agent steps per lane between updates
    gamma: Fraction = 0.99  # discount
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "auto"  # network: auto (mlp, or convolutions for images) or module:callable; sizes: --hidden 256 256
    critics: Count = 2  # number of critics; their least value is the target
    noise: NonNegative = 0.1  # standard deviation of noise on each element of an action, in half ranges
    smoothing: NonNegative = 0.2  # standard deviation of noise on the target network's actions; 0: none
    noise_clip: Positive = 0.5  # bound of the --smoothing noise
    delay: Count = 2  # updates of the critics per update of the actor and of the target network
    tau: Fraction = 0.005  # fraction of the distance the target network moves in an update
    batch: Count = 256  # transitions in one update
    ratio: Positive = 256.0  # transitions drawn per agent step: one update per step
    capacity: Count = 1_000_000  # transitions in the replay
    learning_starts: Whole = 25_000  # agent steps before the first update; their actions are uniform
    alpha: Fraction = 0.0  # exponent α of priorities (TD errors); 0: uniform draws
    learning_rate: Positive = 3e-4  # learning rate of the actor, constant
    critic_rate: Positive = 1.0  # learning rate of the critics, as a multiple of --learning-rate
    optimizer: str = "adam"  # optimizer: adam; others (docs/reference/optimizers.md) need --critic-rate 1 and --delay 1
    frames: Count = 1_000_000  # agent steps to train for, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = critics_envs(c, crew)  # refuses actions that are not bounded real numbers
    policy = critics_network(c, envs, actor="deterministic", critics=c.critics, deviation=c.noise, alpha=0.0)
    # actions are uniform in the first --learning-starts agent steps
    explore = LinearEpsilon(1.0, 0.0, after=c.learning_starts, over=1, lanes=c.lanes)
    network = cast("CriticsNetwork", policy())  # only for its shapes: each worker makes its own network
    replay = Replay.of(
        envs, network, Proportional(c.alpha, 0.4, beta_end=1.0) if c.alpha else None, batch=c.batch,
        capacity=c.capacity, start=max(c.learning_starts, 1), ratio=c.ratio, gamma=c.gamma, n_step=c.n_step,
    )  # fmt: skip
    source = Replayed(Inline(envs, c.unroll, explore), replay)  # the replica acts with the weights that it trains
    loss = TD3Loss(c.smoothing, c.noise_clip, c.delay)
    # the actor's Adam makes a step in every `delay`-th update
    parts = parts_of(network, actor=(1.0, c.delay), critics=(c.critic_rate, 1), trunk=(c.critic_rate, 1))
    update, target = Local(OptimizerSpec(c.optimizer, parts=parts)), TargetNetwork(every=c.delay, tau=c.tau)
    hyper = Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    crew.add(learn, name="replica", source=source, spec=spec)
    return System(envs, spec, REPLAY_METRICS)
