"""Your own system, REINFORCE with a baseline (Williams 1992): polyplay train reinforce:system --env CartPole-v1

replica:  envs ─► policy ─► rows of `unroll` steps ─► loss ─► update      one loop, one set of weights
"""

from dataclasses import dataclass
from typing import Any

from polyplay.extend import Batch, Count, Crew, Envs, Fraction, Hyperparameters, Inline, LearnerSpec, Local, Loss
from polyplay.extend import LossOutput, NetworkFactory, NonNegative, OptimizerSpec, Page, Positive, System, learn
from polyplay.extend import masked_mean, n_step, transitions


@dataclass(frozen=True)
class Config:
    """The system's options; `polyplay train reinforce:system --help` shows the comments."""

    env: str = "CartPole-v1"  # environment: a Gymnasium id, module:callable, or toy:NAME
    lanes: Count = 8  # parallel environments
    unroll: Count = 16  # agent steps per lane between updates
    network: str = "mlp"  # a network by name, or module:callable
    gamma: Fraction = 0.99  # discount
    learning_rate: Positive = 5e-3  # learning rate, constant
    optimizer: str = "adam"  # an optimizer by name, or module:callable
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    frames: Count = 500_000  # frames to train for, unless --steps is given


@dataclass(frozen=True)
class Reinforce(Loss):
    """−(G − V)·log π(a) + ½(G − V)² − entropy_cost·H. A return G ends with V of the rollout's last row."""

    gamma: Fraction
    metrics = ("loss", "policy_loss", "value_loss", "entropy")

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: Any) -> LossOutput:
        out, steps = policy.unroll(batch, state), transitions(batch, self.gamma)  # rows [T+1, B]; steps [T, B]
        error = n_step(steps, out["value"].detach()) - out["value"][:-1]
        each = -error.detach() * out["logp"][:-1], 0.5 * error.square(), out["entropy"][:-1]
        policy_loss, value_loss, entropy = (masked_mean(x, steps.valid) for x in each)  # within an episode
        loss = policy_loss + value_loss - hyper["entropy_cost"] * entropy
        found = zip(self.metrics, (loss, policy_loss, value_loss, entropy), strict=True)
        return LossOutput(loss, {name: x.detach() for name, x in found})


def build(c: Config, crew: Crew) -> System:
    envs = Envs(c.env, c.lanes, **crew.env_defaults)
    policy, loss, update = NetworkFactory(c.network, envs.spec), Reinforce(c.gamma), Local(OptimizerSpec(c.optimizer))
    hyper = Hyperparameters(learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    crew.add(learn, name="replica", source=Inline(envs, c.unroll), spec=spec)
    return System(envs, spec)


system = Page(Config, build)
