"""A league of agents that learn by playing against each other (Jaderberg et al. 2019, figure 1). They also play against
past agents, whose weights were saved, as in AlphaStar's league (Vinyals et al. 2019).

act × actors:  a table of players ─► own copies of weights ─► rollouts ─► RolloutQueue ─► learn × learners ─► update
                 │        ▲    ▲                                                                                 │
     matches ◄───┘ tables ┘    ├── Params of each agent, pulled once per rollout ◄───────────────────────────────┤
        └─► referee ─┤         └── past agents, files of weights ◄── every snapshot_every updates ───────────────┘
                     └─► orders to copy ─► learn
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import act_at_table
from polyplay.buffers import RolloutQueue
from polyplay.buffers.league import League
from polyplay.core.errors import Agents, Count, Fraction, Lag, NonNegative, Players, Positive, SomeWorkers, Whole
from polyplay.envs import Envs
from polyplay.learning import APPO, AgentRollouts, Epochs, Hyperparameters, LearnerSpec, VTrace, learn_agents
from polyplay.population.referee import Opponents, referee
from polyplay.population.rules import Evolution, around
from polyplay.systems import System
from polyplay.systems._teams import rollouts_per_batch, table_envs
from polyplay.systems._wiring import PolicyOptions, actor_critic
from polyplay.weights import AgentParams, OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config(PolicyOptions):  # inherits env, core, inputs, actions
    """Defaults: values that Polyplay chose for small games on a small machine. No paper describes this league."""

    env: str = "toy:rps"  # environment with several players: toy:rps, one of PettingZoo, or module:callable
    agents: Agents = 2  # agents that train, each on its own games
    players: Players = 2  # players in an actor's matches, each with a group of lanes
    actors: SomeWorkers = 1  # acting workers
    lanes: Count = 32  # seats in matches (num-envs) of each actor, divided among its players
    learners: Whole = 0  # learner processes, each for some of the agents in turn (0: one per core or agent)
    lag: Lag = -1  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: Count = 16  # agent steps per lane in a rollout
    opponents: str = "latest"
    # opponents of an actor's first player; latest: agents, uniform: past agents and bots too, elo: equally strong ones,
    # past:P: past agents with probability P
    games_per_matchup: Count = 100  # matches per actor between draws of its players
    snapshot_every: Count = 200  # updates of an agent per past agent
    exploit_every: Whole = 0  # matches per agent between checks for a better agent to copy (0: never)
    batch: Count = 16  # trajectories in one update of an agent; with ppo, in one batch
    algo: Literal["vtrace", "ppo"] = "vtrace"  # loss; vtrace: IMPALA's; ppo: clipped ratio on V-trace, several passes
    epochs: Count = 2  # passes over a batch, with ppo
    clip_range: Positive = 0.2  # ε: ppo clips the ratio π/μ to 1 ± ε
    gamma: Fraction = 0.99  # discount
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    lam: Fraction = 0.95  # λ of V-trace
    network: str = "auto"  # network: auto, nature, a3c, ga3c, impala, mlp, separate, five, or module:callable
    learning_rate: Positive = 1e-3  # learning rate at the start; see --anneal
    optimizer: str = "adam"  # optimizer: adam, another of docs/reference/optimizers.md, or module:callable
    anneal: Literal["linear", "constant"] = "linear"  # schedule; linear: the learning rate falls to 0 over the run
    reward: Literal["clip", "sign", "none", "scale"] = "none"
    # how rewards are transformed; clip: limited to ±1, scale: divided by the running size of discounted returns
    frames: Count = 1_000_000  # frames to train for (Atari: four per agent step), unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = table_envs(c, crew, c.players, c.actors)  # one actor's environments, a group of lanes for each player
    rollouts = rollouts_per_batch(c, envs)  # batch / (lanes / players)
    # a recurrent core also takes the previous action and reward
    policy = actor_critic(c, envs, init="orthogonal", previous=c.core != "none")
    loss: Any = VTrace(c.gamma, c.lam, reduction="mean", reward=c.reward)  # ρ̄ = c̄ = 1
    if c.algo == "ppo":
        loss = APPO(c.gamma, c.lam, c.clip_range, reward=c.reward)
    update = averaged(OptimizerSpec(c.optimizer, eps=1e-5, clip=0.5), replicas=1)
    values = {"learning_rate": c.learning_rate, "entropy_cost": c.entropy_cost}  # first values of all agents
    hyper = Hyperparameters(anneal=c.anneal, **values)
    passes = Epochs(c.epochs, minibatches=min(c.batch, 2)) if c.algo == "ppo" else None  # passes, of whole lanes
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames), passes=passes)
    # an agent copies an agent that beats it with probability 0.7 or more, by Elo; then each value is multiplied by 0.8
    # or 1.2, and stays between a tenth and ten times its first value
    evolution = Evolution(every=c.exploit_every, priors=around(values))
    # the league holds the agents, 100 past agents, bots, the team of each seat and each agent's varying values, and
    # says which players each actor has
    league = League(
        c.agents, c.actors, teams=envs.spec.sides, seated=c.players, past=100, bots=tuple(envs.spec.bots),
        varied=evolution.varied,
    )  # fmt: skip
    return wire_league(c, crew, envs, spec, league, evolution, n=rollouts, snapshot_every=c.snapshot_every)


def wire_league(
    c: Any, crew: Crew, envs: Envs, spec: LearnerSpec, league: League, evolution: Evolution, **given: Any
) -> System:
    """Add the actors, learners and referee to a run of a league or of FTW. Pass `given` to AgentRollouts."""
    network = spec.policy()  # only for its shapes: each worker makes its own network
    # each agent has its own slots, of which one is filled while another is read; past agents and bots fill no slot
    queue = RolloutQueue.of(envs, network, c.unroll, c.actors, slots=2, readers=c.agents, per_agent=True)
    statistics = spec.update.optim.statistics if evolution.every else None  # the optimizer's, if copied with weights
    params = AgentParams(network, c.agents, readers=c.actors, statistics=statistics)  # published weights of each agent
    # a lost actor or referee is replaced
    crew.add(
        act_at_table, n=c.actors, name="act", if_lost="replace", lag=c.lag,
        envs=envs, policy=spec.policy, out=queue, params=params, league=league,
    )  # fmt: skip
    # each agent has its own rollouts; an agent's learner also writes past agents, and copies when the referee says so
    source = AgentRollouts(queue, league=league, **given)
    learners = c.learners or min(c.agents, crew.placement.parts)  # 0: one per core or GPU
    crew.add(learn_agents, n=learners, name="learn", source=source, spec=spec, publish=params)
    # the referee rates players by their matches, draws each actor's players, and orders copies
    opponents, matches = Opponents.parse(c.opponents), c.games_per_matchup
    crew.add(referee, if_lost="replace", rates=league, opponents=opponents, matches=matches, evolution=evolution)
    return System(envs, spec, resolved={"learners": learners})  # the number chosen for --learners 0
