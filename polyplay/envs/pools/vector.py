"""A user's Gymnasium vector environment as a Pool: it steps all its lanes at once, in the caller's thread.

NEXT_STEP is the project's row convention as it is. With DISABLED we reset: where some lanes ended, they are reset, all
are stepped (a lane that ended must not be stepped before), and they are reset again, so that the row that the others
got by the step is theirs by a reset.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from polyplay.common import tree
from polyplay.common.errors import Closed, EnvFailure, UserError
from polyplay.common.tree import Batch
from polyplay.envs import rules, spaces
from polyplay.envs.make import factory
from polyplay.envs.masks import KEY
from polyplay.envs.pool import Envs, Lanes, lane_seeds
from polyplay.envs.pools import build
from polyplay.envs.pools.batching import ReadyLanes
from polyplay.envs.pools.board import FLAGS
from polyplay.envs.pools.vector_modes import autoreset_mode, build_vector, check_lanes, mask_note

UNSAVED = "vector environments cannot be saved"
Which = slice | np.ndarray  # all lanes, or a mask of them

# ---------------------------------------------------------------------------------------- batches


def _fits(obs: Any, space: gym.Box, n: int, path: str) -> np.ndarray:
    obs = np.asarray(obs)
    if obs.shape != (n, *space.shape) or (obs.dtype != space.dtype and not np.can_cast(obs.dtype, space.dtype)):
        where, want, given = f"at {path!r} " if path else "", [n, *space.shape], f"{obs.dtype} {list(obs.shape)}"
        raise spaces.SpaceViolation(f"{where}declared {space.dtype} {want}, given {given}")
    return obs


def observation_reader(space: Any, into: tree.Tree, n: int, path: str = "") -> Callable[[Any, Which], None]:
    """A function that checks a batch of observations and copies it into `into`, which it may do for some lanes only.
    It raises SpaceViolation.
    """
    if isinstance(space, gym.Dict):
        inner = {
            k: observation_reader(s, into[k], n, f"{path}/{k}" if path else k)
            for k, s in space.spaces.items()
            if k in into
        }

        def spread(obs: Any, which: Which) -> None:
            if not hasattr(obs, "keys") or not inner.keys() <= obs.keys():
                raise spaces.SpaceViolation(f"declared keys {list(inner)}, given {type(obs).__name__} {list(obs)[:8]}")
            for key, gather in inner.items():
                gather(obs[key], which)

        return spread
    if isinstance(space, gym.Box):

        def whole(obs: Any, which: Which) -> None:
            into[which] = _fits(obs, space, n, path)[which]

        return whole
    writers, batch = [spaces.observation_writer(space, into, i, path) for i in range(n)], batch_space(space, n)

    def each(obs: Any, which: Which) -> None:
        for i, one in enumerate(iterate(batch, obs)):
            if isinstance(which, slice) or which[i]:
                writers[i](one)

    return each


def action_writer(space: Any, n: int) -> Callable[[Any], Any]:
    """From a batch of the pool's actions to what the vector environment's `step` takes."""
    if isinstance(space, gym.Discrete):
        return lambda a: (a + space.start).astype(space.dtype)
    if isinstance(space, gym.Box):
        return lambda a: np.clip(a, space.low, space.high).astype(space.dtype)
    one = spaces.action_reader(space)

    def several(a: Any) -> Any:
        rows = [one(tree.map(lambda x, i=i: x[i], a)) for i in range(n)]
        return concatenate(space, rows, create_empty_array(space, n))  # type: ignore[arg-type]

    return several


# ------------------------------------------------------------------------------------------- pool


class VectorLanes:
    """One vector environment, and the rows of its lanes: views of the pool's."""

    def __init__(self, env: VectorEnv, rows: Batch, title: str, lane: int):
        self.env, self.rows, self.n = env, rows, env.num_envs
        self.title = title
        self.who = f"{title}, lanes {lane}–{lane + self.n - 1}"
        self.ours = autoreset_mode(env) is AutoresetMode.DISABLED
        self.gather = observation_reader(env.single_observation_space, rows["obs"], self.n)
        self.act = action_writer(env.single_action_space, self.n)

    def begin(self, seeds: list[int]) -> None:
        """The first reset: a seed per lane, or one for all where it takes no list. Raises EnvFailure."""
        with self._failing("reset"):
            try:
                obs, info = self.env.reset(seed=seeds)  # type: ignore[arg-type]
            except Exception:
                obs, info = self.env.reset(seed=seeds[0])
            if KEY in info:
                raise mask_note(self.title)
            self.gather(obs, slice(None))
            single = self.env.single_observation_space
            for i, one in enumerate(iterate(batch_space(single, self.n), obs)):
                if not single.contains(one):
                    raise spaces.SpaceViolation(f"lane {i} of it: the reset observation is not in {single}")
        self._flags(self._nothing(), np.ones(self.n, bool))

    def step(self, action: Any) -> None:
        """Every lane's next row. Raises EnvFailure."""
        ended = self.rows["over"].copy()
        ours = self.ours and bool(ended.any())
        with self._failing("step"):
            if ours:
                obs = self._reset(ended)
            if ours and ended.all():
                self.gather(obs, slice(None))
                self._flags(self._nothing(), ended)
                return
            obs, reward, terminated, truncated, _ = self.env.step(self.act(action))
            self.gather(obs, slice(None))
            flags = [np.array(x) for x in (reward, terminated, truncated)]
            if any(x.shape != (self.n,) for x in flags):
                given = ", ".join(str(list(x.shape)) for x in flags)
                raise ValueError(f"reward, terminated, truncated must be [{self.n}], given {given}")
            if ours:
                self.gather(self._reset(ended), ended)
                flags[1][ended] = flags[2][ended] = False
        self._flags(flags, ended)

    def _reset(self, mask: np.ndarray) -> Any:
        return self.env.reset(options={"reset_mask": mask.copy()})[0]

    def _nothing(self) -> list[np.ndarray]:
        return [np.zeros(self.n, kind) for kind in (float, bool, bool)]

    def _flags(self, flags: list[np.ndarray], first: np.ndarray) -> None:
        rows, (reward, terminated, truncated) = self.rows, flags
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
        except Exception as e:
            head = f"{self.who}: {what} failed: {build.one_line(e)}; a vector environment's lanes can't be restarted"
            raise EnvFailure(f"{head}\n{traceback.format_exc()[-3000:].rstrip()}") from None


