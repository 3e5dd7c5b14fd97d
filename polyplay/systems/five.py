"""OpenAI Five (Berner et al. 2019, figure 2), with the paper's training system Rapid. One policy plays every hero. It
learns by playing against itself and against its past agents.

act × actors:  a table of two teams ─► forward pass ─► rollouts ─► RolloutQueue ─► learn × learners, each: buffer ─►
                 │    ▲          ▲                                                windows at random: PPO ─► AllReduce
   matches ◄─────┘    │          ├── Params, published every `publish` updates ◄──────────────────────────────┤
      └─► referee ────┤          └── past agents, files of weights ◄── every `snapshot_every` updates ────────┘
                      └── which past agent joins the table at times: by quality, which falls when it is beaten
rater:  newest Params against bots ─► TrueSkill
"""

from dataclasses import dataclass
from typing import Any, Literal

from polyplay.acting import act_at_table
from polyplay.buffers import RolloutQueue
from polyplay.buffers.league import League
from polyplay.core.errors import Count, Fraction, Lag, ManyFrames, NonNegative, Positive, SomeWorkers, Whole
from polyplay.learning import PPO, Hyperparameters, LearnerSpec, Windows, learn
from polyplay.learning.agents import WINDOW_METRICS
from polyplay.population.judge import RATING_METRIC, rated_games, rater
from polyplay.population.referee import Opponents, referee
from polyplay.systems import System
from polyplay.systems import _teams as teams
from polyplay.weights import AgentParams, OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's run Rerun (table 2). The game is part of Polyplay, since Dota 2 has no open interface."""

    env: str = "arena:moba"  # a game of two teams, whose heroes are seats
    learners: SomeWorkers = 512  # learners (the paper's optimizers), whose gradients are averaged
    actors: SomeWorkers = 1  # acting workers per learner, each with two teams
    lanes: Count = 1000  # heroes in matches (num-envs) of each actor
    lag: Lag = -1  # rollouts that an actor may be ahead of learning: 0 synchronous, 1 overlapping, -1 limited by slots
    unroll: Count = 256  # agent steps per lane in a rollout; advantages use the whole rollout
    window: Count = 16  # agent steps in a window, which starts from the recurrent state stored while acting
    batch: Count = 120  # windows per learner in an update
    capacity: Count = 4096  # newest windows that each learner draws from
    sample_reuse: NonNegative = 1.0  # windows drawn per window received (0: no limit)
    publish: Count = 32  # updates between weight publications to actors
    staleness: Whole = 0  # delay actors by this many weight versions, for experiments
    opponents: str = "past:0.2"  # opponents of the agent: latest (itself), or past:P (past agents, probability P)
    games_per_matchup: Count = 32  # matches per actor between opponent draws
    snapshot_every: Count = 320  # updates per past agent
    rate_every: Whole = 640  # updates between ratings against bots (0: off)
    team_spirit: Fraction = 0.3  # τ: share of the team's mean in a hero's reward
    horizon: Positive = 180.0  # horizon H in seconds: the discount is 1 − --step-time / H
    step_time: Positive = 4 / 30  # seconds per agent step
    lam: Fraction = 0.95  # λ of generalized advantage estimation
    clip_range: Positive = 0.2  # ε: the ratio π/μ is clipped to 1 ± ε
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    learning_rate: Positive = 5e-5  # learning rate, constant
    optimizer: str = "adam_clipped"  # optimizer: Adam on gradients within ±5·√v; others: docs/reference/optimizers.md
    network: str = "five"  # network: five (sets of units), or one of other systems
    core_size: Count = 4096  # width of the LSTM
    inputs: Literal["raw", "normalize"] = "normalize"  # how observations are scaled; normalize: scale and clip numbers
    actions: Literal["scale", "clip"] = "scale"  # how real actions meet their bounds: scale −1 … 1 to them, or clip
    frames: ManyFrames = 1_700_000_000_000  # agent steps over all heroes, unless --steps is given


def build(c: Config, crew: Crew) -> System:
    teams.check_windows(c)  # refuses windows that can't be cut or drawn, and waits without end
    actors = c.actors * c.learners
    envs = teams.table_envs(c, crew, players=2, actors=actors)  # one actor's environments, half of the lanes per team
    policy = teams.five_network(c, envs)  # sets of units, an LSTM; the network mixes rewards by team_spirit
    loss = PPO(
        1.0 - c.step_time / c.horizon, c.lam, c.clip_range, anneal_clip=False, normalize_advantage=True,
        reward="scale",  # rewards are divided by the size of returns
    )  # fmt: skip
    update = averaged(OptimizerSpec(c.optimizer), c.learners)
    # horizon and step_time are hyperparameters so that --change can move the discount during a run
    hyper = Hyperparameters(
        learning_rate=c.learning_rate, entropy_cost=c.entropy_cost,
        team_spirit=c.team_spirit, horizon=c.horizon, step_time=c.step_time,
    )  # fmt: skip
    spec = LearnerSpec(policy, loss, update, hyper, crew.agent_steps(envs, c.frames))
    network = policy()  # only for its shapes: each worker makes its own network
    # the league holds the agent, its past agents, and the team of each seat in a match; the league says which two of
    # these agents play in each actor's matches
    league = League(agents=1, actors=actors, teams=envs.spec.sides, seated=2)
    params = AgentParams(network, 1, readers=actors)  # the published weights
    # a team that plays the newest weights fills one slot while another is read; a past agent fills no slot
    queue = RolloutQueue.of(envs, network, c.unroll, actors, slots=2, readers=c.learners, window=c.window)
    # each learner keeps the newest windows of its actors' rollouts, and draws batches from these at random; the first
    # learner publishes weights and writes past agents
    windows = Windows(
        queue, c.capacity, c.batch, sample_reuse=c.sample_reuse, publish_every=c.publish, staleness=c.staleness,
        league=league, snapshot_every=c.snapshot_every,
    )  # fmt: skip
    # a lost actor or referee is replaced
    crew.add(
        act_at_table, n=actors, name="act", if_lost="replace", lag=c.lag,
        envs=envs, policy=policy, out=queue, params=params, league=league,
    )  # fmt: skip
    crew.add(learn, n=c.learners, source=windows, spec=spec, publish=params)
    # the referee rates players by their matches, and draws the agent's opponent for each actor
    opponents = Opponents.parse(c.opponents)
    crew.add(referee, if_lost="replace", rates=league, opponents=opponents, matches=c.games_per_matchup)
    if c.rate_every:
        # 64 matches against the game's scripted bots rate a version of the weights; the paper has 83 reference agents
        rated: Any = {"games": rated_games(envs), "references": tuple(envs.spec.bots), "matches": 64}
        crew.add(rater, if_lost="replace", policy=policy, params=params, every=c.rate_every, **rated)
    return System(envs, spec, (*WINDOW_METRICS, RATING_METRIC))
