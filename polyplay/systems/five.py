"""OpenAI Five (Berner et al. 2019, figure 2): Rapid. One policy plays itself and its past agents, each hero by itself.

act × actors:  a table of two teams ─► forward pass ─► rollouts ─► RolloutQueue ─► learn × learners, each: buffer ─►
                 │    ▲          ▲                                                windows at random: PPO ─► AllReduce
   matches ◄─────┘    │          └── Params, published every so many updates ◄───────────────┴─► past agents ─┐
      └─► referee ────┴─► whether a past agent sits at the table, by quality ◄──────────────────────────────────┘
rater:  newest Params against bots ─► TrueSkill
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from polyplay.buffers import RolloutQueue
from polyplay.buffers.league import League
from polyplay.core.errors import Count, Fraction, Lag, ManyFrames, NonNegative, Positive, SomeWorkers, Whole
from polyplay.learning import PPO, Hyperparameters, LearnerSpec, Windows, learn
from polyplay.learning.agents import METRICS, discount_of
from polyplay.population.judge import METRIC, rated_games, rater
from polyplay.systems import System, described
from polyplay.systems import _teams as teams
from polyplay.weights import AgentParams, OptimizerSpec, averaged
from polyplay.workers.crew import Crew


@dataclass(frozen=True)
class Config:
    """Defaults: the paper's Rerun (table 2), on a game of ours: its Dota 2 can't be played any more."""

    env: str = "arena:moba"  # a game of two teams, whose heroes are seats
    learners: SomeWorkers = 512  # optimizers, whose gradients are averaged
    actors: SomeWorkers = 1  # acting workers for each learner: forward passes, and games at a table of two teams
    lanes: Count = 1000  # heroes in matches (num-envs) of each actor
    lag: Lag = -1  # rounds that acting may be ahead of learning: 0 synchronous, 1 overlapping, -1 unlimited
    unroll: Count = 256  # agent steps per lane in a rollout, which give advantages their context
    window: Count = 16  # agent steps that are learnt from at once, from the state that acting had there
    batch: Count = 120  # windows of each learner in an update
    capacity: Count = 4096  # newest windows that each learner draws from
    sample_reuse: NonNegative = 1.0  # windows drawn for each that came (0: as many as there is time for)
    publish: Count = 32  # updates from one version of the weights that acts to the next
    staleness: Whole = 0  # versions that acting is kept behind, for experiments
    opponents: str = "past:0.2"  # who plays against it: latest (itself), or past:P (past agents, probability P)
    games_per_matchup: Count = 32  # that a table plays before its opponent is drawn anew
    snapshot_every: Count = 320  # updates from one past agent to the next
    rate_every: Whole = 640  # updates from one version that is rated against bots to the next (0: none is)
    team_spirit: Fraction = 0.3  # τ: how much of a hero's reward is the mean of its team's
    horizon: Positive = 180.0  # seconds H: the discount is 1 − --step-time / H
    step_time: Positive = 4 / 30  # seconds of an agent step
    lam: Fraction = 0.95  # λ of generalized advantage estimation
    clip_range: Positive = 0.2  # ε: the ratio π/μ is clipped to 1 ± ε
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    learning_rate: Positive = 5e-5  # Adam's; each number of a gradient is clipped to 5 of its own deviations
    network: str = "five"  # five (sets of units), or as other systems
    core_size: Count = 4096  # of the LSTM
    inputs: Literal["raw", "normalize"] = "normalize"  # normalize: scale real numbers, and clip them
    actions: Literal["scale", "clip"] = "scale"  # real actions: −1 … 1 is scaled to their bounds, or clip to them
    frames: ManyFrames = 1_700_000_000_000  # heroes' steps to train for, unless --steps is given


PRESETS, ROW = described(Config)


def build(c: Config, crew: Crew) -> System:
    teams.check_windows(c)
    n = c.actors * c.learners
    envs = teams.table_envs(c, crew, teams.TEAMS, n)
    policy, bots = teams.five_network(c, envs), tuple(envs.spec.bots)
    net, games = policy(), rated_games(envs)
    loss = PPO(discount_of(c.horizon, c.step_time), c.lam, c.clip_range, anneal_clip=False)
    loss = replace(loss, reward="scale", normalize_advantage=True)
    update = averaged(OptimizerSpec("adam_clipped"), c.learners, net)
    hyper = Hyperparameters(**{name: getattr(c, name) for name in teams.HYPER})
    spec = LearnerSpec(policy, loss, update, hyper, crew.total(envs, c.frames))
    league, params = League(1, n, envs.spec.sides, teams.TEAMS), AgentParams(net, 1, n)
    rollouts = RolloutQueue.of(envs, net, c.unroll, n, 2, c.learners, window=c.window)
    teams.add_actors(c, crew, n, envs=envs, policy=policy, out=rollouts, params=params, league=league)
    drawn = c.capacity, c.batch, c.sample_reuse, c.publish, c.staleness
    windows = Windows(rollouts, *drawn, league, c.snapshot_every)
    crew.add(learn, n=c.learners, learner=True, source=windows, spec=spec, publish=params)
    teams.add_referee(c, crew, league)
    if c.rate_every:
        rated: Any = {"games": games, "references": bots, "every": c.rate_every, "matches": teams.MATCHES}
        crew.add(rater, on_loss="replace", policy=policy, params=params, **rated)
    return System(envs, policy, (*loss.metrics, *METRICS, METRIC), {})