class VectorPool:
    """A Pool over vector environments, one per group. One that raises ends it; one that hangs hangs."""

    def __init__(self, envs: Envs, seed: int, lane: int):
        check_lanes(envs, envs.spec)
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, True
        self.restarts, self.faults, self.unsaved = 0, [], UNSAVED  # type: int, list[str], str
        self.spec = envs.spec
        self._turns = ReadyLanes(envs.lanes, envs.groups, envs.batching)
        self._rows: Batch = {
            "obs": tree.zeros(self.spec.obs, (envs.lanes,)),
            "reward": np.zeros(envs.lanes, np.float32),
            **{flag: np.zeros(envs.lanes, bool) for flag in FLAGS},
        }
        self._open, self._together = True, []  # type: bool, list[VectorLanes]
        seeds = lane_seeds(seed, lane, envs.lanes).tolist()
        width = envs.lanes // envs.groups
        try:
            for start in range(0, envs.lanes, width):
                at = slice(start, start + width)
                env = self._one(envs, width)
                rows = tree.map(lambda a, at=at: a[at], self._rows)
                self._together.append(VectorLanes(env, rows, envs.title, lane + start))
                self._together[-1].begin(seeds[at])
        except BaseException:
            self.close()
            raise
        self._turns.back(range(envs.lanes))

    def _one(self, envs: Envs, width: int) -> VectorEnv:
        try:
            env = build_vector(factory(envs.name, envs.options), width)
        except UserError:
            raise
        except Exception as e:
            raise UserError(f"{envs.title}: could not be built: {build.one_line(e)}") from e
        if not isinstance(env, VectorEnv) or env.num_envs != width:
            given = getattr(env, "num_envs", "none")
            raise UserError(f"{envs.title}: asked for {width} environments it made {given}")
        return env

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool; rows are views. Raises RuntimeError: nothing was sent."""
        if not self._open:
            raise Closed
        lanes = self._turns.take_now()
        return lanes, tree.map(lambda a: a[lanes], self._rows)

    def send(self, lanes: Lanes, action: Any) -> None:
        """See Pool; the group steps now. Raises EnvFailure."""
        if not self._open:
            raise Closed
        action = spaces.check_action(self.spec.action, action, self._turns.count(lanes))
        numbers = self._turns.sent(lanes)
        try:
            self._together[int(numbers[0]) // self._turns.width].step(action)
        except BaseException:
            self.close()
            raise
        self._turns.back(numbers.tolist())

    def close(self) -> None:
        """Close every vector environment."""
        self._open = False
        while self._together:
            with contextlib.suppress(Exception):
                self._together.pop().env.close()

    def state(self) -> Batch | None:
        """None: vector environments cannot be saved."""
        return None

    def load(self, state: Batch) -> None:
        raise ValueError("a vector environment has no state to load: its state() is None")
