"""One Gymnasium environment and its rows on a pool's board.

A lane that is ordered to step after `terminated | truncated` is reset instead: that row is the first of its next
episode. One that raises is closed; the pool counts that, and orders it again: it is built and reset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import gymnasium
import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs import masks, rules, spaces
from polyplay.envs.pool import CUT, Factory
from polyplay.envs.pools import copies, saved_state
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import build_env, inspect
from polyplay.envs.pools.turn import START, LaneJob, Unbuilt, check_generator, unit_seed


class Lane:
    """One environment and its rows on the board."""

    def __init__(self, job: LaneJob, make: Factory, board: SharedRows, lane: int, allow: Callable[[float], None]):
        self.job, self.make, self.board, self.lane, self.allow = job, make, board, lane, allow
        self.who = f"{job.title}, lane {job.lane + lane}"
        self.env: gymnasium.Env | None = None
        self.over = True  # reset at the next turn
        self.cut = False  # the next row begins an episode of the same game
        self.seeded = False
        self.last: Tree = None
        self.stage = "build"  # the rule that an exception breaks now
        self.remark, self.remarked = "", False  # about a row that is good
        self.told = False  # that a time limit is not told as one

    def advance(self) -> None:
        """Make the lane's next row. Raises Unbuilt, SpaceViolation, and what the environment raises."""
        if self.over:
            self._reset()
            return
        self.allow(self.job.step_timeout)
        action = tree.at(self.board.action, self.lane)
        self.last, self.stage = action, "step"
        result = self.env.step(self.act(action))  # type: ignore[union-attr]
        obs, reward, terminated, truncated, info = rules.read_step(result)
        self.show(obs, info, terminated, truncated)
        if terminated and not self.told and (odd := rules.old_limit(terminated, truncated, info)):
            self.remark, self.remarked, self.told = f"{self.job.title}: {odd}", False, True
        first, cut = self.cut, isinstance(info, dict) and CUT in info
        self._flags(reward, terminated, truncated, first, cut)

    def show(self, obs: object, info: object, terminated: bool, truncated: bool) -> None:
        """Write an observation, and its mask, into the lane's row. Raises SpaceViolation."""
        last = terminated or truncated
        try:
            self.write(obs)
        except spaces.SpaceViolation as e:
            raise rules.final_observation_flaw(e, terminated) if last else e from None
        self.allowed(obs, info, last)

    def _reset(self) -> None:
        if self.env is None:
            self.prepare()
        self.allow(self.job.step_timeout)
        self.stage = "reset"
        seed = None if self.seeded else unit_seed(self)
        obs, info = rules.read_reset(self.env.reset(seed=seed))  # type: ignore[union-attr]
        if seed is not None:
            check_generator(self, self.env, seed)
        self.seeded = True
        self.show(obs, info, False, False)
        near = rules.check_contains(self.env.observation_space, obs)  # type: ignore[union-attr]
        self.remark = near and f"{self.job.title}: {near}"
        self._flags(0.0, False, False, True)

    def prepare(self) -> None:
        """Build the environment. Raises UserError, Unbuilt, SpaceViolation."""
        self.stage = "build"
        self.allow(max(START, self.job.step_timeout))
        try:
            env = self.env = build_env(self.make, self.job.title)
            copies.take(env, self, self.job.title)
        except UserError as e:
            if self.board.faults[self.lane] == 0:
                raise Unbuilt(str(e)) from e
            raise
        spec = inspect(env, self.job.title)
        if spec.obs != self.job.spec.obs or spec.action != self.job.spec.action:
            first, this = (f"{s.describe['observation']} / {s.describe['actions']}" for s in (self.job.spec, spec))
            raise spaces.SpaceViolation(f"declared {first} by the first environment, given {this} by this one")
        set_lane = getattr(env, "polyplay_lane", None)
        if callable(set_lane):  # an environment that needs its lane's number in the run
            set_lane(self.job.lane + self.lane)
        self.act = spaces.action_reader(env.action_space)
        shown = masks.without_mask(env.observation_space)
        self.write = spaces.observation_writer(shown, self.board.rows["obs"], self.lane)
        inside = shown is not env.observation_space
        method = None if inside else masks.mask_method(env)
        self.allowed = masks.mask_writer(spec.action, self.board.rows.get("mask"), self.lane, inside, method)

    def _flags(self, reward: float, terminated: bool, truncated: bool, first: bool, cut: bool = False) -> None:
        rows, lane = self.board.rows, self.lane
        self.over = terminated or truncated
        self.cut = cut and not self.over
        rows["reward"][lane] = reward
        rows["terminated"][lane], rows["truncated"][lane] = terminated or cut, truncated
        rows["first"][lane], rows["over"][lane] = first, self.over

    def save(self) -> Batch:
        """What decides this lane's future, without its row. Raises Unsaveable, and what the environment raises."""
        self.allow(self.job.step_timeout)
        env = {} if self.env is None else {"env": saved_state.save_env(self.env)}
        return {"over": np.array(self.over), "cut": np.array(self.cut), **env}

    def load(self, saved: Batch) -> None:
        """Go on from there; the lane was reset before. Raises the same."""
        self.allow(self.job.step_timeout)
        if self.env is None or "env" not in saved:
            self.close()
            return
        saved_state.load_env(self.env, saved["env"])
        self.over, self.cut = bool(saved["over"]), bool(saved["cut"])
        self.last = tree.at(self.board.action, self.lane)

    def close(self) -> None:
        """Close the environment, whatever it raises."""
        env, self.env = self.env, None
        copies.give_back(self)
        self.over, self.cut, self.seeded, self.last = True, False, False, None
        if env is not None:
            with contextlib.suppress(BaseException):
                env.close()
