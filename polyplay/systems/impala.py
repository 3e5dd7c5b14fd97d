"""IMPALA (Espeholt et al. 2018, figure 1): actors and learners are separate workers. Actors may act with older weights
than the learners' newest, and V-trace corrects for the difference.

act × actors:  envs ─► own copy of the weights ─► rollouts ─► RolloutQueue ─► learn × learners: V-trace ─► update
                          ▲                                                    │
                          └─────────────── Params, pulled once per rollout ◄───┘

A trajectory is one lane's part of a rollout.
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import act
from polyplay.buffers import RolloutQueue
from polyplay.core.errors import Count, Fraction, Lag, NonNegative, Positive, SomeWorkers, Workers
from polyplay.envs import Envs
from polyplay.learning import Hyperparameters, LearnerSpec, Rollouts, VTrace, learn
from polyplay.systems import System
from polyplay.systems._wiring import ValueOptions, actor_critic, actor_envs, enough_actors, rollouts_per_batch
from polyplay.weights import OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):  # inherits env, core, value, inputs, actions
    """Defaults: the paper's table G.1 (Atari), but few actors and environments, for a small machine."""

    atari: str = "impala"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: Workers = 0  # acting workers, each with its own copy of the weights (0: measured; two on two cores)
    lanes: Count = 16  # parallel environments (num-envs) of each actor; a slot holds one rollout of all of them
    learners: SomeWorkers = 1  # synchronous learners, whose gradients are averaged
    slots: Count = 2  # rollout buffers per actor: one is filled, others wait for a learner or are in an update
    lag: Lag = -1  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: Count = 20  # agent steps per lane in a rollout
    batch: Count = 32  # trajectories in one update, over all learners
    gamma: Fraction = 0.99  # discount
    rho: Positive = 1.0  # V-trace's ρ̄, which also bounds the policy gradient's weights
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    network: str = "impala"  # network: auto, nature, a3c, ga3c, impala (deep), mlp, separate, or module:callable
    auxiliary: str = "none"  # UNREAL's tasks on recent rows: pixel, reward, value, with or without =COST; or none
    init: Literal["auto", "orthogonal", "torch", "sonnet"] = "auto"  # initial weights; auto: as published
    learning_rate: Positive = 6e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_tf"  # optimizer: rmsprop_tf, rmsprop_a3c, adam, … (docs/reference/optimizers.md)
    optimizer_eps: Positive = 0.01  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this; 0: off
    anneal: Literal["linear", "constant"] = "linear"  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: NonNegative = 0.5  # weight of the value loss ½(v − V)²
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    reduction: Literal["sum", "mean"] = "sum"  # how the loss is reduced over a batch; sum is the paper's
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = actor_envs(c, crew)  # the environments of one actor
    # a recurrent core also takes the previous action and reward; auxiliary tasks add their losses
    policy = actor_critic(c, envs, init=c.init, previous=c.core != "none", auxiliary=c.auxiliary)
    loss = VTrace(
        c.gamma, lam=1.0, rho=c.rho, c=min(1.0, c.rho),  # rho, c: ρ̄ and c̄ ≤ ρ̄
        rho_pg=c.rho,  # bound of the policy gradient's importance weights
        value_cost=c.value_cost, normalize_advantage=c.normalize_advantage, reduction=c.reduction, reward=c.reward,
    )  # fmt: skip
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.99, clip=c.max_grad_norm)  # RMSProp's decay
    # each learner's loss is over its share of the batch; the learners' gradients are averaged
    update = averaged(optimizer, c.learners)
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    return wire_impala(c, crew, envs, spec)


def wire_impala(c: Any, crew: Crew, envs: Envs, spec: LearnerSpec) -> System:
    """Add the actors, the rollout queue and the learners to a run. APPO also calls this function."""
    actors = c.actors or enough_actors(c, crew, envs, spec)  # 0: as many as keep the learners busy
    network = spec.policy()  # only for its shapes: each worker makes its own network
    queue = RolloutQueue.of(envs, network, c.unroll, actors, slots=c.slots, readers=c.learners)
    params = Params.of(network, readers=actors)  # the published weights
    # a lost actor is replaced; without a learner the run ends
    crew.add(
        act, n=actors, if_lost="replace", envs=envs, policy=spec.policy, out=queue, params=params, lag=c.lag,
        # an actor limited only by slots computes in one thread; an actor in step uses its share of the cores (0)
        threads=1 if c.lag < 0 else 0,
    )  # fmt: skip
    rollouts = rollouts_per_batch(c, actors)  # per learner and batch: batch / learners / lanes
    # with a limited lag, a batch has rollouts of each actor in turn
    source = Rollouts(queue, rollouts, in_turn=c.lag >= 0)
    crew.add(learn, n=c.learners, source=source, spec=spec, publish=params)
    return System(envs, spec, resolved={"actors": actors})  # the number chosen for --actors 0
