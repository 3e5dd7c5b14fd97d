"""GA3C (Babaeizadeh et al. 2017, figure 1): one model; predictors serve its agents, trainers change it, lock-free.

agents:  a process each ─► prediction queue ─► act × predictors: whoever is ready, up to 128 ─► actions back
                                                      │ chunks of T steps
         model ◄─ Hogwild ─ learn × trainers ◄─ training queue
           └── the same memory: predictors always use the newest weights; schedule changes the three numbers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from polyplay import losses, nets
from polyplay.acting import act
from polyplay.crew import Crew
from polyplay.envs import Envs
from polyplay.envs.pool import Greedy
from polyplay.learning import Task, learn
from polyplay.params import sizes
from polyplay.queues import Queue
from polyplay.serving import Desk
from polyplay.shared import Knobs
from polyplay.stream import row_spec
from polyplay.systems import System, atari
from polyplay.updates import Hogwild, Optim

MOST = 8  # predictors, and trainers, there is room for


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's."""

    env: str = "ALE/Pong-v5"  # environment: ALE/NAME, a Gymnasium id, module:callable, or toy:NAME
    agents: int = 32  # at first; each is a process with one environment
    predictors: int = 2  # at first; threads that serve whoever waits for an action
    trainers: int = 2  # at first; threads that learn
    schedule: Literal["climb", "annealing", "released", "off"] = "off"  # who changes these three
    predict_batch: int = 128  # agents served at once, at most
    min_batch: int = 0  # transitions of an update, at least (0: one chunk)
    queue: int = 100  # chunks that wait for a trainer, at most
    unroll: int = 5  # transitions of a chunk (t_max); fewer where its episode ends
    gamma: float = 0.99  # discount
    network: str = "ga3c"  # ga3c, ga3c_large4 … ga3c_large1, a3c, nature, impala, mlp, auto, or module:callable
    core: Literal["none", "lstm", "gru"] = "none"  # recurrent core
    init: Literal["auto", "orthogonal", "torch"] = "auto"  # initial weights (auto: as the network was published)
    learning_rate: float = 3e-4
    optimizer: str = "rmsprop_tf"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam (docs: three RMSProps)
    eps: float = 0.1  # the optimiser's ε
    clip: float = 0.0  # bound of the gradient's global norm, 0 is off
    anneal: Literal["linear", "constant"] = "constant"  # how the learning rate falls over the run
    entropy_cost: float = 0.01  # weight of the entropy bonus
    reward: Literal["clip", "sign", "none", "scale"] = "clip"  # for the learner; scale: by the size of returns
    reduction: Literal["sum", "mean"] = "sum"  # over a batch: with sum (as published) the step grows with it
    normalize_advantage: bool = False  # advantages to mean 0 and deviation 1 over a batch
    inputs: Literal["raw", "centre", "normalize"] = "raw"  # centre: images minus their mean; normalize: real numbers
    budget: int = 200_000_000  # frames to train for when neither --frames nor --steps is given


PRESETS = {"paper": Config}
ROW = {
    "envs": "a process per agent, one pool",
    "policy runs": "predictors serve the pool",
    "between": "training queue",
    "pace": "free",
    "update": "trainers, Hogwild",
    "weights travel": "same object",
    "source": "Babaeizadeh et al. 2017",
}


def build(c: Config, crew: Crew) -> System:
    room = c.agents
    options = atari(c.env, "ga3c", crew.atari)
    rule = Greedy(min(c.predict_batch, room))
    envs = Envs(c.env, room, batching=rule, workers=room, active=c.agents, options=options, **crew.stepping)
    features: Any = {"core": c.core, "init": c.init, "inputs": c.inputs}
    features["returns"] = c.gamma if c.reward == "scale" else None
    policy = nets.Factory(c.network, envs.spec, features)
    net = policy()
    more: Any = {"normalize_advantage": c.normalize_advantage, "reward": c.reward, "reduction": c.reduction}
    loss = losses.a2c(c.gamma, value_cost=0.5, **more)
    weights = Hogwild(Optim(c.optimizer, c.eps, clip=c.clip), *sizes(net), workers=MOST, copy=False)
    knobs = Knobs(learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    task = Task(policy, loss, weights, knobs, total=crew.total(envs, c.budget), anneal=c.anneal)
    rows = row_spec(envs.spec.obs, net.spec(), envs.spec.mask)
    queue = Queue(rows, net.state_spec(), c.unroll, room, c.queue)
    desk = Desk(envs, queue)
    crew.add(act, n=c.predictors, on="thread", drain=True, desk=desk, policy=policy, out=queue, params=weights)
    crew.add(learn, n=c.trainers, on="thread", drain=True, learner=True, source=queue.batches(c.min_batch), task=task)
    return System(envs, policy, loss.metrics)
