"""GA3C (Babaeizadeh et al. 2017, figure 1): A3C with a single model. Predictors choose the actions of all agents in
batches. Trainers update the model without a lock.

agents, a process each ─► prediction queue ─► act × predictors: all that are ready, at most 128 ─► their actions
                                                       │ write chunks of at most T transitions
model ◄─ Hogwild ─ learn × trainers ◄─ training queue ◄┘      schedule: changes their numbers during the run
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from polyplay.acting import LaneTable, predict
from polyplay.buffers import TrainingQueue
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, Range, Whole
from polyplay.core.machine import cores
from polyplay.learning import A2C, Chunks, Hyperparameters, LearnerSpec, VTrace, learn
from polyplay.systems import System
from polyplay.systems._wiring import PolicyOptions, actor_critic, agent_envs
from polyplay.weights import Hogwild, OptimizerSpec
from polyplay.workers.autoscale import schedule
from polyplay.workers.crew import Crew

MOST = 8  # most predictors, and most trainers


@dataclass(frozen=True)
class Config(PolicyOptions):  # inherits env, core, inputs, actions
    """Defaults: those of the paper."""

    atari: str = "ga3c"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    agents: Count = 32  # agents at the start; each is a process with one environment
    predictors: Annotated[int, Range(1, MOST)] = 2  # threads that compute actions, at the start
    trainers: Annotated[int, Range(1, MOST)] = 2  # threads that learn, at the start
    schedule: Literal["off", "annealing"] = "annealing"  # rule for numbers of agents, predictors and trainers
    predict_batch: Count = 128  # most agents in one batch of actions
    min_batch: Whole = 0  # fewest transitions in an update (0: one chunk's)
    queue: Count = 100  # chunks that may wait for a trainer
    gamma: Fraction = 0.99  # discount
    reward: Literal["clip", "sign", "none", "scale"] = "clip"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    unroll: Count = 5  # transitions in a chunk (t_max); fewer if an episode ends
    network: str = "ga3c"
    # network: ga3c, ga3c_large4 … ga3c_large1, a3c, nature, impala, mlp, separate, auto, or module:callable
    learning_rate: Positive = 3e-4  # learning rate at the start; see --anneal
    optimizer: str = "rmsprop_tf"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam; trainers share the statistics
    optimizer_eps: Positive = 0.1  # the optimizer's ε; rmsprop_tf and rmsprop_a3c have it inside the root
    max_grad_norm: NonNegative = 0.0  # clip the gradient's global norm to this; 0: off
    anneal: Literal["linear", "constant"] = "constant"  # schedule; linear: the learning rate falls to 0 over the run
    correction: Literal["none", "plus", "max", "vtrace"] = "plus"
    # how log π stays finite; plus: log(π + 1e-6), max: log(max(π, 1e-6)), vtrace: V-trace instead
    init: Literal["auto", "orthogonal", "torch"] = "auto"  # initial weights (auto: as the network was published)
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    reduction: Literal["sum", "mean"] = "sum"  # how the loss is reduced over a batch; sum is as published
    inputs: Literal["raw", "signed", "center", "normalize"] = "raw"  # type: ignore[assignment]
    # how inputs are scaled; raw: images x/255, signed: x/128 − 1, center: minus the mean image, normalize: scaled
    # numbers
    frames: Count = 200_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    room = c.agents if c.schedule == "off" else max(2 * c.agents, 16 * cores())  # the schedule's limit of agents
    envs = agent_envs(c, crew, room)  # a process each; a prediction takes all ready ones, at most predict_batch
    guard = "none" if c.correction == "vtrace" else c.correction  # keeps log π from −∞
    # inexact sums are faster, and their last bits may depend on the size of a batch
    policy = actor_critic(c, envs, init=c.init, exact=False, guard=guard)
    network = policy()  # only for its shapes: the workers share another network
    queue = TrainingQueue.of(envs, network, c.unroll, capacity=c.queue)
    common: Any = {"value_cost": 1.0, "value_half": True}  # ½(R − V)²
    common |= {"reduction": c.reduction, "normalize_advantage": c.normalize_advantage, "reward": c.reward}
    loss: A2C | VTrace = VTrace(c.gamma, **common)
    if c.correction != "vtrace":
        # as published: R ends with V as acting computed it, but the advantage is R − V with V of the present weights
        loss = A2C(c.gamma, baseline="present", recalls=True, **common)
    optimizer = OptimizerSpec(c.optimizer, c.optimizer_eps, decay=0.99, clip=c.max_grad_norm)  # RMSProp's decay
    model = Hogwild.of(optimizer, policy, workers=MOST, copy=False)  # threads compute with the shared weights
    hyper = Hyperparameters(anneal=c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, model, hyper, crew.agent_steps(envs, c.frames))
    agents = LaneTable(envs, queue)  # the prediction queue: waiting agents, and each agent's unfinished chunk
    source = Chunks(queue, c.min_batch)  # an update takes the fewest chunks with min_batch transitions
    # drain: if the schedule removes a thread, the thread first finishes its work
    predictors = crew.add(
        predict, n=c.predictors, name="act", on="thread", drain=True,
        agents=agents, policy=policy, out=queue, params=model,
    )  # fmt: skip
    trainers = crew.add(learn, n=c.trainers, on="thread", drain=True, source=source, spec=spec)
    if c.schedule != "off":
        # each minute the schedule changes one of these numbers by one, and keeps the change if it speeds up learning
        numbers = [agents.dial("agents"), crew.dial(predictors, 1, MOST), crew.dial(trainers, 1, MOST)]
        crew.add(schedule, on="thread", dials=numbers)
    return System(envs, spec)
