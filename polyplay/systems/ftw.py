"""FTW (Jaderberg et al. 2019, figures 1 and 2): a population that plays capture the flag in teams, each agent learning
by rewards of its own; who is beaten by another copies it.

act × actors:  a table of four agents ─► own copies of weights ─► rollouts ─► RolloutQueue ─► learn × learners: V-trace
                 │        ▲    ▲                                              on own rewards, auxiliary tasks ─► update
     matches ◄───┘ tables ┘    └── Params of each agent, pulled once per rollout ◄──────────────────────────────────┘
        └─► referee: Elo ─┴─► who copies whom: weights, rewards, hyperparameters ─► learn
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polyplay.acting import act_at_table
from polyplay.buffers import AgentBatches, RolloutQueue
from polyplay.common.bounds import Agents, Count, Fraction, Lag, NonNegative, Players, Positive, SomeWorkers, Whole
from polyplay.envs import Envs
from polyplay.learning import Hyperparameters, LearnerSpec, learn_agents
from polyplay.learning.losses import VTrace
from polyplay.learning.losses.auxiliary import WithAuxiliary
from polyplay.population.league import League
from polyplay.population.matchmaking import Opponents
from polyplay.population.priors import initial
from polyplay.population.referee import referee
from polyplay.systems._ftw import POINTS, VARY, copy_rule, first_values, network, terms
from polyplay.systems._wiring import Crew, System
from polyplay.systems.league import batches_of
from polyplay.weights import AgentParams, Local, OptimizerSpec


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's supplement, on a game of ours: capture the flag of Quake III was never released."""

    env: str = "arena:ctf+view=pixels+size=21"  # a game of teams that counts events
    agents: Agents = 30  # of the population
    players: Players = 4  # at a table: agents that hold a group of an actor's lanes each
    actors: SomeWorkers = 1  # acting workers, each with a table
    lanes: Count = 128  # seats in matches (num-envs) of each actor, divided among its players
    learners: Whole = 0  # processes that learn, each for some of the agents in turn (0: one per core or agent)
    lag: Lag = -1  # rounds that acting may be ahead of learning: 0 synchronous, 1 overlapping, -1 unlimited
    unroll: Count = 100  # agent steps per lane in a rollout
    batch: Count = 32  # trajectories in one update of an agent
    opponents: str = "elo"  # who meets whom: latest, uniform, elo (those whom it beats half the time), or past:P
    matches: Count = 32  # that a table plays before its players are drawn anew
    selves: Whole = 0  # updates of an agent from one past self to the next, which plays too (0: there are none)
    copies: Count = 1000  # matches of an agent from one look at another, whether to copy it, to the next
    evolve: bool = True  # agents begin with values drawn from --vary, and copy better ones; False: with those below
    vary: tuple[str, ...] = VARY  # ranges of what is drawn; reward: of the size of each event's weight
    rewards: Literal["events", "game"] = "events"  # events: an agent's own weights on them; game: the environment's
    points: tuple[str, ...] = POINTS  # EVENT=WEIGHT, where weights are not drawn; of other events it is 0
    network: str = "ftw"  # ftw (by the view's size), or as other systems
    core: Literal["none", "lstm", "gru", "temporal"] = "temporal"  # temporal: a fast and a slow clock
    core_size: Count = 256  # of each LSTM, and numbers of z
    period: Count = 10  # τ: steps of the fast clock in one of the slow one
    gradient_scale: NonNegative = 1.0  # of what flows from the fast clock into the slow one
    gamma: Fraction = 0.99  # discount
    learning_rate: Positive = 5e-4  # constant
    optimizer: str = "rmsprop_tf"  # rmsprop_tf, rmsprop_a3c, rmsprop_torch or adam (docs/reference/optimizers.md)
    max_grad_norm: NonNegative = 40.0  # clip the gradient's global norm to this, 0 is off
    reduction: Literal["sum", "mean"] = "sum"  # mean or sum over a batch
    normalize_advantage: bool = False  # scale advantages to mean 0 and deviation 1 over a batch
    entropy_cost: NonNegative = 3e-3  # weight of the entropy bonus
    kl_posterior_cost: NonNegative = 1e-2  # weight of KL(posterior ‖ prior), at every step
    kl_prior_cost: NonNegative = 1e-3  # weight of KL(prior ‖ N(0, 0.1²)), at ticks of the slow clock
    budget: Count = 60_000_000_000  # steps of all agents to train for when neither --frames nor --steps is given


