"""Accel RL with policy gradients (Stooke & Abbeel 2018). While the policy acts for one group of parallel environments
(lanes), the other group steps. Several replicas (copies of this loop) learn together.

replica:  envs, group 0 ─┐
                         ├─► policy ─► rollout ─► loss (A2C or PPO) ─► update   one group is served, the other steps
          envs, group 1 ─┘
          … × replicas: averaged gradients (allreduce), or a central vector in chunks (chunked)
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Workers
from polyplay.learning import A2C, PPO, Epochs, Hyperparameters, Inline, LearnerSpec, learn
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic, replica_envs
from polyplay.weights import Chunked, OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(PolicyOptions):  # inherits env, core, inputs, actions
    """Defaults: the paper's table 2 (A2C, one replica, 16 environments). The rest is from the authors' accel_rl."""

    atari: str = "accel"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    algo: Literal["a2c", "ppo"] = "a2c"  # loss; a2c: one pass over a rollout, ppo: several
    sync: Literal["allreduce", "chunked"] = "allreduce"  # how replicas learn: in step, or asynchronously (chunked)
    lanes: Count = 16  # parallel environments (num-envs), over all replicas
    replicas: Workers = 0  # copies of the loop that share the lanes (0: one; one per core with images; one per GPU)
    groups: Count = 2  # groups of a replica's lanes, stepped in turn
    unroll: Count = 5  # agent steps per lane in a rollout (horizon)
    epochs: Count = 4  # passes over a rollout, with ppo
    minibatches: Count = 4  # minibatches per pass, with ppo; with a recurrent core each has whole lanes
    clip_range: Positive = 0.2  # ε of ppo's clipped ratio π/μ; falls with the learning rate
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 1.0  # λ of generalized advantage estimation; 1 is the n-step return
    network: str = "accel"  # network: accel (16, 32 filters), accel_large (DQN's), auto, nature, …, or module:callable
    learning_rate: Positive = 7e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_a3c"  # optimizer: rmsprop_a3c (Lasagne's), rmsprop_tf, rmsprop_torch or adam
    optimizer_eps: Positive = 1e-6  # the optimizer's ε
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this; 0: off
    anneal: Literal["linear", "constant"] = "constant"  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: NonNegative = 0.25  # weight of the value loss (R − V)²
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal["clip", "sign", "none"] = "sign"  # how rewards are transformed; sign: −1, 0 or 1
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given (50M steps)


def build(c: Config, crew: Crew) -> System:
    ppo, chunked = c.algo == "ppo", c.sync == "chunked"
    # one replica's environments (one group of lanes steps while the policy acts for the other), and the number of
    # replicas; with a core, lanes divide among PPO's minibatches
    envs, replicas = replica_envs(c, crew, minibatches=c.minibatches if ppo else 0, several=chunked)
    policy = actor_critic(c, envs, init="orthogonal")  # each replica makes this network
    source = Inline(envs, c.unroll)  # a replica itself acts, with the weights that it trains
    common: Any = {"value_cost": c.value_cost, "reward": c.reward, "normalize_advantage": c.normalize_advantage}
    loss: Any = A2C(c.gamma, c.lam, recalls=True, **common)  # returns end with V as acting computed it
    passes = Epochs(c.epochs, c.minibatches) if ppo else None  # passes over each rollout
    if ppo:
        loss = PPO(c.gamma, c.lam, c.clip_range, anneal_clip=c.anneal == "linear", **common)
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.9, clip=c.max_grad_norm)  # Lasagne's decay
    # chunked: replicas update a central vector, one after another of its three parts, without waiting for each other
    update = Chunked.of(optimizer, policy, workers=replicas) if chunked else averaged(optimizer, replicas)
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), passes=passes)
    # replicas in step need each other, so the run fails if one fails
    crew.add(learn, n=replicas, name="replica", if_lost="replace" if chunked else "fail", source=source, spec=spec)
    return System(envs, spec, resolved={"replicas": replicas})  # the number chosen for --replicas 0
