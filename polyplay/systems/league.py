"""A league: agents that learn by playing each other and their past selves (Jaderberg et al. 2019, figure 1).

act × actors:  a table of players ─► own copies of their weights ─► rollouts ─► RolloutQueue ─► learn × learners: each
                 │    ▲    ▲                                                        │           agent from its own
                 │    │    └───────────── Params of each agent, pulled once per rollout ◄── update ──┘
                 ▼    └── tables ── referee ◄── past selves
              results of matches ──────┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polyplay.acting.table import act_at_table
from polyplay.buffers import RolloutQueue
from polyplay.buffers.agent_batches import AgentBatches
from polyplay.common.bounds import Agents, Count, Fraction, Lag, NonNegative, Positive, SomeWorkers, Whole, Width, Workers
from polyplay.common.errors import UserError
from polyplay.common.machine import cores
from polyplay.envs import Envs
from polyplay.envs.pools.seating import check_seats
from polyplay.learning import Epochs, Hyperparameters, LearnerSpec
from polyplay.learning.agents import learn_agents
from polyplay.learning.losses import APPO, VTrace
from polyplay.population.league import League
from polyplay.population.matchmaking import Opponents
from polyplay.population.referee import referee
from polyplay.systems._wiring import Crew, System, actor_critic_of
from polyplay.weights import OptimizerSpec, averaged
from polyplay.weights.agent_params import AgentParams


@dataclass(frozen=True)
class Config:
    """Defaults: for small games on a small machine; no league was published for one."""

    env: str = "toy:rps"  # an environment with several players: toy:rps, a PettingZoo one, or module:callable
    agents: Agents = 2  # that learn, each its own weights from its own games
    players: Count = 2  # at a table: each holds a group of an actor's lanes
    actors: SomeWorkers = 1  # acting workers, each with a table
    lanes: Count = 32  # seats in matches (num-envs) of each actor, divided among its players
    learners: Workers = 0  # processes that learn, each for some of the agents in turn (0: one per core or agent)
    slots: Count = 2  # rollout buffers per player: it fills one, the others wait for a learner
    lag: Lag = -1  # rounds that acting may be ahead of learning: 0 synchronous, 1 overlapping, -1 unlimited
    unroll: Count = 16  # agent steps per lane in a rollout
    opponents: str = "latest"  # of a table's first player: latest, uniform, elo, or past:P (past selves, probability P)
    matches: Count = 100  # that a table plays before its players are drawn anew
    selves: Count = 200  # updates of an agent from one past self to the next
    past: Whole = 100  # past selves that are kept; others leave, those that lose most first
    batch: Count = 16  # trajectories in one update of an agent, or for the passes of one batch
    loss: Literal["vtrace", "ppo"] = "vtrace"  # vtrace: IMPALA's; ppo: its clipped ratio on V-trace, several passes
    epochs: Count = 2  # ppo: passes over a batch
    minibatches: Count = 2  # ppo: minibatches per pass
    clip_range: Positive = 0.2  # ppo: ε, the ratio π/μ is clipped to 1 ± ε
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 0.95  # λ of V-trace
    network: str = "auto"  # auto, nature, a3c, ga3c, impala, mlp, separate, or module:callable
    core: Literal["none", "lstm", "gru"] = "none"  # recurrent core
    core_size: Width = 256  # width of the recurrent core
    learning_rate: Positive = 1e-3  # learning rate at the start; see --anneal
    optimizer: str = "adam"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam (docs/reference/optimizers.md)
    optimizer_eps: Positive = 1e-5  # the optimizer's ε
    max_grad_norm: NonNegative = 0.5  # clip the gradient's global norm to this, 0 is off
    anneal: Literal["linear", "constant"] = "linear"  # how the learning rate falls over the run
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    value_cost: NonNegative = 0.5  # weight of the value loss
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    reward: Literal["clip", "sign", "none", "scale"] = "none"  # learner's rewards; scale: divide by the size of returns
    inputs: Literal["raw", "centre", "normalize"] = "raw"  # centre: subtract mean image; normalize: scale real numbers
    budget: Count = 1_000_000  # frames to train for when neither --frames nor --steps is given


PRESETS = {"selfplay": Config}
ROW = {"envs": "a table of players per actor", "policy runs": "own copy of each player, CPU"}
ROW |= {"between": "RolloutQueue to each agent", "pace": "free + V-trace", "update": "Local, each agent's own"}
ROW |= {"weights travel": "pull each rollout", "source": "Jaderberg et al. 2019; Berner et al. 2019"}


def build(c: Config, crew: Crew) -> System:
    n = c.learners or min(c.agents, cores())
    envs = Envs(c.env, c.lanes, c.players, workers=crew.where.steppers(c.actors), agents=c.players, **crew.stepping)
    check_seats(c.lanes, envs.spec.seats, c.players)
    slots, rest = divmod(c.batch * c.players, c.lanes)
    if rest or not slots or (c.lag >= 0 and slots > 1):
        exactly = " exactly" if c.lag >= 0 else ""
        raise UserError(f"--batch {c.batch} given; allowed{exactly}: the {c.lanes // c.players} lanes of a player, or so often")
    policy = actor_critic_of(c, envs, previous=c.core != "none", core_size=c.core_size)
    spec = spec_of(c, envs, policy, crew.total(envs, c.budget))
    net, lag = policy(), c.lag if c.lag >= 0 else None
    params = AgentParams(net, c.agents, readers=c.actors)
    rollouts = RolloutQueue.of(envs, net, c.unroll, c.actors, c.slots, c.agents, apart=True)
    league = League(c.agents, c.actors, envs.spec.teams, c.players, c.past)
    holds = {"envs": envs, "policy": policy, "lag": lag, "out": rollouts, "params": params, "league": league}
    crew.add(act_at_table, n=c.actors, name="act", on_loss="replace", **holds)
    learns = {"source": AgentBatches(rollouts, slots), "spec": spec, "params": params, "league": league}
    crew.add(learn_agents, n=n, name="learn", learner=True, serves=c.agents, selves=c.selves, **learns)
    crew.add(referee, on_loss="replace", league=league, opponents=Opponents.parse(c.opponents), matches=c.matches)
    return System(envs, policy, spec.loss.metrics, {"learners": n})


def spec_of(c, envs, policy, total) -> LearnerSpec:
    common = {"value_cost": c.value_cost, "reward": c.reward, "normalize_advantage": c.normalize_advantage}
    vtrace = VTrace(c.gamma, c.lam, reduction="mean", **common)
    loss = vtrace if c.loss == "vtrace" else APPO(c.gamma, c.lam, c.clip_range, **common)
    passes = None if c.loss == "vtrace" else Epochs(c.epochs, c.minibatches)
    update = averaged(OptimizerSpec(c.optimizer, c.optimizer_eps, clip=c.max_grad_norm), 1, policy())
    hyper = Hyperparameters(learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    return LearnerSpec(policy, loss, update, hyper, total, c.anneal, passes=passes)
