"""What OpenAI Five's page takes for granted: its network, and what can be learnt of which windows."""

from __future__ import annotations

from typing import Any

from polyplay.buffers import RolloutQueue
from polyplay.buffers.experience import Experience
from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.envs.team_spirit import OWN_REWARD
from polyplay.learning import Hyperparameters
from polyplay.learning.optimiser import discount_of
from polyplay.nets import NetworkFactory

TEAMS = 2  # at a table: groups of an actor's lanes


def network(c: Any, envs: Envs) -> NetworkFactory:
    """Sets of units, an LSTM, and rewards that are shared in a team. Raises UserError: a game without teams, or whose
    rows do not say what to share.
    """
    spec = envs.spec
    if len(set(spec.sides)) != TEAMS:
        raise UserError(f"--env: {envs.title} given, which has {len(set(spec.sides))} teams; allowed: a game of two")
    shares = OWN_REWARD in spec.events
    if c.team_spirit and not shares:
        given = f"--team-spirit {c.team_spirit:g} given"
        raise UserError(f"{given}, but {envs.title} does not say rewards of heroes and of teams; allowed: 0")
    given = {"core": "lstm", "core_size": c.core_size, "init": "orthogonal", "inputs": c.inputs}
    given |= {"returns": discount_of(c.horizon, c.step_time), "rewards": spec.events if shares else ()}
    return NetworkFactory(c.network, spec, given)


def hyperparameters_of(c: Any) -> Hyperparameters:
    """What may change while the run goes on."""
    names = "learning_rate", "entropy_cost", "team_spirit", "horizon", "step_time"
    return Hyperparameters(**{name: getattr(c, name) for name in names})


def experience_of(c: Any, rollouts: RolloutQueue) -> Experience:
    """How windows are drawn. Raises UserError: what cannot be drawn so."""
    if c.unroll % c.window:
        raise UserError(f"--window {c.window} given, allowed: what divides --unroll {c.unroll}")
    if c.batch % c.learners:
        raise UserError(f"--batch {c.batch} given, allowed: a multiple of --learners {c.learners}")
    batch = c.batch // c.learners
    if batch > c.capacity:
        given = f"--batch {c.batch} of --learners {c.learners} takes {batch} windows of each"
        raise UserError(f"{given}, --capacity has {c.capacity}: raise it")
    came = c.actors * c.lanes // TEAMS * (c.unroll // c.window)  # in a round of which one team is a past self
    made = int(c.sample_reuse * came / c.batch)
    if c.lag >= 0 and (not c.sample_reuse or c.publish > made):
        given = f"--lag {c.lag} with --publish {c.publish}"
        fix = f"{given}: a round makes {made} updates at --sample-reuse {c.sample_reuse:g}"
        raise UserError(
            f"{fix}, so acting would wait for a version that never comes; allowed: at most {made}, and a reuse"
        )
    return Experience(rollouts, c.capacity, batch, c.sample_reuse, c.publish, c.staleness)
