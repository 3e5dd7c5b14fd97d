"""IMPALA (Espeholt et al. 2018, figure 1): decoupled actors and learners, corrected by V-trace.

act × actors:  envs ─► own copy of the weights ─► rollouts ─► RolloutQueue ─► learn × learners: V-trace ─► update
                          ▲                                                    │
                          └─────────────── Params, pulled once per rollout ◄───┘
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import act
from polyplay.buffers import RolloutQueue, slots_per_batch
from polyplay.core.errors import Count, Lag, NonNegative, Positive, SomeWorkers, Workers
from polyplay.envs import Envs
from polyplay.learning import Hyperparameters, LearnerSpec, Rollouts, VTrace, learn
from polyplay.learning.unreal import UnrealWindows
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic, add_terms, task_costs, worker_envs
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


def build(c: Config, crew: Crew) -> System:
    actors = c.actors or fewest_actors(c.learners)  # the fewest: two, or one for each of more learners
    # rollouts, of `lanes` trajectories each, in a learner's share of a batch; refuses more than slots and lag let come
    rollouts = slots_per_batch(c.batch, c.lanes, actors=actors, slots=c.slots, learners=c.learners, lag=c.lag)
    # workers: threads or processes that step an actor's environments: one, but more where a GPU acts
    envs = worker_envs(c, crew, workers=crew.placement.env_threads(actors))
    tasks = task_costs(c)  # of --auxiliary, by name
    # previous: a core also takes the previous action and reward
    policy = actor_critic(c, envs, init=c.init, previous=c.core != "none", auxiliary=tuple(tasks))
    loss = VTrace(
        c.gamma, lam=1.0, rho=c.rho, c=min(1.0, c.rho),  # ρ̄ and c̄ ≤ ρ̄
        rho_pg=c.rho,  # bound of the policy gradient's own weights
        value_cost=c.value_cost, normalize_advantage=c.normalize_advantage, reduction=c.reduction, reward=c.reward,
    )  # fmt: skip
    loss = add_terms(loss, c.core, tasks)  # of tasks; with --core temporal: its two KL divergences
    # averaged: over learners, each of which sums over its own share of the batch
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), c.learners, policy)
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    parts = (UnrealWindows(),) if tasks else ()  # a memory of recent rows, which the tasks draw from
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=parts)
    return wire_impala(c, crew, envs, spec, actors, rollouts)


def wire_impala(c: Any, crew: Crew, envs: Envs, spec: LearnerSpec, actors: int, rollouts: int) -> System:
    """Add the figure's actors, queue and learners. An update takes so many rollouts."""
    policy, free = spec.policy, c.lag < 0
    if not c.actors and free:  # as many more, measured, as keep the learners busy
        actors = choose_actors(crew, envs, spec, c.unroll, c.batch, c.learners)
    network = policy()  # for its shapes: each worker makes its own
    queue = RolloutQueue.of(envs, network, c.unroll, actors, slots=c.slots, readers=c.learners)
    params = Params.of(network, readers=actors)  # the published weights
    # a lost actor is replaced; without a learner the run ends. lag: None: an actor waits for no update, only for an
    # empty slot; threads: that compute in each actor, 0: its share of the cores
    crew.add(
        act, n=actors, if_lost="replace", envs=envs, policy=policy, out=queue, params=params,
        lag=None if free else c.lag, threads=1 if free else 0,
    )  # fmt: skip
    source = Rollouts(queue, rollouts, in_turn=not free)  # with a lag one of each actor in turn
    crew.add(learn, n=c.learners, source=source, spec=spec, publish=params)
    # resolved: what --actors 0 became
    return System(envs, policy, spec.loss.metrics, resolved={} if c.actors else {"actors": actors})
