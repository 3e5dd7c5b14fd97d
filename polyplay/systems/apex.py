"""Ape-X DQN (Horgan et al. 2018): DQN with many actors, whose parallel environments (lanes) each have an ε. Separate
workers hold prioritized replay buffers. One or more learners draw batches from them.

act × actors:      envs ─► own copy of the weights, ε by lane ─► rollouts, with Q as acted ─► RolloutQueue
                             ▲ pulled once per rollout                                              ▼
                           Params               serve_replay × replay_workers: Replay, first priorities by that Q
                             ▲                                                      ▼ batches     ▲ new priorities
learn × learners:          update ◄── loss ◄── batches drawn ahead ◄───────────── SampleQueue ────┘
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import EpsilonLadder, Exploration, act
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay, RolloutQueue, SampleQueue, serve_replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers
from polyplay.envs import Envs
from polyplay.learning import Hyperparameters, LearnerSpec, QLoss, Samples, TargetNetwork, learn
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, divide_among, q_network, worker_envs
from polyplay.weights import OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import niceness


@dataclass(frozen=True)
class Config(AgentOptions):  # inherits env, inputs
    """Defaults: the settings that the paper states for Atari, but fewer actors. The paper has 360 actors."""

    atari: str = "apex"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: SomeWorkers = 2  # acting workers, each with its own copy of the weights
    lanes: Count = 4  # parallel environments (num-envs) of each actor
    replay_workers: SomeWorkers = 1  # replay workers, each for a share of the actors
    learners: SomeWorkers = 1  # copies of the learner, whose gradients are averaged
    unroll: Count = 100  # agent steps per lane in a rollout, and between two pulls of the weights
    gamma: Fraction = 0.99  # discount
    reward: Literal["clip", "sign", "none"] = "clip"  # how rewards are transformed; clip: limited to ±1
    n_step: Count = 3  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # network: auto, nature, a3c, mlp, or module:callable
    batch: Count = 512  # transitions in one update, over all learners
    ratio: NonNegative = 0.0  # transitions drawn per agent step; 0: neither side waits for the other
    capacity: Count = 2_000_000  # transitions in all replays together; up to an eighth more between trims
    evict_every: Count = 100  # updates between trims of the replay to --capacity, oldest transitions first
    learning_starts: Count = 50_000  # agent steps before the first update
    target_update: Count = 2_500  # updates between two updates of the target network
    prefetch: Count = 16  # batches that each replay holds ready for each learner
    alpha: Fraction = 0.6  # exponent α of priorities (TD errors)
    epsilon: Fraction = 0.4  # largest probability ε of a random action; the lanes' values go down to ε⁸
    learning_rate: Positive = 6.25e-5  # learning rate, constant
    optimizer: str = "rmsprop_dqn"
    # optimizer: rmsprop_dqn (centered, ε inside the root), adam, … (docs/reference/optimizers.md)
    optimizer_eps: Positive = 1.5e-7  # the optimizer's ε
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this; 0: off
    frames: Count = 22_800_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = worker_envs(c, crew)  # the environments of one actor
    policy = q_network(c, envs, dueling=True)
    explore = EpsilonLadder(c.actors * c.lanes, c.epsilon, alpha=7.0)  # lane i of N has ε^(1 + 7·i/(N − 1)), constant
    loss = QLoss("mean", clip=0.0, double=True)  # clip=0: the TD error is squared, and not clipped to ±1
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.95, clip=c.max_grad_norm)  # RMSProp's decay
    update, target = averaged(optimizer, c.learners), TargetNetwork(every=c.target_update)
    hyper = Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    return wire_apex(c, crew, envs, spec, explore, reward=c.reward)


def wire_apex(c: Any, crew: Crew, envs: Envs, spec: LearnerSpec, explore: Exploration | None, reward: str) -> System:
    """Add the actors, replay workers and learners to a run. Ape-X DPG and Ape-X SAC also call this function."""
    each = divide_among(c, "replay_workers", "actors", "capacity", "learning_starts")  # c with a replay worker's shares
    network = spec.policy()  # only for its shapes: each worker makes its own network
    queue = RolloutQueue.of(envs, network, c.unroll, c.actors, readers=c.replay_workers)
    # first priorities are TD errors by the acting network's values
    sampler = Proportional(c.alpha, beta=0.4, first="td")
    replay = Replay.of(
        envs, network, sampler, lanes=each.actors * c.lanes, capacity=each.capacity, start=each.learning_starts,
        batch=divide_among(c, "learners", "batch").batch, gamma=c.gamma, n_step=c.n_step, reward=reward,
        scale=spec.loss.units.reward_scale,  # factor of rewards, an option of Ape-X DPG
        ratio=c.ratio or None,  # None: acting and learning do not wait for each other
        soft=True,  # the replay exceeds its capacity until the oldest transitions are evicted
    )  # fmt: skip
    # replay workers store the rollouts that come through the queue, and draw batches
    samples = SampleQueue(replay, queue, c.learners, depth=c.prefetch)
    params = Params.of(network, readers=c.actors)  # the published weights
    # a lost actor or replay worker is replaced; without a learner the run ends
    crew.add(
        act, n=c.actors, if_lost="replace", envs=envs, policy=spec.policy, explore=explore, out=queue, params=params,
        nice=niceness(c.actors, c.learners),  # on a crowded CPU the operating system lets learners go first
    )  # fmt: skip
    crew.add(serve_replay, n=c.replay_workers, if_lost="replace", source=queue, out=samples, evict_every=c.evict_every)
    crew.add(learn, n=c.learners, source=Samples(samples), spec=spec, publish=params)
    return System(envs, spec, REPLAY_METRICS)
