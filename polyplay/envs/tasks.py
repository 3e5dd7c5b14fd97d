"""Play several environments (tasks) in one run. Lane l of the run always plays task order[l mod len(order)].

The lanes of a group step together. In each group, one pool steps the lanes of each task, and the rows of these pools
are joined. All tasks have equal observations, or vectors, which are padded with zeros. All tasks have as many discrete
actions as the task with the most. Masks forbid the actions that a task lacks.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.machine import cores
from polyplay.core.numbers import aggregate
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.atari import actions_of, baseline_scores, is_game, read_options, rom
from polyplay.envs.base_pool import BasePool
from polyplay.envs.pool import Envs, EnvSpec, Lanes, Pool, need, task_order, task_words
from polyplay.envs.spaces import ActionSpec, Discrete, describe_actions, describe_fields
from polyplay.envs.vector_pool import AtariEpisodes, NativePool, compiled_resize

OPENERS = 16  # most threads that open the pools of Atari games
SHOWN = 6  # most tasks whose names a text lists; for more tasks, the text has their number
WINDOW = 100  # last games in a task's mean return
FEWEST = 10  # games of each task that a mean over tasks needs
REPS = 200  # bootstrap samples for a report's intervals
NOT_ALLOWED = "actions of {} must be allowed by its mask, got {}"
OWN = ("game", "id", "actions", "environment")  # keys of descriptions that only single environments have


def describe(envs: Envs) -> EnvSpec:
    """Describe a lane of several tasks. Raises UserError if the tasks cannot be joined, or a task is unknown."""
    words = task_words(envs.title)
    names, order = tuple(name for name, _ in words), task_order(words)
    how = "--env: several tasks need lanes that step in turn"
    need(envs.fixed, f"{how}; this system serves each environment as soon as it is ready: use impala, ppo or a2c")
    parts = tuple(one_task(envs, name).spec for name in names)
    for name, part in zip(names, parts, strict=True):
        _check(name, part, names[0], parts[0])
    obs, (action, mask) = _joined_observations(names, parts), _joined_actions(names, parts)
    alike = {k: v for k, v in parts[0].describe.items() if all(p.describe.get(k) == v for p in parts)}
    played = [f"{name} ×{order.count(i)}" if order.count(i) > 1 else name for i, name in enumerate(names)]
    shown = ", ".join(played) if len(names) <= SHOWN else f"{len(names)}, {played[0]} … {played[-1]}"
    text = {k: v for k, v in alike.items() if k not in OWN} | {"environment": envs.title, "tasks": shown}
    text |= {"observation": describe_fields(obs), "actions": describe_actions(action)}
    times, equal = [part.step_time for part in parts], all(part.obs == parts[0].obs for part in parts)
    like = parts[0] if equal else EnvSpec(obs, action)
    found = replace(
        like,
        obs=obs,
        action=action,
        mask=mask,
        describe=text,
        frames_per_step=parts[0].frames_per_step,
        tasks=names,
        order=order,
        parts=parts,
        spaces=like.spaces if action == parts[0].action else None,
        step_time=sum(times) / len(times) if all(times) else 0.0,
    )
    return found if envs.task_input == "none" else _with_task(found, envs.task_input)


def _with_task(spec: EnvSpec, how: str) -> EnvSpec:
    """Add the task's number to observations, which become {"seen": observation, "task": number}."""
    obs = {"seen": spec.obs, "task": Field((), "int64")}
    inner = {f"seen/{path}".rstrip("/"): classes for path, classes in spec.classes.items()}
    images = None if spec.images is None else tuple(f"seen/{path}".rstrip("/") for path in spec.images)
    made = replace(spec, obs=obs, classes={**inner, "task": len(spec.tasks)}, images=images, view=None, spaces=None)
    return replace(made, task_input=how, describe={**spec.describe, "observation": describe_fields(obs)})


