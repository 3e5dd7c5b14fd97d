"""Ape-X of SAC: soft actor-critic with many actors, which draw their actions from the policy. Separate workers hold the
replay buffers.

act × actors:      envs ─► copies of π and Q ─► rollouts with Q as acted ─► RolloutQueue
                             ▲ pulled once per rollout                           ▼
                           Params    serve_replay × replay_workers: Replay, first priorities by that Q
                             ▲                                      ▼ batches  ▲ new priorities
learn × learners:          update ◄── critics, actor, temperature ◄── SampleQueue ─┘

Actors, replays and learners are as in apex.py (Horgan et al. 2018), network and loss as in sac.py.
"""

from dataclasses import dataclass

from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Real, SomeWorkers
from polyplay.learning import Hyperparameters, LearnerSpec, SACLoss, TargetNetwork
from polyplay.systems import System
from polyplay.systems._wiring import critics_envs, critics_network, entropy_target
from polyplay.systems.apex import wire_apex
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: settings of the SAC paper, and replay settings of the Ape-X paper."""

    env: str = "Pendulum-v1"  # environment: a Gymnasium id, module:callable, or toy:NAME; see sac
    actors: SomeWorkers = 2  # acting workers, each with its own copy of the weights
    lanes: Count = 4  # parallel environments (num-envs) of each actor
    replay_workers: SomeWorkers = 1  # replay workers, each for a share of the actors
    learners: SomeWorkers = 1  # copies of the learner, whose gradients are averaged
    unroll: Count = 50  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: Fraction = 0.99  # discount
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "auto"  # network: auto (mlp, or convolutions for images) or module:callable; sizes: --hidden 256 256
    critics: Count = 2  # number of critics; their least value is the target
    temperature: NonNegative = 0.0  # a fixed temperature; 0: it is learned
    entropy: Real | None = None  # target entropy in nats; none: as in sac
    tau: Fraction = 0.005  # fraction of the distance the target network moves in an update
    batch: Count = 256  # transitions in one update, over all learners
    ratio: NonNegative = 256.0  # transitions drawn per agent step: one update per step; 0: neither side waits
    capacity: Count = 1_000_000  # transitions in all replays together; up to an eighth more between trims
    evict_every: Count = 100  # updates between trims of the replay to --capacity, oldest transitions first
    learning_starts: Count = 10_000  # agent steps before the first update
    prefetch: Count = 16  # batches that each replay holds ready for each learner
    alpha: Fraction = 0.6  # exponent α of priorities (TD errors)
    learning_rate: Positive = 3e-4  # learning rate of all parts, constant
    optimizer: str = "adam"  # optimizer: adam, or another of docs/reference/optimizers.md
    frames: Count = 1_000_000  # agent steps to train for, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = critics_envs(c, crew, discrete=True)  # the environments of one actor
    # rows hold the critics' values, to compute first priorities from
    start = c.temperature or 1.0
    policy = critics_network(c, envs, actor="gaussian", critics=c.critics, alpha=start, values=True)
    loss = SACLoss(entropy_target(c, envs), c.temperature, masked=c.entropy is None)
    update, target = averaged(OptimizerSpec(c.optimizer), c.learners), TargetNetwork(tau=c.tau)
    hyper = Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    return wire_apex(c, crew, envs, spec, explore=None, reward="none")
