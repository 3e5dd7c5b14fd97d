"""PPO: proximal policy optimization (Schulman et al. 2017). Its clipped loss limits how far the policy changes, so
several passes over each rollout are possible.

replica:  envs ─► policy ─► rollout ─► epochs × minibatches: loss ─► update      one loop, one set of weights
          … × replicas, whose gradients are averaged (all-reduce), so together they are one batch of `lanes`
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Width, Workers
from polyplay.learning import PPO, Epochs, Hyperparameters, Inline, LearnerSpec, learn
from polyplay.systems import System
from polyplay.systems._wiring import ValueOptions, actor_critic, replica_envs
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(ValueOptions):  # inherits env, core, value, inputs, actions
    """Defaults: the paper's settings for Atari, without later features. Adam's ε is from OpenAI baselines."""

    atari: str = "baselines"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    lanes: Count = 8  # parallel environments (num-envs), over all replicas
    replicas: Workers = 0  # copies of the loop that share the lanes (0: one; one per core with images; one per GPU)
    groups: Count = 1  # groups of a replica's lanes; with 2, one steps while the policy acts for the other
    unroll: Count = 128  # agent steps per lane in a rollout
    epochs: Count = 3  # passes over a rollout
    minibatches: Count = 4  # minibatches per pass; with a recurrent core each has whole lanes
    clip_range: Positive = 0.1  # ε: the ratio π/μ is clipped to 1 ± ε
    value_clip: bool = False  # also clip the value's change to ± --clip-range, as baselines' ppo2 does
    target_kl: NonNegative = 0.0  # end the passes over a rollout at this approximate KL divergence; 0: off
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 0.95  # λ of generalized advantage estimation
    network: str = "auto"
    # network: auto (nature or mlp), rlpyt, a3c, impala, separate, five (unit sets), …, or module:callable
    core_size: Width = 256  # width of the recurrent core
    deviation: Positive = 1.0  # standard deviation of real actions at the start; unit: see --actions
    learning_rate: Positive = 2.5e-4  # learning rate at the start; see --anneal
    optimizer: str = "adam"  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: Positive = 1e-5  # the optimizer's ε
    max_grad_norm: NonNegative = 0.0  # clip the gradient's global norm to this; 0: off
    anneal: Literal["linear", "rate", "constant"] = "linear"
    # schedule; linear: the learning rate and the clip range fall to 0 over the run; rate: only the learning rate falls
    value_cost: NonNegative = 1.0  # weight of the value loss (R − V)²
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a minibatch
    frames: Count = 40_000_000  # frames to train for (Atari: four per agent step), unless --steps is given (10M steps)


def build(c: Config, crew: Crew) -> System:
    # the environments of one replica, and the number of replicas; with a core, lanes divide among the minibatches
    envs, replicas = replica_envs(c, crew, minibatches=c.minibatches)
    init = "torch" if c.network == "rlpyt" else "orthogonal"  # initial weights; rlpyt has torch's
    # each replica makes this network
    policy = actor_critic(c, envs, init=init, core_size=c.core_size, deviation=c.deviation)
    source = Inline(envs, c.unroll)  # a replica itself acts, with the weights that it trains
    passes = Epochs(c.epochs, c.minibatches, c.target_kl)  # several passes over each rollout
    # advantages are computed once, before the passes; anneal_clip: ε falls with the learning rate
    loss = PPO(
        c.gamma, c.lam, c.clip_range, anneal_clip=c.anneal == "linear", value_clip=c.value_clip,
        value_cost=c.value_cost, normalize_advantage=c.normalize_advantage, reward=c.reward,
    )  # fmt: skip
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), replicas)
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), passes=passes)
    crew.add(learn, n=replicas, name="replica", source=source, spec=spec)
    return System(envs, spec, resolved={"replicas": replicas})  # the number chosen for --replicas 0
