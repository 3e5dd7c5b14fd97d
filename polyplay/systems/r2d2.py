"""R2D2 (Kapturowski et al. 2019): Q-learning with a recurrent network. Many actors send rollouts to one learner, which
has a prioritized replay buffer of sequences.

act × actors:  envs ─► own copy of the weights, ε by lane ─► rollouts, with states and Q as acted ─► RolloutQueue
                          ▲ pulled every `pull` steps                                                     ▼
                        Params                      learn: its Replay of sequences, each with the state before it
                          ▲                                                ▼ batches      ▲ new priorities
                          └─ update ◄── loss of the steps behind ◄── burn-in from that state ──┘
"""

from dataclasses import dataclass

from polyplay.acting import EpsilonLadder, act
from polyplay.buffers import REPLAY_METRICS, Proportional, Replay, RolloutQueue
from polyplay.core.errors import Count, Fraction, NonNegative, Positive, SomeWorkers, Whole, Width
from polyplay.learning import Hyperparameters, LearnerSpec, Replayed, Rollouts, SequenceLoss, TargetNetwork, learn
from polyplay.systems import System
from polyplay.systems._wiring import AgentOptions, q_network, worker_envs
from polyplay.weights import OptimizerSpec, Params, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(AgentOptions):  # inherits env, inputs
    """Defaults: table 2 of the paper (Atari), but fewer actors than its 256. The gradient-norm clip is from SEED RL."""

    atari: str = "r2d2"  # preprocessing of Atari games: a preset of docs/guides/atari.md
    actors: SomeWorkers = 2  # acting workers, each with its own copy of the weights
    lanes: Count = 4  # parallel environments (num-envs) of each actor
    unroll: Count = 40  # agent steps per lane in a rollout, and between the starts of two sequences
    pull: Count = 400  # agent steps per lane between two pulls of the weights, in whole rollouts
    sequence: Count = 80  # agent steps of a sequence that are learned from
    burn_in: Whole = 40  # steps before a sequence that only update the recurrent state
    gamma: Fraction = 0.997  # discount
    n_step: Count = 5  # n of n-step returns: rewards summed before bootstrapping
    network: str = "nature"  # network: auto, nature, a3c, mlp, or module:callable
    core_size: Width = 512  # width of the LSTM, which also gets the previous action and reward
    batch: Count = 64  # sequences in one update
    ratio: Positive = 0.4  # steps learned from per agent step: 25.6K of 66.6K per second in the paper
    capacity: Count = 4_000_000  # agent steps in the replay
    learning_starts: Count = 250_000  # agent steps before the first update
    target_update: Count = 2_500  # updates between two updates of the target network
    alpha: Fraction = 0.9  # exponent α of a sequence's priority, η·max + (1 − η)·mean of TD errors, η = 0.9
    beta: Fraction = 0.6  # exponent β of importance weights, constant
    epsilon: Fraction = 0.4  # largest probability ε of a random action; the lanes' values go down to ε⁸
    learning_rate: Positive = 1e-4  # learning rate, constant
    optimizer: str = "adam"  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    optimizer_eps: Positive = 1e-3  # the optimizer's ε
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this; 0: off
    rescale: NonNegative = 1e-3  # ε of value rescaling h; 0: off
    frames: Count = 10_000_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs, lanes = worker_envs(c, crew), c.actors * c.lanes  # one actor's environments; the lanes of all actors
    # previous: the LSTM also takes the previous action and reward
    policy = q_network(c, envs, core="lstm", core_size=c.core_size, dueling=True, previous=True)
    network = policy()  # only for its shapes: each worker makes its own network
    explore = EpsilonLadder(lanes, c.epsilon, alpha=7.0)  # lane i of N has ε^(1 + 7·i/(N − 1)), constant
    queue = RolloutQueue.of(envs, network, c.unroll, c.actors)
    loss = SequenceLoss(c.gamma, c.n_step, rescale=c.rescale, burn_in=c.burn_in, eta=0.9, double=True)
    # first priorities are TD errors by the acting network's values, mixed by η as in the loss
    sampler = Proportional(c.alpha, c.beta, first="td", eta=0.9, rescale=c.rescale)
    # gamma and n_step serve first priorities only; the loss itself computes returns
    replay = Replay.of(
        envs, network, sampler, lanes=lanes, capacity=c.capacity, batch=c.batch, start=c.learning_starts,
        ratio=c.ratio, gamma=c.gamma, n_step=c.n_step, reward="none", sequence=c.sequence, burn_in=c.burn_in,
        period=c.unroll,  # agent steps between the starts of two sequences
    )  # fmt: skip
    source = Replayed(Rollouts(queue, n=1), replay)  # the learner puts rollouts into its replay one by one
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), replicas=1)
    target, hyper = TargetNetwork(every=c.target_update), Hyperparameters(learning_rate=c.learning_rate)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), parts=(target,))
    params = Params.of(network, readers=c.actors)  # the published weights
    # a lost actor is replaced; without the learner the run ends
    crew.add(
        act, n=c.actors, if_lost="replace", envs=envs, policy=policy, explore=explore, out=queue, params=params,
        keep=max(c.pull // c.unroll, 1),  # rollouts between two pulls of the weights
    )  # fmt: skip
    crew.add(learn, source=source, spec=spec, publish=params)
    return System(envs, spec, REPLAY_METRICS)
