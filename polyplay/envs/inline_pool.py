"""Pools in the caller's thread: single and vector environments.

Of vector environments NEXT_STEP is the project's row convention as it is. With DISABLED we reset: where some lanes
ended, they are reset, all are stepped (a lane that ended must not be stepped before), and they are reset again, so that
the row that the others got by the step is theirs by a reset. SAME_STEP: see BegunEpisodes.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import ArrayLike

from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs import rules, spaces
from polyplay.envs.base_pool import BasePool, UnitPool
from polyplay.envs.build import autoreset_mode, build_vector, factory, mask_note, one_line, resets_lanes
from polyplay.envs.lane import LaneJob, Unit, lane_seed, make_unit, take_turn
from polyplay.envs.masks import KEY
from polyplay.envs.pool import Envs, Lanes, lane_seeds
from polyplay.envs.process_state import GlobalGenerators, Surroundings, seed_torch
from polyplay.envs.saved_state import reason_of
from polyplay.envs.spaces import inner_path


class InlinePool(UnitPool):
    """A Pool whose lanes step in send(). An environment that raises is restarted as in a process; one
    that hangs hangs.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs, seed, lane)
        self._asynchronous = self.seating is not None
        job = LaneJob(b"", envs.title, self.spec, seed, lane, envs.step_timeout)
        self._random, self._units = GlobalGenerators(lane_seed(self._board, job, 0)), dict[int, Unit]()
        self._around = Surroundings()
        numbers = self._orders.numbers.tolist()
        try:
            self._random.enter()
            with self._around:
                make = factory(envs.name, envs.options)  # it may import a module, which may draw
                self._units |= {i: make_unit(job, make, self._board, i) for i in numbers}
                self._turn(numbers)
        except BaseException:
            self.close()
            raise
        self._ready.back(range(envs.lanes))

    def _turn(self, numbers: Iterable[int]) -> None:
        self._random.enter()
        for i in numbers:
            lanes = self._orders.lanes([i])
            while take_turn(self._units[i]) < 0 and self._faults.of_lane(i, lanes):
                pass
            self._faults.steps += len(lanes)

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._board.action, numbers, action)
        ordered = self._orders.complete(numbers).tolist()
        with self._around:
            self._turn(ordered)
        if self._asynchronous:
            self._ready.back(self._orders.lanes(ordered))

    def picture(self, lane: int) -> tuple[np.ndarray, float]:
        """The image that a lane's environment renders, and its frames per second."""
        first = lane if self.seating is None else self.seating.own[self.seating.match[lane], 0]
        env = self._units[int(first)].env
        if env is None:
            raise RuntimeError(f"lane {lane} has no environment now")
        return env.render(), float(env.metadata.get("render_fps") or 30)

    def close(self) -> None:
        """Close every environment."""
        super().close()
        with self._around:
            for unit in self._units.values():
                unit.close()
        self._random.leave()

    def state(self) -> Batch | None:
        """See Pool."""
        self._check_open()
        self._random.enter()
        try:
            lanes = {str(i): unit.save() for i, unit in self._units.items()}
            random = self._random.save()
        except Exception as e:
            self.unsaved = reason_of(e)
            return None
        return {**self._saved(lanes), "random": random}

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError: an environment that does not take its state back."""
        self._load_seating(state)
        self._random.enter()
        for i, unit in self._units.items():
            try:
                unit.load(state["lanes"][str(i)])
            except Exception as e:
                raise UserError(f"{unit.who}: cannot go on from what was saved: {reason_of(e)}") from e
        self._load_rows(state)
        if "random" in state:  # not of earlier versions
            self._random.load(state["random"])


Reader = Callable[[Any, Lanes], None]


def observation_reader(space: gym.Space, into: Tree, n: int, path: str = "") -> Reader:
    """A function that checks a batch of observations and copies it into `into`, which it may do for some lanes only.
    It raises SpaceViolation.
    """
    if isinstance(space, gym.Dict):
        inner = {k: observation_reader(s, into[k], n, inner_path(path, k)) for k, s in space.spaces.items()}

        def by_key(obs: Any, which: Lanes) -> None:
            if not hasattr(obs, "keys") or not inner.keys() <= obs.keys():
                raise spaces.SpaceViolation(f"declared keys {list(inner)}, given {type(obs).__name__} {list(obs)[:8]}")
            for key, read in inner.items():
                read(obs[key], which)

        return by_key
    if isinstance(space, gym.Box):

        def whole(obs: Any, which: Lanes) -> None:
            obs = np.asarray(obs)
            spaces.check_array(obs, (n, *space.shape), space.dtype, path)
            into[which] = obs[which]

        return whole
    writers, batch = [spaces.observation_writer(space, into, i, path) for i in range(n)], batch_space(space, n)

    def each(obs: Any, which: Lanes) -> None:
        for i, one in enumerate(iterate(batch, obs)):
            if isinstance(which, slice) or which[i]:
                writers[i](one)

    return each


def action_writer(space: gym.Space, n: int) -> Callable[[Tree], Tree]:
    """From a batch of the pool's actions to what the vector environment's `step` takes."""
    if isinstance(space, gym.Discrete):
        return lambda a: (a + space.start).astype(space.dtype)
    one = spaces.action_reader(space)
    if not isinstance(space, gym.Dict | gym.Tuple):
        return one  # bounds and first numbers are every lane's

    def several(a: Tree) -> Tree:
        rows = [one(tree.at(a, i)) for i in range(n)]
        return concatenate(space, rows, create_empty_array(space, n))  # type: ignore[arg-type]

    return several


def lane_flags(n: int, *given: ArrayLike) -> list[np.ndarray]:
    """reward, terminated and truncated of `n` lanes, as copies. Raises ValueError: they are of others."""
    flags = [np.array(x) for x in given]
    if any(x.shape != (n,) for x in flags):
        shapes = ", ".join(str(list(x.shape)) for x in flags)
        raise ValueError(f"reward, terminated, truncated must be [{n}], given {shapes}")
    return flags


# Vector environments that reset within the step that ends an episode (SAME_STEP), as the project's rows.
#
# The last row of an episode has `info["final_obs"]`, the first row of the next what that step returned. Where all lanes
# ended at once nothing is stepped between the two. Else the others go on, and a vector environment steps all its lanes:
# one that ended makes one step of its next episode unseen, with the action that belongs to nothing. Its reward is added
# to the next one, so that returns are whole. Gymnasium's own can reset some lanes; there that step is undone by another
# reset.


FINAL = "final_obs", "final_observation"  # keys of info; the second is of older ones


class BegunEpisodes:
    """The episodes that began within a step, until their first rows are shown. obs: the observations of all lanes'
    rows; read: what checks a batch and copies it there.
    """

    def __init__(self, env: VectorEnv, obs: Tree, title: str, read: Reader):
        self.env, self.obs, self.title, self.read, self.n = env, obs, title, read, env.num_envs
        space = env.single_observation_space
        self.undone = resets_lanes(env)
        self.first = tree.map(np.zeros_like, obs)  # of the lanes that ended
        self.keep = observation_reader(space, self.first, self.n)
        self.write = [spaces.observation_writer(space, obs, i) for i in range(self.n)]
        self.unseen = np.zeros(self.n)  # rewards

    def step(self, action: Tree, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every lane's next observation, where lanes ended the first of their next episode; reward, terminated and
        truncated of the others. Raises UserError: an episode's last observation is lost.
        """
        if ended.all():
            self._show(ended)
            return np.zeros(self.n), ~ended, ~ended
        obs, *flags, info = self.env.step(action)
        reward, terminated, truncated = lane_flags(self.n, *flags)
        over = (terminated | truncated).astype(bool)
        self.keep(obs, over)
        self.read(obs, ~ended & ~over)
        self._last_rows(info, over & ~ended)
        if self.undone and ended.any():
            self.read(self.env.reset(options={"reset_mask": ended.copy()})[0], ended)
        elif ended.any():
            self._show(ended)
        total = reward + self.unseen
        self.unseen = np.where(ended & ~over & (not self.undone), reward, 0.0)
        return total, terminated & ~ended, truncated & ~ended

    def _show(self, lanes: np.ndarray) -> None:
        for (_, row), (_, first) in zip(tree.leaves(self.obs), tree.leaves(self.first), strict=True):
            row[lanes] = first[lanes]

    def _last_rows(self, info: Mapping[str, Any], lanes: np.ndarray) -> None:
        """The last observations of the episodes of these lanes: one for each, or a batch of all."""
        if not lanes.any():
            return
        last = next((info[key] for key in FINAL if key in info), None)
        alone = isinstance(last, list | tuple) or (isinstance(last, np.ndarray) and last.dtype == object)
        lost = [int(i) for i in np.flatnonzero(lanes) if last is None or (alone and last[i] is None)]
        if lost:
            say = f"gives no info['final_obs'] of lane {lost[0]}, so that an episode's last observation is lost"
            cure = "make it with autoreset_mode=NEXT_STEP or DISABLED, or give a single environment"
            name = type(self.env.unwrapped).__name__
            text = f"{self.title}: {name} resets in the same step (SAME_STEP) and {say}; {cure}"
            raise UserError(f"{text} {rules.rule_suffix('final-observation')}")
        assert last is not None
        each = last if alone else list(iterate(batch_space(self.env.single_observation_space, self.n), last))
        for i in np.flatnonzero(lanes):
            self.write[int(i)](each[int(i)])


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
                    self.remark = f"{self.title}: {near} {rules.rule_suffix('bounds')}"
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
        seeds, width = lane_seeds(seed, lane, envs.lanes).tolist(), self._ready.width
        self._random, self._around = GlobalGenerators(seeds[0]), Surroundings()
        self._random.enter()
        try:
            with self._around:
                for start in range(0, envs.lanes, width):
                    self._begin(envs, slice(start, start + width), seeds, lane)
        except BaseException:
            self.close()
            raise
        self._ready.back(range(envs.lanes))

    def _begin(self, envs: Envs, at: slice, seeds: list[int], lane: int) -> None:
        """Make the vector environment of one group, and reset it."""
        env = self._one(envs, self._ready.width)
        rules.take(env, (owner := object()), envs.title)
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
            self._groups[int(numbers[0]) // self._ready.width].step(action)

    def close(self) -> None:
        """Close every vector environment."""
        super().close()
        while self._groups:
            with self._around, contextlib.suppress(Exception):
                self._groups.pop().env.close()
        while self._owners:
            rules.give_back(self._owners.pop())
        self._random.leave()
