"""Environments of the library EnvPool, such as `envpool:Pong-v5`. EnvPool steps them in its threads.

The code works around this behavior of EnvPool 1.2.5, which bench/third_party.py tests:

- The step after the end of an episode resets the environment and ignores the action. Its reward is 0.
- With episodic_life=True, the step after a lost life does not reset the environment, and `elapsed_step` continues.
- With episodic_life=True, `terminated` means a lost life, and info["terminated"] means that the game is over.
- At max_episode_steps, `truncated` is set even if the episode terminates. In Atari games, info["terminated"] is right.
- An EnvPool takes its seeds when it is made, and ignores reset(seed=).
- num_threads=0 means min(batch_size, cores), which is one thread if batch_size=1. Polyplay always passes a number.
- With batch_size=n, recv blocks until n environments have stepped.
- A lower bound that was never set is the smallest positive number of its dtype. It would clip negative actions to 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.machine import cores, install_command
from polyplay.core.tree import Batch, Spec, Tree
from polyplay.envs import spaces
from polyplay.envs.base_pool import READY, STEPPING, BasePool
from polyplay.envs.build import one_line
from polyplay.envs.images import IMAGES, ImageOptions, image_layout
from polyplay.envs.pool import OWN_LIMIT, Envs, EnvSpec, Lanes, check_options, closest_names, lane_seeds
from polyplay.envs.vector_pool import action_writer

OURS = ("num_envs", "batch_size", "num_threads", "max_num_players", "seed", "env_seed", "gym_reset_return_info")
QUIET = (*OURS, "base_path", "thread_affinity_offset", "max_episode_steps", "reward_threshold", "task")
SKIPPING = ("envpool.atari", "envpool.vizdoom")  # modules of tasks whose frame_skip counts frames of a game


def _module() -> Any:
    try:
        import envpool
    except ImportError as e:
        why = f"envpool: environments need EnvPool ({one_line(e)})"
        raise UserError(f"{why}: {install_command('envpool')}") from None
    return envpool


class EnvPoolTask(NamedTuple):
    """Description of an EnvPool task: its configuration, the spaces of one environment, and its module."""

    config: Batch
    observation_space: gym.Space  # of one environment
    action_space: gym.Space
    module: str


def ask(envs: Envs) -> EnvPoolTask:
    """Ask EnvPool to describe a task. Raises UserError if EnvPool is missing, or if it lacks the task or an option."""
    pool, name = _module(), envs.title.removeprefix("envpool:")
    known = pool.list_all_envs()
    if name not in known:
        near = closest_names(name, known)
        raise UserError(f"--env: {envs.title}: EnvPool has no such task{near} (one of {len(known)})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium warns about EnvPool's bounds
            known = pool.make_spec(name).config._asdict()
            _check_options(envs, known)
            spec = pool.make_spec(name, **options_of(envs, known))
            action = _action_space(spec.gymnasium_action_space, envs.title)
            module = pool.registration.registry.specs[name][0]
            return EnvPoolTask(spec.config._asdict(), spec.gymnasium_observation_space, action, module)
    except UserError:
        raise
    except Exception as e:
        raise UserError(f"{envs.title}: could not be described: {one_line(e)[:300]}") from e


def _check_options(envs: Envs, known: Batch) -> None:
    for name in set(OURS) & set(envs.options):
        raise UserError(f"{envs.title}: option {name!r} cannot be set: Polyplay sets it")
    check_options(options_of(envs, known), {k: v for k, v in known.items() if k not in OURS}, envs.title)
    if envs.options.get("reward_clip"):
        cure = "leave it out, the learner limits rewards"
        raise UserError(f"{envs.title}: option reward_clip=True loses the score; {cure}")


def options_of(envs: Envs, known: Iterable[str]) -> dict[str, Any]:
    """Return the given options, with --stack, --gray, --size and --frame-skip converted to EnvPool's options. Raises
    UserError if the task lacks one of these options.
    """
    found = dict(envs.options)
    shown = found.pop(IMAGES, ImageOptions())
    if shown.leaves is not None:
        raise UserError(f"--images: given, but the images of {envs.title} are EnvPool's: leave it out")
    height, width = shown.size or (0, 0)
    asked = {"stack_num": shown.stack, "gray_scale": shown.gray, "img_height": height, "img_width": width}
    asked["frame_skip"] = shown.skip
    if shown.skip and "stack_num" not in known:  # in a task without stack_num, frame_skip belongs to its simulator
        raise UserError(f"--frame-skip: given, but {envs.title} has no frames of a game: leave it out")
    asked = {name: value for name, value in asked.items() if value}
    if lacking := [name for name in asked if name not in known]:
        raise UserError(f"{shown.given}: given, but {envs.title} has no option {', '.join(lacking)}: leave it out")
    return {**asked, **found}


def _action_space(space: gym.Space, title: str) -> gym.Space:
    """Return the action space, with infinite bounds where EnvPool set none. Raises UserError if it is not supported."""
    if not isinstance(space, gym.Discrete | gym.Box):
        supported = "supported are Discrete and Box of floats"
        raise UserError(f"{title}: actions {space} are not supported with EnvPool; {supported}")
    if isinstance(space, gym.Discrete) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low)
    return gym.Box(low.astype(space.dtype), np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype))


def describe(envs: Envs) -> EnvSpec:
    """Describe an EnvPool task without making its environments. Raises UserError if the task is not supported."""
    task = ask(envs)
    config = task.config
    if config.get("max_num_players", 1) > 1:
        raise UserError(f"{envs.title}: is a game of {config['max_num_players']} players; one is supported")
    obs, action = spaces.observation(task.observation_space, envs.title), spaces.action(task.action_space, envs.title)
    limit = int(config["max_episode_steps"])
    shown = config if task.module == "envpool.atari" else options_of(envs, config)
    text = {
        "environment": envs.title,
        "observation": spaces.describe_fields(obs),
        "actions": str(action),
        "time limit": f"{limit} steps" if limit < 2**31 - 1 else OWN_LIMIT,
        "options": ", ".join(f"{k} {v}" for k, v in shown.items() if k not in QUIET) or "EnvPool's defaults",
    }
    skip = int(config.get("frame_skip", 1)) if task.module in SKIPPING else 1
    return EnvSpec(obs, action, frames_per_step=skip, describe=text, classes=spaces.classes(task.observation_space))


def reader(space: gym.Space, spec: Spec, n: int) -> Callable[[Tree], Tree]:
    """Return a function that converts a batch of EnvPool's observations to the dtypes of `spec`. It counts the values
    of Discrete spaces from 0. The function raises EnvFailure if a shape is wrong.
    """
    if isinstance(space, gym.Dict):
        inner = {k: reader(s, spec[k], n) for k, s in space.spaces.items() if k in spec}
        return lambda obs: {k: read(obs[k]) for k, read in inner.items()}
    start, layout = int(space.start) if isinstance(space, gym.Discrete) else 0, image_layout(space)
    shape = (n, *(space.shape or ()))

    def read(obs: np.ndarray) -> np.ndarray:
        if obs.shape != shape:
            raise EnvFailure(f"observation breaks its space: declared {list(shape)}, given {list(obs.shape)}")
        if layout is not None and layout.moves:
            moved = np.empty((n, *layout.shape), np.uint8)  # new each time: rows of another group may still be read
            layout.writer(moved)(obs)
            return moved
        return (obs - start if start else obs).astype(spec.dtype, copy=False)

    return read


class EnvPoolPool(BasePool):
    """A pool of EnvPool's environments, for one thread. Each group of lanes is a separate EnvPool. An error in
    EnvPool's C++ code ends the process.

    With at_once=n, recv waits until n lanes have stepped. If fewer lanes are stepping, it waits for all of them.
    """

    unsaved = "EnvPool cannot save a game"

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        self._asynchronous = not envs.fixed
        self._batch = self._width if envs.fixed else 1
        task = ask(envs)
        self._options = frozenset(task.config)
        self._read = reader(task.observation_space, self.spec.obs, self._batch)
        self._atari = task.module == "envpool.atari"
        self._act = action_writer(task.action_space, self._batch)
        self._ended = np.ones(envs.lanes, bool)  # by lane: whether its next row is a first row
        seeds = lane_seeds(seed, lane, envs.lanes).tolist()
        starts = range(0, envs.lanes, self._width)
        self._pools: list[Any] = [self._pool(envs, seeds[at : at + self._width]) for at in starts]
        if not self.fixed:  # lanes of fixed groups count as READY: recv() waits for them
            self._where[:] = STEPPING

    def _pool(self, envs: Envs, seeds: list[int]) -> Any:
        task, threads = envs.title.removeprefix("envpool:"), envs.workers or min(cores(), self._width)
        own = {"num_envs": self._width, "batch_size": self._batch, "num_threads": threads, "seed": seeds}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about bounds of the spaces, which EnvPool builds on access
                made = _module().make_gymnasium(task, **own, **options_of(envs, self._options))
                made.observation_space  # noqa: B018
        except Exception as e:
            raise UserError(f"{envs.title}: could not be built: {one_line(e)[:300]}") from e
        made.async_reset()
        return made

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. `timeout` is ignored. Raises RuntimeError if no actions were sent."""
        self._check_open()
        if not self.fixed:
            stepping = int((self._where == STEPPING).sum())
            for _ in range(min(self._most, stepping)):
                lane, row = self._receive(0, None)
                tree.write(self._rows, lane, row)
                self._where[lane] = READY
        lanes, rows = super().recv()
        return lanes, self._receive(lanes.start // self._width, lanes)[1] if isinstance(lanes, slice) else rows

    def _receive(self, group: int, expected: slice | None) -> tuple[Any, Batch]:
        obs, reward, terminated, truncated, info = self._pools[group].recv()
        lanes = info["env_id"].astype(np.int64) if expected is None else expected
        if expected is not None and (info["env_id"] != np.arange(self._width)).any():
            raise EnvFailure(f"{self.title}: EnvPool gave lanes {info['env_id']} out of order")
        ended = terminated | truncated
        dead = info["terminated"].astype(bool) if self._atari else terminated
        first = self._ended[lanes].copy()
        self._ended[lanes] = ended
        return lanes, {
            "obs": self._read(obs),
            "reward": np.where(first, 0.0, reward).astype(np.float32),
            "terminated": terminated | (dead & truncated),
            "truncated": truncated & ~dead,
            "first": first,
            "over": dead | truncated,
        }

    def _step(self, numbers: np.ndarray, action: np.ndarray) -> None:
        group = int(numbers[0]) // self._width
        self._pools[group].send(self._act(action), (numbers - group * self._width).astype(np.int32))

    def close(self) -> None:
        """Delete the EnvPools. Each deletion waits for EnvPool's threads."""
        super().close()
        self._pools.clear()


connect = EnvPoolPool  # called by make.connect
