"""A2C: an advantage actor-critic that steps parallel environments in a batch, and updates synchronously (OpenAI
baselines' a2c). It is A3C (Mnih et al. 2016) without the asynchrony.

replica:  envs ─► policy ─► rollout ─► loss ─► update      all in one loop, with one set of weights: lag 0
          … × replicas, whose gradients are averaged (all-reduce), so together they are one batch of `lanes`
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.core.errors import Count, Decay, Fraction, NonNegative, Positive, Whole, Width, Workers
from polyplay.learning import A2C, Hyperparameters, Inline, LearnerSpec, learn
from polyplay.systems import System
from polyplay.systems._wiring import ValueOptions, actor_critic, replica_envs
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):  # inherits env, core, value, inputs, actions
    """Defaults: the Atari settings in the code of OpenAI baselines (a2c/a2c.py, run.py)."""

    atari: str = "baselines"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: Count = 16  # parallel environments (num-envs), over all replicas
    replicas: Workers = 0  # copies of the loop that share the lanes (0: one; one per core with images; one per GPU)
    groups: Count = 1  # groups of a replica's lanes; with 2, one steps while the policy acts for the other
    env_workers: Whole = 0  # threads or processes of a replica that step its environments (0: chosen automatically)
    unroll: Count = 5  # agent steps per lane between updates (nsteps)
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 1.0  # λ of generalized advantage estimation; 1 is the n-step return
    network: str = "auto"  # network: auto (nature or mlp), nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core_size: Width = 256  # width of the recurrent core
    learning_rate: Positive = 7e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_tf"  # optimizer: rmsprop_tf, rmsprop_a3c, adam, … (docs/reference/optimizers.md)
    optimizer_eps: Positive = 1e-5  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    decay: Decay = 0.99  # RMSProp's decay
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this; 0: off
    anneal: Literal["linear", "constant"] = "linear"  # schedule; linear: the learning rate falls to 0 over the run
    value_cost: NonNegative = 0.5  # weight of the value loss (R − V)²
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    reward_scale: Positive = 1.0  # factor of rewards, before --reward applies
    life_loss: Literal["auto", "ignore", "terminate"] = "auto"  # whether a lost life ends an episode (auto: as --atari)
    frames: Count = 320_000_000  # frames to train for (Atari: four per agent step), unless --steps is given (80M steps)


def build(c: Config, crew: Crew) -> System:
    # the environments of one replica, and the number of replicas
    envs, replicas = replica_envs(c, crew, life_loss=c.life_loss, workers=c.env_workers)
    policy = actor_critic(c, envs, init="orthogonal", core_size=c.core_size)  # each replica makes this network
    source = Inline(envs, c.unroll)  # a replica itself acts, with the weights that it trains
    loss = A2C(
        c.gamma, c.lam, value_cost=c.value_cost, normalize_advantage=c.normalize_advantage, reward=c.reward,
        reward_scale=c.reward_scale, recalls=True,  # returns end with V as acting computed it
    )  # fmt: skip
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, c.decay, clip=c.max_grad_norm), replicas)
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    crew.add(learn, n=replicas, name="replica", source=source, spec=spec)
    return System(envs, spec, resolved={"replicas": replicas})  # the number chosen for --replicas 0
