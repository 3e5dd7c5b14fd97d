"""A user's Gymnasium vector environment as a Pool: it steps all its lanes at once, in the caller's thread.

NEXT_STEP is the project's row convention as it is. With DISABLED we reset: where some lanes ended, they are reset, all
are stepped (a lane that ended must not be stepped before), and they are reset again, so that the row that the others
got by the step is theirs by a reset. SAME_STEP: see vector_same_step.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import ArrayLike

from polyplay.common import tree
from polyplay.common.errors import EnvFailure, UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs import rules, spaces
from polyplay.envs.masks import KEY
from polyplay.envs.pool import Envs, lane_seeds
from polyplay.envs.pools import copies
from polyplay.envs.pools.base import BasePool
from polyplay.envs.pools.build import factory, one_line
from polyplay.envs.pools.global_random import GlobalGenerators, seed_torch
from polyplay.envs.pools.surroundings import Surroundings
from polyplay.envs.pools.vector_modes import autoreset_mode, build_vector, mask_note
from polyplay.envs.pools.vector_rows import action_writer, lane_flags, observation_reader
from polyplay.envs.pools.vector_same_step import BegunEpisodes


class VectorLanes:
    """One vector environment, and the rows of its lanes: views of the pool's."""

    def __init__(self, env: VectorEnv, rows: Batch, title: str, lane: int):
        self.env, self.rows, self.n = env, rows, env.num_envs
        self.title = title
        self.who = f"{title}, lanes {lane}–{lane + self.n - 1}"
        self.resets, self.remark = autoreset_mode(env) is AutoresetMode.DISABLED, ""
        self.read = observation_reader(env.single_observation_space, rows["obs"], self.n)
        self.act = action_writer(env.single_action_space, self.n)
        again = autoreset_mode(env) is AutoresetMode.SAME_STEP
        self.begun = BegunEpisodes(env, rows["obs"], title, self.read) if again else None

    def begin(self, seeds: list[int]) -> None:
        """The first reset: a seed per lane, or one for all where it takes no list. Raises EnvFailure."""
        with self._failing("reset"):
            try:
                obs, info = self.env.reset(seed=seeds)  # type: ignore[arg-type]
            except Exception:
                obs, info = self.env.reset(seed=seeds[0])
            if KEY in info:
                raise mask_note(self.title)
            self.read(obs, slice(None))
            single = self.env.single_observation_space
            for i, one in enumerate(iterate(batch_space(single, self.n), obs)):
                if near := rules.check_contains(single, one, f"lane {i}"):
                    self.remark = f"{self.title}: {near}"
        self._flags(np.ones(self.n, bool))

    def step(self, action: Tree) -> None:
        """Every lane's next row. Raises EnvFailure."""
        ended = self.rows["over"].copy()
        if self.begun is not None:
            with self._failing("step"):
                return self._flags(ended, *self.begun.step(self.act(action), ended))
        reset = self.resets and bool(ended.any())
        with self._failing("step"):
            if reset:
                obs = self._reset(ended)
            if reset and ended.all():
                self.read(obs, slice(None))
                return self._flags(ended)
            obs, reward, terminated, truncated, _ = self.env.step(self.act(action))
            self.read(obs, slice(None))
            flags = lane_flags(self.n, reward, terminated, truncated)
            if reset:
                self.read(self._reset(ended), ended)
                flags[1][ended] = flags[2][ended] = False
        self._flags(ended, *flags)

    def _reset(self, mask: np.ndarray) -> Tree:
        return self.env.reset(options={"reset_mask": mask.copy()})[0]

    def _flags(
        self, first: np.ndarray, reward: ArrayLike = 0.0, terminated: ArrayLike = False, truncated: ArrayLike = False
    ) -> None:
        rows = self.rows
        rows["reward"][:] = np.where(first, 0.0, reward)
        rows["terminated"][:], rows["truncated"][:], rows["first"][:] = terminated, truncated, first
        np.logical_or(terminated, truncated, out=rows["over"])

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except spaces.SpaceViolation as e:
            raise EnvFailure(f"{self.who}: {rules.rule_message(e)}") from None
        except (Exception, SystemExit) as e:
            head = f"{self.who}: {what} failed: {one_line(e)}; a vector environment's lanes can't be restarted"
            raise EnvFailure(f"{head}\n{traceback.format_exc()[-3000:].rstrip()}") from None


class VectorPool(BasePool):
    """A Pool over vector environments, one per group. One that raises ends it; one that hangs hangs."""

    unsaved = "vector environments cannot be saved"

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        self._groups, self._owners = list[VectorLanes](), list[object]()
        seeds, width = lane_seeds(seed, lane, envs.lanes).tolist(), self._turns.width
        self._random, self._around = GlobalGenerators(seeds[0]), Surroundings()
        self._random.enter()
        try:
            with self._around:
                for start in range(0, envs.lanes, width):
                    self._begin(envs, slice(start, start + width), seeds, lane)
        except BaseException:
            self.close()
            raise
        self._turns.back(range(envs.lanes))

    def _begin(self, envs: Envs, at: slice, seeds: list[int], lane: int) -> None:
        """Make the vector environment of one group, and reset it."""
        env = self._one(envs, self._turns.width)
        copies.take(env, (owner := object()), envs.title)
        self._owners.append(owner)
        self._groups.append(VectorLanes(env, tree.at(self._rows, at), envs.title, lane + at.start))
        self._groups[-1].begin(seeds[at])
        self.remarks = self.remarks or [r for r in [self._groups[-1].remark] if r]

    def _one(self, envs: Envs, width: int) -> VectorEnv:
        try:
            env = build_vector(factory(envs.name, envs.options), width)
            seed_torch()
        except UserError:
            raise
        except (Exception, SystemExit) as e:
            raise UserError(f"{envs.title}: could not be built: {one_line(e)}") from e
        if not isinstance(env, VectorEnv) or env.num_envs != width:
            given = getattr(env, "num_envs", "none")
            raise UserError(f"{envs.title}: asked for {width} environments it made {given}")
        return env

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        self._random.enter()
        with self._around:
            self._groups[int(numbers[0]) // self._turns.width].step(action)

    def close(self) -> None:
        """Close every vector environment."""
        super().close()
        while self._groups:
            with self._around, contextlib.suppress(Exception):
                self._groups.pop().env.close()
        while self._owners:
            copies.give_back(self._owners.pop())
        self._random.leave()
