"""What a row of a rollout has, and the slots of rollouts within one worker. Imports no torch."""

from __future__ import annotations

from typing import Protocol

from polyplay.common import tree
from polyplay.common.tree import Batch, Field, Spec

ROWS: Spec = {
    "reward": Field((), "float32"),
    "terminated": Field((), "bool"),
    "truncated": Field((), "bool"),
    "first": Field((), "bool"),
    "version": Field((), "int64"),
    "agent": Field((), "int32"),  # whose weights chose; 0, as the memory begins, where there is one agent
}


class EnvSpecLike(Protocol):
    @property
    def obs(self) -> Spec: ...
    @property
    def mask(self) -> Spec | None: ...
    @property
    def team_fields(self) -> Spec: ...


class EnvsLike(Protocol):
    @property
    def lanes(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def spec(self) -> EnvSpecLike: ...


class PolicyLike(Protocol):
    def spec(self) -> Spec: ...
    def state_spec(self) -> Spec: ...


def row_spec(obs: Spec, policy: Spec, mask: Spec | None = None, team: Spec | None = None) -> Spec:
    """Fields of a row and lane: what arrives (obs, …, and where the environment has them the mask of legal actions and
    what rows say of a team), what the policy said (action, logp, value), and its version.
    """
    return {"obs": obs, **({} if mask is None else {"mask": mask}), **ROWS, **(team or {}), **policy}


def rows_of(spec: EnvSpecLike, policy: Spec) -> Spec:
    """The same for environments."""
    return row_spec(spec.obs, policy, spec.mask, spec.team_fields)


class RolloutSlots:
    """The slots of a worker that acts and learns in turn: it fills them, learns from them, and fills them again."""

    committed = 0  # rollouts given away before
    window = 0  # only the rollout has the state before it

    def __init__(self, rows: Spec, state: Spec, T: int, lanes: int, slots: int):
        self.T, self.lanes, self.slots = T, lanes, slots
        self.rows: Batch = tree.zeros(rows, (slots, T + 1, lanes))
        self.state: Batch = tree.zeros(state, (slots, lanes))
        self._turn = 0

    def slot(self) -> int:
        self._turn += 1
        return (self._turn - 1) % self.slots
