"""A league: agents that learn by playing each other and their past agents (Jaderberg et al. 2019, figure 1).

act × actors:  a table of players ─► own copies of weights ─► rollouts ─► RolloutQueue ─► learn × learners ─► update
                 │        ▲    ▲                                              past agents ◄┘ of each agent       │
     matches ◄───┘ tables ┘    └── Params of each agent, pulled once per rollout ◄───────────────────────────────┘
        └─► referee ─┴─► who copies whom ─► learn
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyplay.buffers import RolloutQueue
from polyplay.buffers.league import League
from polyplay.core.errors import Agents, Count, Fraction, Lag, Players, Positive, SomeWorkers, Whole
from polyplay.learning import APPO, AgentRollouts, Epochs, Hyperparameters, LearnerSpec, Passes, VTrace, learn
from polyplay.population.rules import Evolution, around
from polyplay.systems import System, described
from polyplay.systems._teams import add_actors, add_referee, batches_of, table_envs
from polyplay.systems._wiring import PolicyOptions, actor_critic_of, with_auxiliary
from polyplay.weights import AgentParams, Local, OptimizerSpec
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(PolicyOptions):
    """Defaults: for small games on a small machine; no league was published for one."""

    env: str = "toy:rps"  # an environment with several players: toy:rps, a PettingZoo one, or module:callable
    agents: Agents = 2  # that learn, each by its own games
    players: Players = 2  # at a table: each holds a group of an actor's lanes
    actors: SomeWorkers = 1  # acting workers, each with a table
    lanes: Count = 32  # seats in matches (num-envs) of each actor, divided among its players
    learners: Whole = 0  # processes that learn, each for some of the agents in turn (0: one per core or agent)
    lag: Lag = -1  # rounds that acting may be ahead of learning: 0 synchronous, 1 overlapping, -1 unlimited
    unroll: Count = 16  # agent steps per lane in a rollout
    opponents: str = "latest"  # of a table's first player: latest, uniform, elo, or past:P (past agents, probability P)
    games_per_matchup: Count = 100  # that a table plays before its players are drawn anew
    snapshot_every: Count = 200  # updates of an agent from one past agent to the next
    exploit_every: Whole = 0  # matches of an agent between two looks at whether to copy a better one (0: none copies)
    batch: Count = 16  # trajectories in one update of an agent, or for the passes of one batch
    loss: Literal["vtrace", "ppo"] = "vtrace"  # vtrace: IMPALA's; ppo: its clipped ratio on V-trace, several passes
    epochs: Count = 2  # ppo: passes over a batch
    clip_range: Positive = 0.2  # ppo: ε, the ratio π/μ is clipped to 1 ± ε
    lam: Fraction = 0.95  # λ of V-trace
    network: str = "auto"  # auto, nature, a3c, ga3c, impala, mlp, separate, five, or module:callable
    learning_rate: Positive = 1e-3  # learning rate at the start; see --anneal
    anneal: Literal["linear", "constant"] = "linear"  # how the learning rate falls over the run
    reward: Literal["clip", "sign", "none", "scale"] = "none"  # learner's rewards; scale: divide by the size of returns
    frames: Count = 1_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


PRESETS, ROW = described(Config)


def build(c: Config, crew: Crew) -> System:
    envs = table_envs(c, crew, c.players, c.actors)
    slots, policy = batches_of(c, envs), actor_critic_of(c, envs, previous=c.core != "none")
    ppo = APPO(c.gamma, c.lam, c.clip_range, reward=c.reward)
    loss = with_auxiliary(c, ppo if c.loss == "ppo" else VTrace(c.gamma, c.lam, reduction="mean", reward=c.reward))
    update = Local(OptimizerSpec("adam", 1e-5, clip=0.5))
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.total(envs, c.frames))
    copies, bots = Evolution(c.exploit_every, priors=around(hyper.configured)), tuple(envs.spec.bots)
    varied = hyper.configured if copies.every else ()
    league = League(c.agents, c.actors, envs.spec.sides, c.players, bots=bots, varied=varied)
    net, n = policy(), c.learners or min(c.agents, crew.placement.parts)
    rollouts = RolloutQueue.of(envs, net, c.unroll, c.actors, 2, c.agents, per_agent=True)
    params = AgentParams(net, c.agents, c.actors, update.optim.statistics if copies.every else None)
    batches = AgentRollouts(rollouts, slots, league, c.snapshot_every)
    source = Passes(batches, Epochs(c.epochs, min(c.batch, 2))) if c.loss == "ppo" else batches
    add_actors(c, crew, c.actors, envs=envs, policy=policy, out=rollouts, params=params, league=league)
    crew.add(learn, n=n, learner=True, source=source, spec=spec, publish=params)
    add_referee(c, crew, league, copies)
    return System(envs, policy, loss.metrics, {"learners": n})