def quick() -> Config:
    """For two cores: four agents, small maps seen from above, matches of a minute."""
    game = Config("arena:ctf+length=900+actions=small", agents=4, lanes=64, unroll=50, batch=16, matches=50, copies=200)
    learner = replace(game, optimizer="adam", learning_rate=1e-3, max_grad_norm=0.5, reduction="mean", core_size=128)
    return replace(learner, vary=(*VARY[1:], "learning_rate=log:3e-4:3e-3"), budget=20_000_000)


def no_slow() -> Config:
    """One clock: an LSTM."""
    return replace(quick(), core="lstm")


def no_evolution() -> Config:
    """Nobody copies: all learn by the same fixed rewards."""
    return replace(quick(), evolve=False)


def selfplay_shaped() -> Config:
    """One agent, against itself, by the same fixed rewards ("Self-play + RS")."""
    return replace(no_evolution(), agents=1, opponents="latest")


def selfplay() -> Config:
    """One agent, against itself, by the game's reward alone."""
    return replace(selfplay_shaped(), rewards="game")


PRESETS = {"paper": Config, "quick": quick, "no_slow": no_slow, "no_evolution": no_evolution}
PRESETS |= {"selfplay_shaped": selfplay_shaped, "selfplay": selfplay}
ROW = {"envs": "a table of players per actor", "policy runs": "own copy of each player, CPU"}
ROW |= {"between": "RolloutQueue to each agent", "pace": "free + V-trace", "update": "Local, each agent's own"}
ROW |= {"weights travel": "pull each rollout; from who wins to who loses", "source": "Jaderberg et al. 2019"}


def build(c: Config, crew: Crew) -> System:
    opponents, n = Opponents.parse(c.opponents), c.learners or min(c.agents, crew.where.parts)
    envs = Envs(c.env, c.lanes, c.players, workers=crew.where.steppers(c.actors), agents=c.players, **crew.stepping)
    policy, rule, slots = network(c, envs), copy_rule(c, envs), batches_of(c, envs)
    net, update = policy(), Local(OptimizerSpec(c.optimizer, 1e-5, clip=c.max_grad_norm))
    vtrace = VTrace(c.gamma, reduction=c.reduction, reward="none", normalize_advantage=c.normalize_advantage)
    loss = WithAuxiliary(vtrace, terms(c))
    hyper = Hyperparameters(**first_values(c, envs))
    begin = initial(rule.priors, c.agents, crew.seed) if c.evolve else ()
    spec = LearnerSpec(policy, loss, update, hyper, crew.total(envs, c.budget), "constant", initial=begin)
    rollouts = RolloutQueue.of(envs, net, c.unroll, c.actors, 2, c.agents, apart=True)
    params = AgentParams(net, c.agents, c.actors, update.optim.statistics if rule.every else None)
    league = League(c.agents, c.actors, envs.spec.sides, c.players, varied=rule.varied)
    actor = crew.add(act_at_table, n=c.actors, name="act", on_loss="replace", envs=envs, policy=policy)
    actor.lag, actor.out, actor.params, actor.league = c.lag if c.lag >= 0 else None, rollouts, params, league
    learner = crew.add(learn_agents, n=n, name="learn", learner=True, serves=c.agents, spec=spec, selves=c.selves)
    learner.source, learner.params, learner.league = AgentBatches(rollouts, slots), params, league
    crew.add(referee, on_loss="replace", league=league, opponents=opponents, matches=c.matches, copies=rule)
    return System(envs, policy, loss.metrics, {"learners": n})
