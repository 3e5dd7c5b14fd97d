"""FTW (Jaderberg et al. 2019, figures 1 and 2): a population of agents plays capture the flag in teams. Each agent
learns from its own rewards, and copies agents that beat it.

act × actors:  a table of four agents ─► own copies of weights ─► rollouts ─► RolloutQueue ─► learn × learners: V-trace
                 │        ▲    ▲                                              on own rewards, auxiliary tasks ─► update
     matches ◄───┘ tables ┘    └── Params of each agent, pulled once per rollout ◄──────────────────────────────────┘
        └─► referee: Elo ─► players of tables, and orders to copy ─► learn: weights, rewards, hyperparameters
"""

from dataclasses import dataclass
from typing import Literal

from polyplay.buffers.league import League
from polyplay.core.errors import Agents, Count, Fraction, Lag, NonNegative, Players, SomeWorkers, Whole
from polyplay.learning import Hyperparameters, LearnerSpec, VTrace
from polyplay.population.rules import initial
from polyplay.systems import System
from polyplay.systems import _teams as teams
from polyplay.systems.league import wire_league
from polyplay.weights import OptimizerSpec, averaged
from polyplay.workers.crew import Crew

POINTS = (  # weights of events; a tag alone has none: when tags had one, agents only tagged and left the flags
    "captured=1.0",
    "teammate_captured=0.5",
    "opponent_captured=-1.0",
    "picked_up=0.3",
    "tagged_carrier=0.2",
    "was_tagged_carrying=-0.2",
)


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's supplement. The game is part of Polyplay, because the paper's game was never released."""

    env: str = "arena:ctf+view=pixels+size=21"  # game of teams that counts events
    agents: Agents = 30  # agents in the population
    players: Players = 4  # agents in an actor's matches, each with a group of lanes
    actors: SomeWorkers = 1  # acting workers
    lanes: Count = 128  # seats in matches (num-envs) of each actor, divided among its players
    learners: Whole = 0  # learner processes, each for some of the agents in turn (0: one per core or agent)
    lag: Lag = -1  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: Count = 100  # agent steps per lane in a rollout
    batch: Count = 32  # trajectories in one update of an agent
    opponents: str = "elo"  # matchmaking: latest, uniform, or elo (evenly matched players)
    games_per_matchup: Count = 32  # matches per actor between draws of its players
    evolve: bool = True
    # draw agents' first hyperparameters from --ranges, and copy better agents; false: use the middle of each range
    exploit_every: Count = 1000  # matches per agent between checks for a better agent to copy
    ranges: tuple[str, ...] = ()
    # hyperparameters: NAME=log:LOW:HIGH, NAME=uniform:LOW:HIGH or NAME=VALUE, with names of docs/systems/ftw.md's table
    rewards: Literal["events", "game"] = "events"  # source of rewards: an agent's own weights of events, or the game
    event_rewards: tuple[str, ...] = POINTS  # fixed weights, as EVENT=WEIGHT; other events have 0
    network: str = "ftw"  # network: ftw (convolutions for the view's size), mlp, impala, or module:callable
    core: Literal["none", "lstm", "gru", "temporal"] = "temporal"  # recurrent core; temporal: two LSTMs
    core_size: Count = 256  # width of each LSTM, and of z
    auxiliary: str = "pixel,reward"  # auxiliary tasks: pixel, reward, separated by a comma; or none
    memory: Whole = 450  # words of the memory that both LSTMs share (0: no memory)
    actions: Literal["scale", "clip"] = "scale"  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    gamma: Fraction = 0.99  # discount
    lam: Fraction = 1.0  # λ of V-trace
    max_grad_norm: NonNegative = 0.0  # clip the gradient's global norm to this (0: off)
    optimizer: str = "rmsprop_tf"  # optimizer: rmsprop_tf, rmsprop_a3c, adam, … (docs/reference/optimizers.md)
    normalize_advantage: bool = False  # scale advantages to mean 0, deviation 1; the loss is then a mean, not a sum
    frames: Count = 60_000_000_000  # agent steps over all agents, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    envs = teams.table_envs(c, crew, c.players, c.actors)  # one actor's environments, a group of lanes per player
    rollouts = teams.rollouts_per_batch(c, envs)  # batch / (lanes / players)
    policy = teams.ftw_network(c, envs)  # figure 2a, with heads for the auxiliary tasks
    # an agent's hyperparameters (learning rate, entropy cost, rewards of events, the slow clock's period, …), the
    # ranges of drawn ones, and evolution: an agent copies an agent that beats it with probability 0.7 or more, by Elo;
    # then each value changes with probability 0.05: it is multiplied by 0.8 or 1.2, and a period is drawn again
    values, ranges, evolution = teams.agent_values(c, envs)
    # the network computes rewards from events; the loss gets its core's KL divergences and the auxiliary tasks' losses
    loss = VTrace(
        c.gamma, c.lam, reduction="mean" if c.normalize_advantage else "sum",
        normalize_advantage=c.normalize_advantage, reward="none",  # ρ̄ = c̄ = 1
    )  # fmt: skip
    update = averaged(OptimizerSpec(c.optimizer, eps=1e-5, decay=0.99, clip=c.max_grad_norm), replicas=1)
    hyper = Hyperparameters(anneal="constant", **values)
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    drawn = initial(ranges, c.agents, crew.seed) if c.evolve else ()  # each agent's first values
    # the league holds the agents and the team of each seat, and says which players each actor has
    league = League(c.agents, c.actors, teams=envs.spec.sides, seated=c.players, past=0, varied=evolution.varied)
    # actors, learners and referee are as in league.py
    return wire_league(c, crew, envs, spec, league, evolution, n=rollouts, initial=drawn)
