"""IMPALA (Espeholt et al. 2018, figure 1): decoupled actors and learners, corrected by V-trace.

act × actors:  envs ─► own copy of the weights ─► rollouts ─► RolloutQueue ─► learn × learners: V-trace ─► update
                          ▲                                                    │
                          └─────────────── Params, pulled once per rollout ◄───┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from polyplay.acting import act
from polyplay.buffers import RolloutQueue, slots_per_batch
from polyplay.core.errors import Count, Lag, NonNegative, Positive, SomeWorkers, Workers
from polyplay.envs import Envs
from polyplay.learning import Epochs, Hyperparameters, LearnerSpec, Passes, Rollouts, VTrace, learn
from polyplay.learning.unreal import UnrealWindows
from polyplay.systems import System, described
from polyplay.systems._wiring import PolicyOptions, actor_critic_of, atari_options, auxiliary_of, with_auxiliary
from polyplay.weights import OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import choose_actors, fewest_actors


@dataclass(frozen=True)
class Config(PolicyOptions):
    """Defaults: the paper's table G.1 (Atari). Unknown ones (actors, lanes, slots) are for a small machine."""

    atari: str = "impala"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: Workers = 0  # acting workers, each with its own copy of the weights (0: measured; two on two cores)
    lanes: Count = 16  # parallel environments (num-envs) of each actor; a slot holds one rollout of all of them
    learners: SomeWorkers = 1  # synchronous learners, whose gradients are averaged
    slots: Count = 2  # rollout buffers per actor: it fills one, the others wait for a learner or are in an update
    lag: Lag = -1  # rounds that acting may be ahead of learning: 0 synchronous, 1 overlapping, -1 unlimited
    unroll: Count = 20  # agent steps per lane in a rollout
    batch: Count = 32  # trajectories in one update, over all learners
    rho: Positive = 1.0  # V-trace's ρ̄ and bound of the policy gradient's importance weights
    network: str = "impala"  # auto, nature, a3c, ga3c, impala (the deep net), mlp, separate, or module:callable
    auxiliary: str = "none"  # UNREAL's tasks: pixel, reward, value, each may have =COST, a comma between; or none
    init: Literal["auto", "orthogonal", "torch", "sonnet"] = "auto"  # initial weights; auto: as published
    learning_rate: Positive = 6e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_tf"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam (docs/reference/optimizers.md)
    optimizer_eps: Positive = 0.01  # the optimizer's ε
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this, 0 is off
    anneal: Literal["linear", "constant"] = "linear"  # how the learning rate falls over the run
    value_cost: NonNegative = 0.5  # weight of the value loss
    reduction: Literal["sum", "mean"] = "sum"  # mean or sum over a batch; sum is the paper's
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


PRESETS, ROW = described(Config)


def build(c: Config, crew: Crew) -> System:
    n = c.actors or fewest_actors(c.learners)
    slots = slots_per_batch(c.batch, c.lanes, n, c.slots, c.learners, c.lag)
    envs = Envs(c.env, c.lanes, workers=crew.placement.env_threads(n), options=atari_options(c), **crew.env_defaults)
    tasks = auxiliary_of(c)
    policy = actor_critic_of(c, envs, c.init, previous=c.core != "none", auxiliary=tuple(tasks))
    loss = VTrace(c.gamma, 1.0, c.rho, min(1.0, c.rho), c.rho, reduction=c.reduction, value_cost=c.value_cost)
    loss = with_auxiliary(c, replace(loss, reward=c.reward, normalize_advantage=c.normalize_advantage), tasks)
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), c.learners, policy())
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    parts = (UnrealWindows(),) if tasks else ()
    spec = LearnerSpec(policy, loss, update, hyper, crew.total(envs, c.frames), parts)
    return wire_actors(c, crew, envs, spec, slots)


def wire_actors(c: Any, crew: Crew, envs: Envs, spec: LearnerSpec, slots: int, passes: Epochs | None = None) -> System:
    """The figure above, whatever is learnt from batches of `slots`, in one update or several passes."""
    net, n = spec.policy(), c.actors or fewest_actors(c.learners)
    if not c.actors and c.lag < 0:
        n = choose_actors(crew, envs, spec, c.unroll, c.batch, c.learners, passes)
    rollouts = RolloutQueue.of(envs, net, c.unroll, n, c.slots, c.learners)
    params, lag = Params.of(net, readers=n), c.lag if c.lag >= 0 else None
    acts: Any = {"envs": envs, "policy": spec.policy, "out": rollouts, "params": params, "lag": lag}
    crew.add(act, n=n, on_loss="replace", threads=int(lag is None), **acts)
    batches = Rollouts(rollouts, slots, in_turn=lag is not None)
    source = batches if passes is None else Passes(batches, passes)
    crew.add(learn, n=c.learners, learner=True, source=source, spec=spec, publish=params)
    return System(envs, spec.policy, spec.loss.metrics, {} if c.actors else {"actors": n})
