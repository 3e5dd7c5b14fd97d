"""Gorila (Nair et al. 2015): many DQNs that learn through a parameter server; bundled, or free with --actors.

bundle × learners:  envs ─► ε-greedy policy ─► rows ─► Replay ─► draws: loss, unless an outlier ─► gradient, in slices
                       ▲ pulled before each rollout               ▲ and gradient; target network now and then    ▼
                       └──────────────────────────────────────────┴── serve_parameters × shards: its part, unless stale
free:  act × actors: this half ─► RolloutQueue ─► serve_replay × replay_workers ─► SampleQueue ─► learn: that half
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyplay.acting import LinearEpsilon, RunSchedule, act
from polyplay.buffers import RolloutQueue, SampleQueue, Uniform, replay_worker, serve_replay
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, UserError, Whole, Workers
from polyplay.learning import Hyperparameters, Inline, LearnerSpec, QLoss, Replayed, Samples, learn
from polyplay.learning.parts import OutlierGate, TargetNetwork
from polyplay.systems import System, described
from polyplay.systems._wiring import ValueOptions, nice_of, per_replica, q_network_of, replay_of_rows, small_envs
from polyplay.weights import OptimizerSpec, ParameterServer, param_sizes, serve_parameters
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):
    """Defaults: the paper's in bundled mode, as far as they are known (docs/systems/gorila.md)."""

    atari: str = "dqn2015"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: Workers = 0  # free mode: workers that only act; 0: bundled mode, each learner has an actor and a replay
    replay_workers: SomeWorkers = 1  # free mode: replay workers; 1 is a global replay, one per actor are local replays
    learners: Workers = 0  # bundles, or free: workers that only learn (0: as many as cores or GPUs; the paper had 100)
    shards: SomeWorkers = 2  # parts of the parameter server, a process each; the paper had 31 machines
    lanes: Count = 1  # parallel environments (num-envs) of each actor
    unroll: Count = 1  # agent steps per lane between two pulls of the weights
    n_step: Count = 1  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # auto, nature, a3c, mlp, or module:callable
    batch: Count = 32  # transitions of one gradient, which is their mean; as in DQN
    ratio: NonNegative = 32.0  # transitions drawn per agent step; 32: one gradient; DQN has 8 (0: free mode, no limit)
    capacity: Count = 1_000_000  # transitions in each replay
    learning_starts: Count = 50_000  # agent steps in each replay before batches are drawn; as in DQN
    target_update: Count = 60_000  # updates of the server between two updates of the target network
    epsilon: Fraction = 0.1  # probability of a random action at the end of the schedule
    epsilon_decay_steps: Whole = 1_000_000  # agent steps of all actors over which ε falls from 1 to --epsilon
    learning_rate: Positive = 0.01  # learning rate, constant; not published
    optimizer: str = "adagrad"  # adagrad, rmsprop_dqn, adam, or another of docs/reference/optimizers.md
    optimizer_eps: Positive = 0.01  # the optimizer's ε; not published
    stale: Whole = 0  # discard gradients older than this many updates of a shard (0: 10 per learner); not published
    outlier: NonNegative = 4.0  # discard losses this many deviations above the mean, 0 is off; not published
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


PRESETS, ROW = described(Config)


def build(c: Config, crew: Crew) -> System:
    learners = c.learners or crew.placement.parts
    if c.replay_workers != Config.replay_workers and not c.actors:
        given = f"--replay-workers {c.replay_workers} says nothing without --actors"
        raise UserError(f"{given}: give both, or leave it out")
    actors, places, ratio = (c.actors, c.replay_workers, c.ratio or None) if c.actors else (learners, learners, c.ratio)
    each = per_replica(replace(c, actors=actors, replay_workers=places), "replay_workers", "actors")
    envs = small_envs(c, crew, c.lanes)
    policy = q_network_of(c, envs)
    net = policy()
    replay = replay_of_rows(c, envs, net, Uniform(), each.actors * c.lanes)
    replay = replace(replay, reward=c.reward, ratio=ratio)
    stale = c.stale or 10 * learners
    optim = OptimizerSpec(c.optimizer, c.optimizer_eps, 0.95)
    server = ParameterServer(optim, *param_sizes(net), learners, c.shards, stale)
    loss, hyper, steps = QLoss("mean"), Hyperparameters(learning_rate=c.learning_rate), crew.total(envs, c.frames)
    gates = (OutlierGate(c.outlier),) if c.outlier else ()
    parts = (*gates, TargetNetwork(c.target_update))
    spec = LearnerSpec(policy, loss, server, hyper, steps, parts)
    explore = LinearEpsilon(1.0, c.epsilon, c.epsilon_decay_steps, c.learning_starts * places, c.lanes * actors)
    if c.actors:
        rollouts = RolloutQueue.of(envs, net, c.unroll, actors, readers=places)
        samples = SampleQueue(replay, rollouts, learners)
        acts: Any = {"envs": envs, "policy": policy, "out": rollouts, "params": server}
        acts["explore"] = RunSchedule(**vars(explore), weights=server)
        crew.add(act, n=actors, on_loss="replace", nice=nice_of(actors, learners), **acts)
        crew.add(serve_replay, n=places, on_loss="replace", source=rollouts, out=samples)
        crew.add(learn, n=learners, learner=True, on_loss="replace", source=Samples(samples), spec=spec)
    else:
        source = Replayed(Inline(envs, c.unroll, explore), replay)
        crew.add(learn, n=learners, name="bundle", learner=True, on_loss="replace", source=source, spec=spec)
    crew.add(serve_parameters, n=c.shards, server=server)
    return System(envs, policy, (*loss.metrics, *replay_worker.NAMES), {"learners": learners, "stale": stale}, 0.05)
