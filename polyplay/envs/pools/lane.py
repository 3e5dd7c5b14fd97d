"""One Gymnasium environment and its rows on a pool's board.

A lane that is ordered to step after `terminated | truncated` is reset instead: that row is the first of its next
episode. One that raises is closed; the pool counts that, and orders it again: it is built and reset.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs import masks, rules, spaces
from polyplay.envs.pool import CUT, EnvSpec, Factory, lane_seeds
from polyplay.envs.pools import saved_state
from polyplay.envs.pools.board import BROKEN, FAILED, NOTE, ROUNDED, UNBUILT, SharedRows
from polyplay.envs.pools.build import build_env, inspect, one_line

HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the room envs/
START = 60.0  # seconds that starting a process and building an environment may take at least


@dataclass(frozen=True)
class LaneJob:
    """What a worker needs; `maker` is cloudpickled (name, options)."""

    maker: bytes
    title: str
    spec: EnvSpec
    seed: int
    lane: int  # number of the pool's first lane in the run
    step_timeout: float


class Unbuilt(Exception):
    """An environment that could not be built at first: the user's mistake."""


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

    def turn(self) -> int:
        """Make the lane's next row: its number, or `~number` with a note on the board. An environment that raises is
        closed: the next turn begins it anew.
        """
        try:
            self._advance()
        except Unbuilt as e:
            return self._note(UNBUILT, str(e))
        except spaces.SpaceViolation as e:
            return self._note(BROKEN, f"{self.who}: {rules.rule_message(e)}")
        except BaseException as e:
            text = self._report(e)
            self.close()
            return self._note(FAILED, text)
        if self.remark and not self.remarked:
            self.remarked = True
            return self._note(ROUNDED, self.remark)
        return self.lane

    def _note(self, kind: int, text: str) -> int:
        self.board.note(self.lane, kind, text)
        return ~self.lane

    def _advance(self) -> None:
        if self.over:
            self._reset()
            return
        self.allow(self.job.step_timeout)
        action = tree.at(self.board.action, self.lane)
        self.last, self.stage = action, "step"
        result = self.env.step(self.act(action))  # type: ignore[union-attr]
        obs, reward, terminated, truncated, info = rules.read_step(result)
        self.show(obs, info, terminated, truncated)
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
        seed = None if self.seeded else self.seed()
        obs, info = rules.read_reset(self.env.reset(seed=seed))  # type: ignore[union-attr]
        if seed is not None:
            self._check_generator(seed)
        self.seeded = True
        self.show(obs, info, False, False)
        near = rules.check_contains(self.env.observation_space, obs)  # type: ignore[union-attr]
        self.remark = near and f"{self.job.title}: {near}"
        self._flags(0.0, False, False, True)

    def _check_generator(self, seed: int) -> None:
        """Raises SpaceViolation: another lane of the pool, given another seed, draws from the same generator."""
        source = self.board.seeds[self.lane] = rules.rng_of(self.env)
        twins = np.flatnonzero(self.board.seeds == source) if source not in (-1, seed) else ()
        if len(twins) > 1:
            a, b = (self.job.lane + int(i) for i in twins[:2])
            text = f"lanes {a} and {b} got different seeds but draw from the same generator"
            raise spaces.SpaceViolation(f"{text}, of seed {source}" if source < 2**62 else text, "seed")

    def prepare(self) -> None:
        """Build the environment. Raises UserError, Unbuilt, SpaceViolation."""
        self.stage = "build"
        self.allow(max(START, self.job.step_timeout))
        try:
            env = self.env = build_env(self.make, self.job.title)
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
        self.allowed = masks.mask_writer(spec.action, self.board.rows.get("mask"), self.lane, inside)

    def seed(self) -> int:
        """Of the lane's first reset; another one after every restart and return, so that it doesn't run into the same
        fault, or play the same games.
        """
        again = int(self.board.faults[self.lane] + 1_000 * self.board.joins[self.lane])
        return int(lane_seeds(self.job.seed + 1_000_003 * again, self.job.lane + self.lane, 1)[0])

    def _flags(self, reward: float, terminated: bool, truncated: bool, first: bool, cut: bool = False) -> None:
        rows, lane = self.board.rows, self.lane
        self.over = terminated or truncated
        self.cut = cut and not self.over
        rows["reward"][lane] = reward
        rows["terminated"][lane], rows["truncated"][lane] = terminated or cut, truncated
        rows["first"][lane], rows["over"][lane] = first, self.over

    def _report(self, e: BaseException) -> str:
        """One clear line, then the end of the environment's own traceback."""
        e = e.__cause__ if isinstance(e, UserError) and e.__cause__ is not None else e
        frames = traceback.extract_tb(e.__traceback__)
        own = [f for f in frames if not f.filename.startswith(HERE)] or frames
        trace = "".join(traceback.format_list(own[-12:]))[-(NOTE - 1024) :]
        last = None if self.last is None else tree.map(lambda a: np.asarray(a).tolist(), self.last)
        head = f"{self.who} (seed {self.seed()}, last action {last}): "
        end = "".join(traceback.format_exception_only(e))[:500].strip()
        text = (head + one_line(e))[:480]
        return f"{text if rules.rule_of(text) else f'{text} {rules.rule_suffix(self.stage)}'}\n{trace}{end}"

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
        self.over, self.cut, self.seeded, self.last = True, False, False, None
        if env is not None:
            with contextlib.suppress(BaseException):
                env.close()
