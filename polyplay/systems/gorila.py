"""Gorila (Nair et al. 2015): many DQNs that learn through a parameter server. By default, each learner acts and has its
own replay buffer (bundled). With --actors, actors, replays and learners are separate workers (free).

bundle × learners:  envs ─► ε-greedy policy ─► transitions ─► Replay ─► draws: loss, unless an outlier ─► gradient
                              ▲ weights, before each rollout and gradient; a target network now and then       │ slices
                    serve_parameters × shards: each updates its part of the weights, unless the slice is stale ◄┘
free:  act × actors: envs ─► policy ─► RolloutQueue ─► serve_replay × replay_workers: Replay ─► SampleQueue
       learn × learners: SampleQueue ─► loss ─► gradient in slices ─► shards, where actors pull weights, too
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import LinearEpsilon, RunSchedule, act
from polyplay.buffers import REPLAY_METRICS, Replay, RolloutQueue, SampleQueue, serve_replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, UserError, Whole, Workers
from polyplay.learning import Hyperparameters, Inline, LearnerSpec, QLoss, Replayed, Samples, learn
from polyplay.learning.parts import OutlierGate, TargetNetwork
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, divide_among, q_network, worker_envs
from polyplay.weights import OptimizerSpec, ParameterServer, serve_parameters
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import niceness


@dataclass(frozen=True)
class Config(AgentOptions):  # inherits env, inputs
    """Defaults: the settings that the paper states, in bundled mode (docs/systems/gorila.md)."""

    atari: str = "dqn2015"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: Workers = 0  # acting workers in free mode; 0: bundled mode, where a learner also acts and has a replay
    replay_workers: SomeWorkers = 1  # replay workers in free mode; 1: a global replay; one per actor: local replays
    learners: Workers = 0  # bundles, or learners in free mode (0: one per core or GPU; the paper had 100)
    shards: SomeWorkers = 2  # parts of the parameter server, a process each; the paper had 31 machines
    lanes: Count = 1  # parallel environments (num-envs) of each actor
    unroll: Count = 1  # agent steps per lane between pulls of the weights
    gamma: Fraction = 0.99  # discount
    reward: Literal["clip", "sign", "none"] = "clip"  # how rewards are transformed; clip: limited to ±1
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # network: auto, nature, a3c, mlp, or module:callable
    batch: Count = 32  # transitions averaged in one gradient; as in DQN
    ratio: NonNegative = 32.0  # transitions drawn per agent step (32: one gradient; DQN: 8; 0 in free mode: no limit)
    capacity: Count = 1_000_000  # transitions in each replay
    learning_starts: Count = 50_000  # agent steps in each replay before batches are drawn; as in DQN
    target_update: Count = 60_000  # updates of the server between two updates of the target network
    epsilon: Fraction = 0.1  # probability of a random action at the end of the schedule
    epsilon_decay_steps: Whole = 1_000_000  # agent steps of all actors over which ε falls from 1 to --epsilon
    learning_rate: Positive = 0.01  # learning rate, constant; not published
    optimizer: str = "adagrad"  # optimizer: adagrad, rmsprop_dqn, adam, or another of docs/reference/optimizers.md
    optimizer_eps: Positive = 0.01  # the optimizer's ε; not published
    stale: Whole = 0  # discard gradients older than this many updates of a shard (0: 10 per learner); not published
    outlier: NonNegative = 4.0  # discard losses this many deviations above the mean; 0: off; not published
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    learners, free = c.learners or crew.placement.parts, bool(c.actors)  # 0: one per core or GPU
    if c.replay_workers != Config.replay_workers and not free:
        given = f"--replay-workers {c.replay_workers} has no effect without --actors"
        raise UserError(f"{given}: give both, or leave it out")
    actors, replays = (c.actors, c.replay_workers) if free else (learners, learners)  # a bundle has one of each
    each = divide_among(c, "replay_workers", "actors").actors if free else 1  # actors per replay
    envs = worker_envs(c, crew, inline_single=True)  # an actor itself steps a single Atari game
    policy = q_network(c, envs)
    network = policy()  # only for its shapes: each worker makes its own network
    replay = Replay.of(
        envs, network, sampler=None, lanes=each * c.lanes, capacity=c.capacity, batch=c.batch, start=c.learning_starts,
        gamma=c.gamma, n_step=c.n_step, reward=c.reward,
        ratio=None if free and not c.ratio else c.ratio,  # None: acting and learning do not wait for each other
    )  # fmt: skip
    stale = c.stale or 10 * learners
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.95)  # RMSProp's decay
    # the server has the weights and the optimizer, and applies each gradient that it gets
    server = ParameterServer.of(optimizer, network, workers=learners, shards=c.shards, stale=stale)
    hyper, target = Hyperparameters(learning_rate=c.learning_rate), TargetNetwork(every=c.target_update)
    parts = (OutlierGate(c.outlier), target) if c.outlier else (target,)
    spec = LearnerSpec(policy, QLoss("mean", clip=1.0), server, hyper, crew.agent_steps(envs, c.frames), parts=parts)
    # ε is 1 for the first agent steps (`after`) of all actors together, and then falls to --epsilon
    schedule: Any = {"after": c.learning_starts * replays, "over": c.epsilon_decay_steps, "lanes": c.lanes * actors}
    if free:
        queue = RolloutQueue.of(envs, network, c.unroll, actors, readers=replays)
        samples = SampleQueue(replay, queue, learners)  # replay workers store rollouts, and draw batches
        # actors do not act in step, so ε falls by the agent steps that the server counts
        explore = RunSchedule(1.0, c.epsilon, **schedule, weights=server)
        crew.add(
            act, n=actors, if_lost="replace", envs=envs, policy=policy, explore=explore, out=queue, params=server,
            nice=niceness(actors, learners),  # on a crowded CPU the operating system lets learners go first
        )  # fmt: skip
        crew.add(serve_replay, n=replays, if_lost="replace", source=queue, out=samples)
        crew.add(learn, n=learners, if_lost="replace", source=Samples(samples), spec=spec)
    else:
        # a bundle itself acts, with the weights that it trains
        source = Replayed(Inline(envs, c.unroll, LinearEpsilon(1.0, c.epsilon, **schedule)), replay)
        crew.add(learn, n=learners, name="bundle", if_lost="replace", source=source, spec=spec)
    crew.add(serve_parameters, n=c.shards, server=server)
    # resolved: the numbers chosen for options of 0; epsilon: evaluations play ε-greedily, too
    return System(envs, spec, REPLAY_METRICS, resolved={"learners": learners, "stale": stale}, epsilon=0.05)
