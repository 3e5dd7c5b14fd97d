"""A system of one's own, REINFORCE with a baseline (Williams 1992): `polyplay.train(reinforce.system, steps=200_000)`.

replica:  envs ─► policy ─► rows of `unroll` steps ─► loss ─► update      one loop, one set of weights
"""

from dataclasses import dataclass
from typing import Any

from polyplay.core.errors import Count, Fraction, NonNegative, Positive
from polyplay.core.tree import Batch
from polyplay.envs import Envs
from polyplay.learning import Hyperparameters, Inline, LearnerSpec, Loss, LossOutput, learn, losses
from polyplay.nets import NetworkFactory
from polyplay.systems import Page, System
from polyplay.weights import Local, OptimizerSpec
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Its options; `polyplay train reinforce:system --help` shows the comments."""

    env: str = "CartPole-v1"  # environment: a Gymnasium id, module:callable, or toy:NAME
    lanes: Count = 8  # parallel environments
    unroll: Count = 16  # agent steps per lane between two updates
    network: str = "mlp"  # a network by name, or module:callable
    gamma: Fraction = 0.99  # discount
    learning_rate: Positive = 5e-3  # constant
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    frames: Count = 500_000  # frames to train for, unless --steps is given


@dataclass(frozen=True)
class Reinforce(Loss):
    """−(G − V)·log π(a) + ½(G − V)² − entropy_cost·H. A return G ends with V of the rollout's last row."""

    gamma: Fraction
    metrics = ("loss", "policy_loss", "value_loss", "entropy")

    def __call__(self, policy: Any, target: Any, batch: Batch, state: Batch, hyper: losses.Hyper) -> LossOutput:
        out, steps = policy.unroll(batch, state), losses.transitions(batch, self.gamma)
        error = losses.n_step(steps, out["value"].detach()) - out["value"][:-1]
        each = -error.detach() * out["logp"][:-1], 0.5 * error.square(), out["entropy"][:-1]
        # means of [T, B] over transitions within an episode
        policy_loss, value_loss, entropy = (losses.masked_mean(x, steps.valid) for x in each)
        loss = policy_loss + value_loss - hyper["entropy_cost"] * entropy
        found = zip(self.metrics, (loss, policy_loss, value_loss, entropy), strict=True)
        return LossOutput(loss, {name: x.detach() for name, x in found})


def build(c: Config, crew: Crew) -> System:
    envs = Envs(c.env, c.lanes, **crew.env_defaults)
    policy, loss = NetworkFactory(c.network, envs.spec), Reinforce(c.gamma)
    hyper = Hyperparameters(learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, Local(OptimizerSpec("adam")), hyper, crew.agent_steps(envs, c.frames))
    crew.add(learn, name="replica", source=Inline(envs, c.unroll), spec=spec)
    return System(envs, spec)


system = Page(Config, build)
