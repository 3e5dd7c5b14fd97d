"""Pools of vector environments. Gymnasium's step in the caller's thread, and ale-py's in threads of ale-py.

A lane is one environment of a vector environment. The mode of a vector environment says when it resets ended lanes. In
mode NEXT_STEP, the next step resets them, as in all pools. In mode DISABLED, ended lanes cannot step. The pool
therefore resets the ended lanes, steps all lanes, and resets the ended lanes again. The second reset gives the rows of
these lanes. For mode SAME_STEP, see the comment above `LOST`.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import ArrayLike

from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs import build, rules, spaces
from polyplay.envs.atari import Atari, actions_of, fires, read_options, rom
from polyplay.envs.atari_emulator import AtariEnv, Begun, Taps
from polyplay.envs.base_pool import BasePool
from polyplay.envs.build import autoreset_mode, factory, is_vector, mask_note, one_line
from polyplay.envs.image_view import FINAL
from polyplay.envs.lane import action_reader, check_contains, observation_writer
from polyplay.envs.masks import KEY
from polyplay.envs.pool import Envs, Lanes, lane_seeds, need
from polyplay.envs.process_state import GlobalGenerators, seeding_torch


def action_writer(space: gym.Space, n: int) -> Callable[[Tree], Tree]:
    """Return a function that converts actions [n, …] of n lanes to actions for the vector environment."""
    if isinstance(space, gym.Discrete):
        return lambda a: (a + space.start).astype(space.dtype)
    one = action_reader(space)
    if not isinstance(space, gym.Dict | gym.Tuple):
        return one  # all lanes share bounds and `start`

    def several(a: Tree) -> Tree:
        rows = [one(tree.at(a, i)) for i in range(n)]
        return concatenate(space, rows, create_empty_array(space, n))  # type: ignore[arg-type]

    return several


def convert(given: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply `leaf` to each part of nested dicts and tuples."""
    if isinstance(given, Mapping):
        return {key: convert(part, leaf) for key, part in given.items()}
    return tuple(convert(part, leaf) for part in given) if isinstance(given, tuple) else leaf(given)


def on_host(given: Any) -> Any:
    """Convert tensors, which may be on a GPU, to NumPy arrays."""
    return convert(given, lambda part: part.detach().cpu().numpy() if hasattr(part, "detach") else part)


def lane_flags(n: int, *given: ArrayLike) -> list[np.ndarray]:
    """Copy reward, terminated and truncated of `n` lanes to arrays [n]. Raises ValueError if the shape is wrong."""
    flags = [np.array(on_host(x)) for x in given]
    if any(x.shape != (n,) for x in flags):
        shapes = ", ".join(str(list(x.shape)) for x in flags)
        raise ValueError(f"reward, terminated, truncated must be [{n}], given {shapes}")
    return flags


# Rows of vector environments in mode SAME_STEP, which reset a lane within the step that ends its episode.
#
# An episode's last row has `info["final_obs"]`; the next episode's first row has the observation that the same step
# returned. If all lanes ended at once, nothing is stepped between these two rows. Otherwise the vector environment
# steps all its lanes, so an ended lane makes a step of its next episode, with an unused action, that no row shows. The
# reward of this unseen step is added to the lane's next reward, so that returns are complete. Vector environments of
# Gymnasium and ale-py can reset chosen lanes, which undoes the unseen step. Without `final_obs`, an episode's last row
# keeps the observation of the row before.


LOST = """gives no info['final_obs'] when an episode ends, so after a truncation learning uses the value of the
observation before. Have it return final_obs (Isaac Lab: compute_final_obs=True), or make it in mode NEXT_STEP"""
UNSAID = "; it states no reset mode, so SAME_STEP is assumed: set its metadata['autoreset_mode']"