def one_task(envs: Envs, name: str, spec: EnvSpec | None = None, **changes: Any) -> Envs:
    """Return the environments of the task `name`. spec: the task's description, if known."""
    made = replace(envs, name=name, groups=1, at_once=0, only=-1, task_input="none", **changes)
    if spec is not None:
        made.__dict__["spec"] = spec
    return made


def described_parts(envs: Envs) -> tuple[EnvSpec, ...]:
    """Return the description of each task. A spec that was read from a file has none, so they are made."""
    return envs.spec.parts or tuple(one_task(envs, name).spec for name in envs.spec.tasks)


def task_parts(envs: Envs) -> list[Envs]:
    """Return an `Envs` for each task, with the task's lanes of one group."""
    spec, width, threads = envs.spec, envs.lanes // envs.groups, max(1, envs.workers // len(envs.spec.tasks))
    lanes = [max(1, width * spec.order.count(k) // len(spec.order)) for k in range(len(spec.tasks))]
    given = zip(spec.tasks, described_parts(envs), lanes, strict=True)
    return [one_task(envs, name, part, lanes=n, workers=threads, helps=False) for name, part, n in given]


def _check(name: str, part: EnvSpec, first: str, other: EnvSpec) -> None:
    """Raises UserError if the task `name` cannot be joined with the task `first`."""
    both = f"--env: {name} given beside {first}"
    need(part.seats == 1, f"--env: {name} given among several tasks, but it has {part.seats} players; allowed: one")
    need(not part.vector, f"--env: {name} given among several tasks, but it makes vector environments; use single ones")
    kinds = [type(p.action).__name__ for p in (part, other)]
    need(kinds[0] == kinds[1], f"{both}: actions are {describe_actions(part.action)} and {_actions(other.action)}")
    frames = part.frames_per_step, other.frames_per_step
    need(frames[0] == frames[1], f"{both}: a step has {frames[0]} and {frames[1]} frames; --frame-skip sets one number")


def _actions(action: ActionSpec) -> str:
    return f"{describe_actions(action)}; allowed: the same kind in all tasks"


def _joined_observations(names: tuple[str, ...], parts: tuple[EnvSpec, ...]) -> Spec:
    """Join the observations. Vectors are padded to the longest. Raises UserError if observations cannot be joined."""
    odd = next((i for i, part in enumerate(parts) if part.obs != parts[0].obs), None)
    if odd is None:
        _check_classes(names, parts)
        return parts[0].obs
    fields = [part.obs for part in parts if isinstance(part.obs, Field) and len(part.obs.shape) == 1]
    plain = len(fields) == len(parts) and not any(part.classes for part in parts)
    given = f"{names[0]} shows {describe_fields(parts[0].obs)}, {names[odd]} {describe_fields(parts[odd].obs)}"
    need(plain, f"--env: {given}; allowed among several tasks: the same (images: see --size, --stack), or vectors")
    kind = reduce(np.promote_types, [np.dtype(field.dtype) for field in fields])
    return Field((max(field.shape[0] for field in fields),), kind.name)


def _check_classes(names: tuple[str, ...], parts: tuple[EnvSpec, ...]) -> None:
    """Raises UserError if the Discrete observations of the tasks have different numbers of values."""
    text = [", ".join(f"{path} {n}".strip() for path, n in part.classes.items()) or "other" for part in parts]
    for name, part, values in zip(names, parts, text, strict=True):
        both = f"{names[0]} shows numbers of {text[0]} values, {name} of {values}"
        need(part.classes == parts[0].classes, f"--env: {both}; allowed among several tasks: the same, or vectors")


def _joined_actions(names: tuple[str, ...], parts: tuple[EnvSpec, ...]) -> tuple[ActionSpec, Spec | None]:
    """Join the actions. Return them and the fields of their mask, if any. Raises UserError if they cannot be joined."""
    first, masks = parts[0].action, [part.mask for part in parts]
    if all(part.action == first for part in parts) and all(mask == masks[0] for mask in masks):
        return first, masks[0]
    if not all(isinstance(part.action, Discrete) for part in parts) or any(mask is not None for mask in masks):
        odd = next(i for i, part in enumerate(parts) if part.action != first or part.mask != masks[0])
        given = f"{names[odd]} takes {describe_actions(parts[odd].action)}, {names[0]} {describe_actions(first)}"
        raise UserError(f"--env: {given}; allowed among several tasks: the same, or one Discrete without a mask each")
    most = max(part.action.n for part in parts if isinstance(part.action, Discrete))
    return Discrete(most), Field((most,), "bool")


class TaskReturns:
    """Returns of the last games of each task. episodes: {task: number of games}.

    If all tasks are Atari games of the literature, scores are human-normalized, in percent: 0 for random play, 100 for
    human play.
    """

    def __init__(self, names: tuple[str, ...], fewest: int = FEWEST, window: int | None = WINDOW):
        self.returns, self.fewest = {name: deque[float](maxlen=window) for name in names}, fewest
        self.episodes = dict.fromkeys(names, 0)
        games = {name: rom(name) for name in names if is_game(name, {})}
        ends = baseline_scores("noop57") if games else {}
        known = len(games) == len(names) and all(game in ends for game in games.values())
        self.ends = {name: ends[game] for name, game in games.items()} if known else {}

    def add(self, name: str, *returns: float) -> None:
        """Add the returns of a task's finished games."""
        self.returns[name].extend(returns)
        self.episodes[name] += len(returns)

    def means(self) -> dict[str, float | None]:
        """Return the mean return of each task's last games, or None if the task has no games."""
        return {name: math.fsum(returns) / len(returns) if returns else None for name, returns in self.returns.items()}

    def scores(self) -> dict[str, list[float]]:
        """Return the human-normalized returns of each task, or plain returns if there are no baselines."""
        if not self.ends:
            return {name: list(returns) for name, returns in self.returns.items()}
        return {
            name: [100.0 * (x - low) / (high - low) for x in self.returns[name]]
            for name, (low, high) in self.ends.items()
        }

    def score(self) -> float | None:
        """Return the mean over tasks of each task's mean score, or None if a task has too few games."""
        found = [math.fsum(x) / len(x) for x in self.scores().values() if len(x) >= self.fewest]
        return math.fsum(found) / len(found) if found and len(found) == len(self.returns) else None

    def row(self) -> Row:
        """Return the columns of a report about tasks. Intervals of human-normalized statistics are over games."""
        found: Row = {"task_return_means": self.means(), "task_episodes": dict(self.episodes)}
        if self.ends and self.score() is not None:
            estimates = aggregate(self.scores(), reps=REPS)
            found["human_normalized"] = {name: [e.value, e.low, e.high] for name, e in estimates.items()}
        return found


def action_numbers(envs: Envs, spec: EnvSpec, parts: tuple[EnvSpec, ...]) -> list[np.ndarray | None]:
    """Return an array int64 [n] for each task: the task's number of each joined action, or -1 if the task lacks it. If
    all tasks have the same actions, return None for each task. The actions of Atari games are matched by the names of
    their buttons.
    """
    if spec.mask is None or not isinstance(spec.action, Discrete) or any(part.mask is not None for part in parts):
        return [None] * len(parts)
    buttons = [_buttons(envs, name) for name in spec.tasks]
    most = max(buttons, key=len)
    found: list[np.ndarray | None] = []
    for part, own in zip(parts, buttons, strict=True):
        assert isinstance(part.action, Discrete)
        numbers = np.full(spec.action.n, -1)
        numbers[: part.action.n] = np.arange(part.action.n)
        if own and set(own) <= set(most):
            numbers = np.array([own.index(button) if button in own else -1 for button in most])
        found.append(numbers)
    return found


def _buttons(envs: Envs, name: str) -> tuple[str, ...]:
    """Return the actions of an Atari game, or () for other environments."""
    if not is_game(name, envs.options):
        return ()
    return actions_of(rom(name), read_options(name, envs.options).full_actions)


def _as_slice(at: np.ndarray) -> slice | None:
    """Convert ascending numbers to a slice. Return None if the numbers are not evenly spaced."""
    step = int(at[1] - at[0]) if len(at) > 1 else 1
    return slice(int(at[0]), int(at[-1]) + 1, step) if (np.diff(at) == step).all() else None


class NativeGroup:
    """The pools of one group, whose lanes step together, if all tasks are Atari games.

    Actions are checked, and rows are made, once for the whole group, which is faster than once for each pool.

    lanes: for each pool, the pool's lanes in the group.
    numbers: for each pool, the result of action_numbers.
    names: for each pool, the task.
    rows: the group's rows, which `collect` and `finish` write.
    """

    def __init__(
        self, pools: list[NativePool], lanes: list[np.ndarray], numbers: list[Any], names: list[str], rows: Batch
    ):
        self.pools, self.lanes, self.names, self.rows = pools, lanes, names, rows
        self.at = [at if (evenly := _as_slice(at)) is None else evenly for at in lanes]
        n = sum(map(len, lanes))
        self.episodes, self.everyone = AtariEpisodes(n, pools[0].options), np.arange(n)
        self.noop = np.empty(n, np.int64)
        self.late: np.ndarray | None = None  # lanes whose games are reset after this step; None: no lane
        self.reward, self.dead, self.life = np.zeros(n, np.int32), np.zeros(n, bool), np.zeros(n, np.int32)
        self.numbers = None if numbers[0] is None else np.empty((n, len(numbers[0])), np.int64)  # by lane
        for pool, at, own in zip(pools, lanes, numbers, strict=True):
            self.noop[at] = pool.noop
            if self.numbers is not None:
                self.numbers[at] = own

    def actions(self, action: np.ndarray) -> list[np.ndarray]:
        """Convert actions [lanes] to a list of each pool's actions. Raises ValueError if a game lacks an action."""
        own = action if self.numbers is None else self.numbers[self.everyone, action]
        if own.min() < 0:
            name, at = next((name, at) for name, at in zip(self.names, self.lanes, strict=True) if own[at].min() < 0)
            raise ValueError(NOT_ALLOWED.format(name, action[at].tolist()))
        own = self.episodes.played(slice(None), own, self.noop)
        self.late = self.episodes.late if self.episodes.late.any() else None
        return [own[at] for at in self.lanes]

    def collect(self, i: int) -> None:
        """Wait for the step of pool i, and write its observations."""
        at, late = self.at[i], self.late
        obs, reward, dead, life = self.pools[i].collect(0, None if late is None else late[at])
        self.reward[at], self.dead[at], self.life[at] = reward, dead, life
        self.rows["obs"][at] = obs

    def finish(self) -> None:
        """Write rewards and flags, after `collect` of every pool."""
        found = self.episodes.rows(slice(None), self.rows["obs"], self.reward, self.dead, self.life)
        for key in ("reward", "first", "terminated", "truncated", "over"):
            self.rows[key][...] = found[key]


def connect(envs: Envs, seed: int, lane: int) -> TaskPool:
    """See make.connect."""
    return TaskPool(envs, seed, lane)


class TaskPool(BasePool):
    """A pool for several tasks, which joins ordinary pools: one for each task of each group of lanes.

    With one group, only a few pools step at the same time, because 57 games at once would slow the learner down. When a
    pool has finished its step, the next pool starts. With several groups, all pools of a group step while the caller
    computes actions for another group.
    """

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        spec, order = self.spec, np.array(self.spec.order if envs.only < 0 else [envs.only])
        task = order[(lane + np.arange(envs.lanes)) % len(order)]
        self._rows["task"][:] = task
        self._tells = spec.task_input != "none"
        if self._tells:
            self._rows["obs"]["task"][:] = task
        described = described_parts(envs)
        self._numbers, self._tasks = action_numbers(envs, spec, described), list[list[int]]()  # _tasks: by group
        for i, k in enumerate(task.tolist()):
            if (numbers := self._numbers[k]) is not None:
                self._rows["mask"][i] = numbers >= 0
        self._lanes, jobs = list[list[np.ndarray]](), list[tuple[Envs, int]]()  # lanes by group and task; jobs by pool
        self._shown = list[Batch]()  # by group: rows with the pools' observations
        self._views = list[list[Batch | None]]()  # rows by group and task; None: the lanes are not evenly spaced
        threads, begun = max(1, envs.workers // len({*task.tolist()})), lane
        for group in self._groups_of_lanes:
            here = task[group]
            self._tasks.append(np.unique(here).tolist())
            self._lanes.append([np.flatnonzero(here == k) for k in self._tasks[-1]])
            rows = tree.at(self._rows, group)
            shown = {**rows, "obs": rows["obs"]["seen"]} if self._tells else rows
            self._shown.append(shown)
            evenly = [_as_slice(at) for at in self._lanes[-1]]
            self._views.append([None if at is None else tree.at(shown, at) for at in evenly])
            for k, own in zip(self._tasks[-1], self._lanes[-1], strict=True):
                how = {"lanes": len(own), "workers": threads, "helps": False, "alone": envs.alone and envs.groups == 1}
                part = one_task(envs, spec.tasks[k], described[k], **how)
                jobs.append((part, begun))
                begun += len(own)
        self._of_group, self._got = list[list[Pool]](), 0
        # pools that step at once: one per thread, and one more, so that no thread waits for the caller
        self._most_stepping = ((envs.workers or cores()) // threads + 1) if envs.groups == 1 else len(jobs)
        self._actions = [list[Tree]() for _ in self._lanes]  # by group and pool: actions not yet sent
        self._waiting: tuple[slice, Batch] | None = None  # (lanes, rows) of the group that recv is collecting
        self._open_pools(jobs, seed)
        # if all pools are of Atari games, NativeGroup steps them, without their own checks
        natives = [pool for pool in self._pools() if isinstance(pool, NativePool)]
        alike = len(natives) == len(jobs) and all(pool.options == natives[0].options for pool in natives)
        self._native = [self._native_group(i) for i in range(envs.groups)] if alike else []

    def _native_group(self, group: int) -> NativeGroup:
        tasks, pools = self._tasks[group], [pool for pool in self._of_group[group] if isinstance(pool, NativePool)]
        numbers, names = [self._numbers[k] for k in tasks], [self.spec.tasks[k] for k in tasks]
        return NativeGroup(pools, self._lanes[group], numbers, names, self._shown[group])

    def _open_pools(self, jobs: list[tuple[Envs, int]], seed: int) -> None:
        """Open a pool for each task of each group. Atari games are opened by several threads, which is faster."""
        native = all(is_game(x.name, x.options) and read_options(x.title, x.options).native for x, _ in jobs)
        if native and jobs[0][0].alone:
            compiled_resize()  # before the threads below, each of which would compile it
        made = list[Pool]()
        try:
            if native and len(jobs) > 1:
                with ThreadPoolExecutor(min(OPENERS, len(jobs), 4 * (os.cpu_count() or 1))) as threads:
                    waiting = [threads.submit(part.open, seed, begun) for part, begun in jobs]
                made += [job.result() for job in waiting if job.exception() is None]
                for job in waiting:
                    job.result()  # raises the job's exception
            else:
                for part, begun in jobs:
                    made.append(part.open(seed, begun))
        except BaseException:
            for pool in made:
                pool.close()
            raise
        pools = iter(made)
        self._of_group = [[next(pools) for _ in lanes] for lanes in self._lanes]

    def _pools(self) -> Iterator[Pool]:
        for group in self._of_group:
            yield from group

    @property
    def restarts(self) -> int:  # type: ignore[override]
        """See Pool."""
        return sum(pool.restarts for pool in self._pools())

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool."""
        if self._waiting is None:
            lanes, rows = super().recv()
            assert isinstance(lanes, slice)
            self._waiting = lanes, rows
        lanes, rows = self._waiting
        group = lanes.start // self._width
        pools = self._of_group[group]
        while self._got < len(pools):  # after a TimeoutError, the next call continues here
            self._begin(group, self._got + self._most_stepping)
            if self._native:
                self._native[group].collect(self._got)
            else:
                self._receive(group, rows, timeout)
            self._got += 1
        if self._native:
            self._native[group].finish()
        self._got, self._waiting = 0, None
        return lanes, rows

    def _receive(self, group: int, rows: Batch, timeout: float | None) -> None:
        """Wait for the next pool of a group, and write its rows into the group's rows."""
        pool, at = self._of_group[group][self._got], self._lanes[group][self._got]
        _, found = pool.recv(timeout)
        self._take_over(rows, at, self._views[group][self._got], found)
        if pool.faults or pool.remarks:
            self._report(pool)

    def _take_over(self, rows: Batch, at: np.ndarray, view: Batch | None, found: Batch) -> None:
        """Write the rows `found` of a pool to lanes `at` of a group's `rows`."""
        for key, value in found.items():
            into = rows["obs"]["seen"] if key == "obs" and self._tells else rows[key]
            if key == "obs" and isinstance(value, np.ndarray) and value.shape[1:] != into.shape[1:]:
                into[at, : value.shape[1]] = value
            elif view is None or not isinstance(value, np.ndarray):
                tree.write(into, at, value)
            else:
                view[key][...] = value

    def _report(self, pool: Pool) -> None:
        """Move the faults and warnings of a task's pool to this pool."""
        for reports, theirs in ((self.faults, pool.faults), (self.remarks, pool.remarks)):
            reports += theirs
            theirs.clear()

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        group = int(numbers[0]) // self._width
        if self._native:
            self._actions[group] = self._native[group].actions(action)
        else:
            for at, task in zip(self._lanes[group], self._tasks[group], strict=True):
                own, there = tree.at(action, at), self._numbers[task]  # own is a copy
                if there is not None and (there[own] < 0).any():
                    raise ValueError(NOT_ALLOWED.format(self.spec.tasks[task], own.tolist()))
                self._actions[group].append(own if there is None else there[own])
        self._begin(group, self._most_stepping)

    def _begin(self, group: int, end: int) -> None:
        """Start the steps of a group's first `end` pools. Skip the pools that have started already."""
        pools, actions = self._of_group[group], self._actions[group]
        while actions and len(pools) - len(actions) < end:
            number, action = len(pools) - len(actions), actions.pop(0)
            if self._native:
                self._native[group].pools[number].play(0, action)
            else:
                pools[number].send(slice(0, pools[number].lanes), action)

    def picture(self, lane: int) -> tuple[np.ndarray, float] | None:
        """See Pool."""
        group, place = divmod(lane, self._width)
        for pool, at in zip(self._of_group[group], self._lanes[group], strict=True):
            if place in at:
                return pool.picture(int(np.searchsorted(at, place)))
        return None

    def state(self) -> Batch | None:
        """See Pool."""
        parts = Batch()
        for group, pools in enumerate(self._of_group):
            self._begin(group, len(pools))
        for i, pool in enumerate(self._pools()):
            if (found := pool.state()) is None:
                self.unsaved = pool.unsaved
                return None
            parts[str(i)] = found
        return {"parts": parts, **tree.map(np.copy, self._arrays)}

    def load(self, state: Batch) -> None:
        """See Pool."""
        self._got, self._waiting = 0, None
        for actions in self._actions:
            actions.clear()
        for i, pool in enumerate(self._pools()):
            pool.load(state["parts"][str(i)])
        tree.write(self._arrays, ..., {name: state[name] for name in self._arrays})

    def close(self) -> None:
        """See Pool."""
        super().close()
        for pool in self._pools():
            pool.close()
