"""Ape-X DPG (Horgan et al. 2018, §4.2): Ape-X for actions that are real numbers. Many actors add noise to the actions
of a deterministic policy. Learners train this policy (the actor network) and a critic.

act × actors:      envs ─► copies of μ and Q, noise on actions ─► rollouts with Q as acted ─► RolloutQueue
                             ▲ pulled once per rollout                                           ▼
                           Params            serve_replay × replay_workers: Replay, first priorities by that Q
                             ▲                                                      ▼ batches  ▲ new priorities
learn × learners:          update ◄── loss of Q, and of μ along dQ/da ◄────────── SampleQueue ─┘

Everything except network, noise and loss is as in apex.py.
"""

from dataclasses import dataclass

from polyplay.acting import GaussianNoise
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, Width
from polyplay.learning import DPGLoss, Hyperparameters, LearnerSpec, TargetNetwork
from polyplay.nets import NetworkFactory
from polyplay.systems import System
from polyplay.systems._wiring import dpg_envs
from polyplay.systems.apex import wire_apex
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: the settings that the paper states, but fewer actors. The paper has 64 actors."""

    env: str = "Pendulum-v1"  # environment: a Gymnasium id, module:callable, or toy:NAME; its actions are a bounded Box
    actors: SomeWorkers = 2  # acting workers, each with its own copy of the weights
    lanes: Count = 4  # parallel environments (num-envs) of each actor
    replay_workers: SomeWorkers = 1  # replay workers, each for a share of the actors
    learners: SomeWorkers = 1  # copies of the learner, whose gradients are averaged
    unroll: Count = 100  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: Fraction = 0.99  # discount
    n_step: Count = 5  # n of n-step returns: rewards summed before bootstrapping
    reward_scale: Positive = 1.0  # factor of rewards; the critic learns fastest if values are a few units
    network: str = "auto"  # network of the first layers of both actor and critic: auto, mlp, or module:callable
    width: Width = 400  # width of the critic's first layer; second: ¾ of that; actor's layers: ¾ and ½
    batch: Count = 256  # transitions in one update, over all learners
    ratio: NonNegative = 0.0  # transitions drawn per agent step; 0: neither side waits for the other
    capacity: Count = 1_000_000  # transitions in all replays together; up to an eighth more between trims
    evict_every: Count = 100  # updates between trims of the replay to --capacity, oldest first; paper: by priority
    learning_starts: Count = 50_000  # agent steps before the first update
    target_update: Count = 100  # updates between two updates of the target network
    prefetch: Count = 16  # batches that each replay holds ready for each learner
    alpha: Fraction = 0.6  # exponent α of priorities (TD errors)
    noise: NonNegative = 0.3  # standard deviation of noise on each element of an action, in half ranges
    dqda_clip: NonNegative = 1.0  # clip each element of dQ/da to this, per half range; 0: off
    saturation_cost: NonNegative = 0.0  # weight of a penalty for actions at the ends of their range (DPGLoss); 0: off
    learning_rate: Positive = 1e-4  # learning rate of actor and critic, constant
    optimizer: str = "adam"  # optimizer: adam, or another of docs/reference/optimizers.md
    frames: Count = 100_000_000  # agent steps to train for, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = dpg_envs(c, crew)  # one actor's environments; refuses actions that are not bounded real numbers
    # two networks without common layers, with two hidden layers each, as one module
    critic, actor = (c.width, 3 * c.width // 4), (3 * c.width // 4, c.width // 2)
    policy = NetworkFactory(c.network, envs.spec, {"critic": critic, "actor": actor}, "deterministic")
    loss = DPGLoss(clip=c.dqda_clip, saturation_cost=c.saturation_cost, reward_scale=c.reward_scale)
    update, target = averaged(OptimizerSpec(c.optimizer), c.learners), TargetNetwork(every=c.target_update)
    hyper = Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    # actors, replays and learners as in apex.py; all actors have the same σ of noise
    return wire_apex(c, crew, envs, spec, explore=GaussianNoise(c.noise), reward="none")