class VectorLanes:
    """One vector environment and its lanes. Their rows are views of the pool's rows."""

    def __init__(self, env: VectorEnv, rows: Batch, title: str, lane: int):
        self.env, self.rows, self.n, self.title = env, rows, env.num_envs, title
        self.who = f"{title}, lanes {lane}–{lane + self.n - 1}"
        self.mode, self.device = autoreset_mode(env), None  # device of observations that are tensors
        self.remarks = dict[str, str]()  # rule → remark, read by the pool
        self.space, self.act = env.single_observation_space, action_writer(env.single_action_space, self.n)
        self.read = observation_writer(self.space, rows["obs"], slice(None))
        self.seen = tree.map(np.zeros_like, rows["obs"])  # observations of all lanes; `_show` copies some to rows
        self.see = observation_writer(self.space, self.seen, slice(None))
        self.undone = build.resets_lanes(env)
        self.unseen = np.zeros(self.n)  # rewards of unseen steps, by lane

    def begin(self, seeds: list[int]) -> None:
        """Reset the lanes with these seeds, and make the first rows. Raises EnvFailure."""
        with self._failing("reset"):
            try:
                obs, info = self.env.reset(seed=seeds)  # type: ignore[arg-type]
            except Exception:  # the environment refuses a list of seeds
                obs, info = self.env.reset(seed=seeds[0])
            if KEY in info:
                raise mask_note(self.title)
            found = list[Any]()
            convert(obs, lambda part: found.append(part.device) if hasattr(part, "detach") else None)
            self.device, obs = next(iter(found), None), on_host(obs)
            self.read(obs)
            for i, one in enumerate(self._each(obs)):
                if near := check_contains(self.space, one, f"lane {i}"):
                    self.say("bounds", near)
        self._flags(np.ones(self.n, bool))

    def say(self, rule: str, text: str) -> None:
        """Keep a warning for the pool. Only the first warning about each rule is kept."""
        self.remarks.setdefault(rule, f"{self.title}: {text} {rules.rule_suffix(rule)}")

    def step(self, action: Tree) -> None:
        """Make the next row of every lane. Raises EnvFailure if the step fails or breaks a rule."""
        ended = self.rows["over"].copy()
        with self._failing("step"):
            if self.mode is AutoresetMode.SAME_STEP:
                flags = self._step_same(action, ended)
            elif self.mode is AutoresetMode.DISABLED and ended.any():
                flags = self._step_reset(action, ended)
            else:
                obs, flags, _ = self._step_all(action)
                self.read(obs)
        self._flags(ended, *flags)

    def _step_all(self, action: Tree) -> tuple[Any, list[np.ndarray], Mapping[str, Any]]:
        """Step the vector environment. Return observations, [reward, terminated, truncated], and info."""
        taken = self.act(action)
        if self.device is not None:
            torch = sys.modules["torch"]  # the environment has loaded torch
            taken = convert(taken, lambda part: torch.as_tensor(part, device=self.device))
        obs, *given, info = self.env.step(taken)
        return on_host(obs), lane_flags(self.n, *given), info

    def _step_reset(self, action: Tree, ended: np.ndarray) -> Sequence[np.ndarray]:
        obs = self._reset(ended)
        if ended.all():
            self.read(obs)
            return ()
        obs, (reward, *ends), _ = self._step_all(action)
        self.read(obs)
        self.see(self._reset(ended))
        self._show(ended)
        return reward, *(end & ~ended for end in ends)

    def _step_same(self, action: Tree, ended: np.ndarray) -> Sequence[np.ndarray]:
        """Write the rows of a step in mode SAME_STEP. Ended lanes get the first observations from the previous step."""
        self._show(ended)
        if ended.all():
            return ()
        obs, (reward, *ends), info = self._step_all(action)
        over = (ends[0] | ends[1]).astype(bool)
        self.see(obs)
        self._show(ended == over)
        lost = over & ~ended & ~self._show_last(info, over & ~ended)
        unsaid = build.named_mode(self.env) is None
        if (lost & (unsaid | ~ends[0].astype(bool))).any():
            text = f"{type(self.env.unwrapped).__name__} {' '.join(LOST.split())}{UNSAID * unsaid}"
            self.say("final-observation", text)
        if self.undone and ended.any():
            self.see(self._reset(ended))
            self._show(ended)
        total = reward + self.unseen
        self.unseen = np.where(ended & ~over & (not self.undone), reward, 0.0)
        return total, *(end & ~ended for end in ends)

    def _show_last(self, info: Mapping[str, Any], lanes: np.ndarray) -> np.ndarray:
        """Write the last observations of these lanes from info. Return which lanes have one, bool [n]."""
        key = next((key for key in FINAL if key in info), None)
        if key is None or not lanes.any():
            return np.zeros(self.n, bool)
        last = info[key]
        shown = lanes & np.asarray(on_host(info.get(f"_{key}", True)), bool)
        alone = isinstance(last, list) or (isinstance(last, np.ndarray) and last.dtype == object)
        if alone:
            shown &= [one is not None for one in last]
        each = last if alone else list(self._each(on_host(last)))
        for i in np.flatnonzero(shown).tolist():
            observation_writer(self.space, self.rows["obs"], i)(on_host(each[i]))
        return shown

    def _each(self, obs: Any) -> Iterator[Any]:
        return iterate(batch_space(self.space, self.n), obs)

    def _show(self, lanes: np.ndarray) -> None:
        for (_, row), (_, seen) in zip(tree.leaves(self.rows["obs"]), tree.leaves(self.seen), strict=True):
            row[lanes] = seen[lanes]

    def _reset(self, mask: np.ndarray) -> Tree:
        return on_host(self.env.reset(options={"reset_mask": mask.copy()})[0])

    def _flags(
        self, first: np.ndarray, reward: ArrayLike = 0.0, terminated: ArrayLike = False, truncated: ArrayLike = False
    ) -> None:
        rows = self.rows
        rows["reward"][:] = np.where(first, 0.0, reward)
        rows["terminated"][:], rows["truncated"][:], rows["first"][:] = terminated, truncated, first
        np.logical_or(terminated, truncated, out=rows["over"])
        both = np.flatnonzero(rows["terminated"] & rows["truncated"]).tolist()
        if any(rules.is_blank(rows["obs"], i) for i in both):
            self.say("final-observation", rules.BLANK_END)

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
    """A pool of vector environments, one for each group of lanes. An exception in an environment ends the pool."""

    unsaved = "vector environments cannot be saved"

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        self._groups, self._said = list[VectorLanes](), set[str]()
        seeds, width = lane_seeds(seed, lane, envs.lanes).tolist(), self._width
        self._random = GlobalGenerators(seeds[0])
        self._random.enter()
        try:
            for start in range(0, envs.lanes, width):
                self._begin(envs, slice(start, start + width), seeds, lane)
        except BaseException:
            self.close()
            raise

    def _begin(self, envs: Envs, at: slice, seeds: list[int], lane: int) -> None:
        """Make the vector environment of one group of lanes, and reset it."""
        env = self._one(envs, self._width)
        group = VectorLanes(env, tree.at(self._rows, at), envs.title, lane + at.start)
        rules.take(env, group, envs.title)
        self._groups.append(group)
        group.begin(seeds[at])
        self._hear(group)

    def _hear(self, group: VectorLanes) -> None:
        self.remarks += [text for rule, text in group.remarks.items() if rule not in self._said]
        self._said |= group.remarks.keys()

    def _one(self, envs: Envs, width: int) -> VectorEnv:
        try:
            with seeding_torch():
                env = build.build_vector(factory(envs.name, envs.options, envs.progress), width)
        except UserError:
            raise
        except (Exception, SystemExit) as e:
            raise UserError(f"{envs.title}: could not be built: {one_line(e)}") from e
        if not is_vector(env) or env.num_envs != width:
            given = getattr(env, "num_envs", "none")
            raise UserError(f"{envs.title}: must make {width} environments, made {given}")
        return env

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        self._random.enter()
        group = self._groups[int(numbers[0]) // self._width]
        group.step(action)
        self._hear(group)

    def close(self) -> None:
        """Close every vector environment."""
        super().close()
        while self._groups:
            rules.give_back(group := self._groups.pop())
            with contextlib.suppress(Exception):
                group.env.close()
        self._random.leave()


# Atari games in ale-py's own vector environment, stepped by ale-py's threads. Its observations are not copied.
#
# Workarounds here are for the behavior of ale-py 0.12 (src/ale/vector), pinned by tests:
#
# - its reward clipping loses the score, and its `episodic_life` resets the whole game: both stay off;
# - with life_loss_info, its `terminated` mixes lost lives with the end of the game: the option stays off, and we
#   compare the number of lives ourselves, so that `over` is exact;
# - after a reset, its stack is padded with zeros: `stack_reset="repeat"` fills these planes;
# - at a truncation, the last frame was never drawn (the loop ends before it reads the screen): we count steps, end the
#   game one step before ale-py would, and reset that lane ourselves, so that the last observation is the real one;
# - `send` takes no lanes: it answers the last `recv`; an action out of range would make the next `recv` hang.


class AtariEpisodes:
    """State of the Atari games of n lanes, by which the pool computes the flags of rows."""

    def __init__(self, n: int, options: Atari):
        self.options = options
        self.steps = -(-options.max_frames // options.frameskip)  # number of steps of the longest game
        self.age = np.zeros(n, np.int64)  # steps since the game began
        self.lives = np.zeros(n, np.int32)
        self.over = np.ones(n, bool)  # whether the next row starts a game
        self.cut = np.zeros(n, bool)  # whether a life was lost, so that the next row is a first row
        self.late = np.zeros(n, bool)  # whether we ended the game, which ale-py has not ended yet

    def rows(self, at: slice, obs: np.ndarray, reward: np.ndarray, dead: np.ndarray, lives: np.ndarray) -> Batch:
        """Return the next rows of lanes `at` from ale-py's arrays. In new games, fill the stack `obs` in place."""
        begins = self.over[at].copy()
        age = np.where(begins, 0, self.age[at] + 1)
        late = (age >= self.steps) & ~dead
        over = dead | late
        first, terminated = begins, dead
        if self.options.life_loss == "terminate":
            first = begins | self.cut[at]
            cut = (lives < self.lives[at]) & (lives > 0) & ~begins & ~dead
            self.cut[at] = cut & ~late
            terminated = dead | cut
        self.age[at], self.lives[at], self.over[at], self.late[at] = age, lives, over, late
        if self.options.stack_reset == "repeat":
            _repeat(obs, age)
        flags = {"terminated": terminated, "truncated": late, "first": first, "over": over}
        return {"obs": obs, "reward": reward.astype(np.float32), **flags}

    def played(self, at: Lanes, action: np.ndarray, noop: ArrayLike) -> np.ndarray:
        """Return the actions to send to ale-py: `noop` in lanes whose episode was cut, else `action`."""
        ignored = self.cut[at] | self.late[at]
        return np.where(ignored, noop, action) if ignored.any() else action


def resize_parts(
    rows: Taps, columns: Taps, now: np.ndarray, before: np.ndarray, wide: np.ndarray, line: np.ndarray, out: np.ndarray
) -> None:
    """Resize each part of a gray screen that differs from `before`, into `out`. Also copy the part to `before`.

    Gives the same bits as the NumPy code of Painter.

    `now`, `before`: screens, uint8 [parts, height, width]. `out`: plane, uint8 [parts, to_height, to_width].
    `wide` [height, to_width], `line` [width]: float32 arrays to compute in.
    """
    (numbers, weights), (row_numbers, row_weights) = columns, rows
    for n in range(len(now)):
        different = np.uint8(0)
        for y in range(now.shape[1]):
            for x in range(now.shape[2]):
                different |= now[n, y, x] ^ before[n, y, x]
                before[n, y, x] = now[n, y, x]
        if not different:
            continue
        for y in range(now.shape[1]):
            for x in range(now.shape[2]):
                line[x] = np.float32(now[n, y, x])
            for x in range(out.shape[2]):
                wide[y, x] = line[numbers[0, x]] * weights[0, x]
            for k in range(1, len(numbers)):
                for x in range(out.shape[2]):
                    wide[y, x] += line[numbers[k, x]] * weights[k, x]
        for y in range(out.shape[1]):
            for x in range(out.shape[2]):
                line[x] = wide[row_numbers[0, y], x] * row_weights[0, y]
            for k in range(1, len(row_numbers)):
                for x in range(out.shape[2]):
                    line[x] += wide[row_numbers[k, y], x] * row_weights[k, y]
            for x in range(out.shape[2]):
                out[n, y, x] = np.uint8(np.rint(line[x]))


@cache
def compiled_resize() -> Callable[..., None]:
    """Return resize_parts, compiled. Processes that only step environments never import Numba, to stay small."""
    from polyplay.core.compiled import cached_njit

    compiled: Callable[..., None] = cached_njit(_nrt=False)(resize_parts)
    return compiled


class EmulatorVector:
    """Plain emulators of several lanes, with the methods of AtariVectorEnv that `NativePool` calls.

    The caller's thread steps the lanes one after another. A worker with one thread and one group of lanes has nothing
    else to do, so this is faster than AtariVectorEnv, whose thread must be woken for each step. For `seeds`, see
    lane_seeds.
    """

    def __init__(self, title: str, given: Mapping[str, object], seeds: np.ndarray):
        resize = compiled_resize()
        self.games = [AtariEnv(title, given, seed % 2**31, resize) for seed in seeds.tolist()]
        n, space = len(self.games), self.games[0].observation_space
        self.obs, self.reward = np.zeros((n, *(space.shape or ())), np.uint8), np.zeros(n, np.int32)
        self.dead, self.lives, self.action = np.zeros(n, bool), np.zeros(n, np.int32), list[int]()

    def reset(self, *, seed: object = None, options: Mapping[str, np.ndarray] | None = None) -> Begun:
        """Start new games in the lanes of options["reset_mask"], by default in all lanes. Ignores `seed`."""
        for i in np.flatnonzero(options["reset_mask"]).tolist() if options else range(len(self.games)):
            self._reset(i)
        return self.obs, {"lives": self.lives}

    def _reset(self, i: int) -> None:
        self.obs[i], _ = self.games[i].reset()
        self.reward[i], self.dead[i], self.lives[i] = 0, False, self.games[i].lives()

    def send(self, action: np.ndarray) -> None:
        """Set the actions of the next step."""
        self.action = action.tolist()

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, None, Batch]:
        """Play the step. A game that has ended starts again instead, without a reward."""
        for i, (game, action) in enumerate(zip(self.games, self.action, strict=True)):
            if self.dead[i]:
                self._reset(i)
            else:
                self.obs[i], self.reward[i], self.dead[i], _, _ = game.step(action)
                self.lives[i] = game.lives()
        return self.obs, self.reward, self.dead.copy(), None, {"lives": self.lives}


class NativePool(BasePool):
    """A pool of one Atari game, for one thread. A group of lanes is an AtariVectorEnv, or plain emulators."""

    unsaved = "only the plain pipeline saves games"

    def __init__(self, envs: Envs, seed: int, lane: int):
        why = f"ale-py's vector environment steps all its lanes at once, without at_once={envs.at_once}"
        need(envs.fixed, f"{envs.title}: option pipeline='native': {why}; use 'plain'")
        super().__init__(envs, rows={})  # observations stay in ale-py's own arrays
        self.options = read_options(envs.title, envs.options)
        self._episodes, game = AtariEpisodes(envs.lanes, self.options), rom(envs.title)
        self._seeds = lane_seeds(seed, lane, envs.lanes).astype(np.int32)
        fits = self.options.shape[1] <= 210 and self.options.shape[2] <= 160  # the emulator's images never get larger
        alone = envs.alone and envs.groups == 1 and self.options.pipeline == "auto" and fits
        self._vectors: list[Any] = (
            [EmulatorVector(envs.title, envs.options, self._seeds)]
            if alone
            else [self._vector(game, envs.workers) for _ in range(envs.groups)]
        )
        actions = actions_of(game, self.options.full_actions)
        self.noop = actions.index("NOOP") if "NOOP" in actions else 0  # two board games lack NOOP
        self._began = [False] * envs.groups

    def _vector(self, game: str, threads: int) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        o, (planes, height, width) = self.options, self.options.shape
        return AtariVectorEnv(
            game,
            self._width,
            num_threads=threads,
            max_num_frames_per_episode=self._episodes.steps * o.frameskip + 1,  # one step after our end of the game
            repeat_action_probability=o.sticky,
            full_action_space=o.full_actions,
            img_height=height,
            img_width=width,
            stack_num=planes,
            frameskip=o.frameskip,
            maxpool=o.maxpool,
            noop_max=o.noop_max,
            use_fire_reset=o.fire_reset and fires(game),
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
        )

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. `timeout` is ignored. Raises RuntimeError if no actions were sent."""
        lanes, _ = super().recv()
        assert isinstance(lanes, slice)
        return lanes, self._episodes.rows(lanes, *self.collect(lanes.start // self._width, self._episodes.late[lanes]))

    def collect(self, group: int, late: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Wait for a group's step. The first call resets the group's games instead. Return observations, rewards, ends
        of games, and lives, as ale-py gives them. `late`: lanes whose games are reset after the step, None for no lane.
        """
        vector, began, self._began[group] = self._vectors[group], self._began[group], True
        if began:
            obs, reward, dead, _, info = vector.recv()
        else:
            obs, info = vector.reset(seed=self._seeds[group * self._width : (group + 1) * self._width])
            reward, dead = np.zeros(len(obs), np.int32), np.zeros(len(obs), bool)
        if late is not None and late.any():  # ale-py played one more frame in these lanes: reset only them
            reward[late], dead[late] = 0, False
            obs, info = vector.reset(options={"reset_mask": late.copy()})
        return obs, reward, dead, info["lives"]

    def play(self, group: int, action: np.ndarray) -> None:
        """Start a group's step, with actions that were checked before."""
        self._vectors[group].send(action)

    def _step(self, numbers: np.ndarray, action: np.ndarray) -> None:
        self.play(int(numbers[0]) // self._width, self._episodes.played(numbers, action, self.noop))

    def close(self) -> None:
        super().close()
        self._vectors.clear()


def _repeat(obs: np.ndarray, age: np.ndarray) -> None:
    """Copy a new game's first frame into the older planes of `obs`, in place. `age`: steps since the game began."""
    newest = obs.shape[1] - 1
    for i in np.flatnonzero(age < newest):
        empty = newest - int(age[i])
        obs[i, :empty] = obs[i, empty]
