"""A league: agents that learn by playing each other and their past agents (Jaderberg et al. 2019, figure 1).

act × actors:  a table of players ─► own copies of weights ─► rollouts ─► RolloutQueue ─► learn × learners ─► update
                 │        ▲    ▲                                              past agents ◄┘ of each agent       │
     matches ◄───┘ tables ┘    └── Params of each agent, pulled once per rollout ◄───────────────────────────────┘
        └─► referee ─┴─► who copies whom ─► learn
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.buffers import RolloutQueue
from polyplay.buffers.league import League
from polyplay.core.errors import Agents, Count, Fraction, Lag, Players, Positive, SomeWorkers, Whole
from polyplay.learning import APPO, AgentRollouts, Epochs, Hyperparameters, LearnerSpec, Passes, Source, VTrace, learn
from polyplay.population.rules import Evolution, around
from polyplay.systems import System
from polyplay.systems._teams import add_actors, add_referee, rollouts_per_batch, table_envs
from polyplay.systems._wiring import PolicyOptions, actor_critic, with_auxiliary
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


def build(c: Config, crew: Crew) -> System:
    # players at a table hold a group of an actor's lanes each
    envs = table_envs(c, crew, c.players, c.actors)
    rollouts, learners = rollouts_per_batch(c, envs), c.learners or min(c.agents, crew.placement.parts)
    policy = actor_critic(c, envs, previous=c.core != "none")  # the core also takes the previous action and reward
    loss: Any = VTrace(c.gamma, c.lam, reduction="mean", reward=c.reward)
    if c.loss == "ppo":
        loss = APPO(c.gamma, c.lam, c.clip_range, reward=c.reward)
    loss = with_auxiliary(loss, c.core)  # a temporal core adds two KL divergences
    update = Local(OptimizerSpec("adam", eps=1e-5, clip=0.5))
    hyper = Hyperparameters(c.anneal, learning_rate=c.learning_rate, entropy_cost=c.entropy_cost)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    # copies: an agent takes a better one's weights and hyperparameters; these then change, a tenth to ten times of c's
    copies = Evolution(every=c.exploit_every, priors=around(hyper.configured))
    varied = hyper.configured if copies.every else ()  # hyperparameters that change with copies
    bots = tuple(envs.spec.bots)  # scripted players
    league = League(c.agents, c.actors, teams=envs.spec.sides, seated=c.players, bots=bots, varied=varied)
    network = policy()  # for its shapes
    queue = RolloutQueue.of(envs, network, c.unroll, c.actors, slots=2, readers=c.agents, per_agent=True)
    statistics = update.optim.statistics if copies.every else None  # are copied too
    params = AgentParams(network, c.agents, readers=c.actors, statistics=statistics)
    source: Source = AgentRollouts(queue, rollouts, league, snapshots=c.snapshot_every)
    if c.loss == "ppo":
        source = Passes(source, Epochs(c.epochs, minibatches=min(c.batch, 2)))
    # actors at tables, and the referee, which rates players and draws those of tables
    add_actors(c, crew, c.actors, envs=envs, policy=policy, out=queue, params=params, league=league)
    crew.add(learn, n=learners, learner=True, source=source, spec=spec, publish=params)
    add_referee(c, crew, league, copies)
    return System(envs, policy, loss.metrics, resolved={"learners": learners})
