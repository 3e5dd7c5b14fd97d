"""What OpenAI Five's page takes for granted: its network, and how windows are drawn."""

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
from polyplay.population.matchmaking import LATEST

TEAMS = 2  # at a table: groups of an actor's lanes
BOUND = 5.0  # of normalised observations
MATCHES = 64  # that a version is rated by


def network(c: Any, envs: Envs) -> NetworkFactory:
    """Sets of units, an LSTM, and rewards that are shared in a team. Raises UserError: a game without teams, or whose
    rows do not say what to share.
    """
    spec = envs.spec
    if len(set(spec.sides)) != TEAMS:
        raise UserError(f"--env: {envs.title} given, which has {len(set(spec.sides))} teams; allowed: a game of two")
    shares = OWN_REWARD in spec.events
    if c.team_spirit and not shares:
        spirit = f"--team-spirit {c.team_spirit:g} given"
        raise UserError(f"{spirit}, but {envs.title} does not say rewards of heroes and of teams; allowed: 0")
    size, rewards = discount_of(c.horizon, c.step_time), spec.events if shares else ()
    given: dict[str, Any] = {"core": "lstm", "core_size": c.core_size, "init": "torch", "inputs": c.inputs}
    given["actions"] = c.actions
    return NetworkFactory(c.network, spec, {**given, "bound": BOUND, "returns": size, "rewards": rewards})


def hyperparameters_of(c: Any) -> Hyperparameters:
    """What may change while the run goes on."""
    names = "learning_rate", "entropy_cost", "team_spirit", "horizon", "step_time"
    return Hyperparameters(**{name: getattr(c, name) for name in names})


def check_windows(c: Any) -> None:
    """Raises UserError: windows that cannot be cut, drawn or waited for so."""
    if c.unroll % c.window:
        raise UserError(f"--window {c.window} given, allowed: what divides --unroll {c.unroll}")
    if c.batch > c.capacity:
        raise UserError(f"--batch {c.batch} given, allowed: at most the {c.capacity} windows of --capacity")
    lanes = c.lanes if c.opponents == LATEST else c.lanes // TEAMS  # the other team may be a past self
    came = c.actors * lanes * (c.unroll // c.window)  # in a round
    made = int(c.sample_reuse * came / c.batch)
    if c.lag >= 0 and (not c.sample_reuse or c.publish > made):
        given = f"--lag {c.lag} with --publish {c.publish} and --sample-reuse {c.sample_reuse:g}"
        raise UserError(f"{given}: a round makes {made} updates, so acting would wait for weights that never come")


def experience_of(c: Any, rollouts: RolloutQueue) -> Experience:
    """How windows are drawn."""
    return Experience(rollouts, c.capacity, c.batch, c.sample_reuse, c.publish, c.staleness)
