"""Base classes of pools: the order of recv and send, and the count of faults. Also checks a policy's actions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs.build import factory
from polyplay.envs.lane import LaneJob, Unit, lane_seed, make_unit, take_turn
from polyplay.envs.pool import Envs, Lanes, Pool
from polyplay.envs.process_state import GlobalGenerators, seeding_torch
from polyplay.envs.saved_state import reason_of
from polyplay.envs.shared_rows import BROKEN, ROUNDED, UNBUILT, Seating, SharedRows, row_fields, seat_lanes
from polyplay.envs.spaces import ActionSpec, Box, Discrete, inner_path, place_of

STEPPING, READY, TAKEN, ABSENT = 0, 1, 2, 3  # a lane steps, has a row for recv, waits for its action, is absent


class BasePool(Pool):
    """Base class of pools. A subclass adds `_step`, which steps lanes (parallel environments).

    With fixed groups of lanes, recv returns the groups in a fixed cycle, and waits for the next group even if another
    one is ready. It skips groups that the caller has not answered yet. Without fixed groups, recv returns the lanes
    that are ready.
    """

    _asynchronous = False  # whether lanes become ready after send() has returned

    def __init__(self, envs: Envs, rows: Batch | None = None, seating: Seating | None = None):
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, envs.fixed
        self.spec, self.title = envs.spec, envs.title
        self.faults: list[str] = []
        self.remarks: list[str] = []
        self._rows: Batch = tree.zeros(row_fields(self.spec), (envs.lanes,)) if rows is None else rows
        self._everyone, self._width, self._most = np.arange(envs.lanes), envs.lanes // envs.groups, envs.at_once
        self._groups_of_lanes = [slice(i, i + self._width) for i in range(0, envs.lanes, self._width)]
        self._of_groups = [tree.at(self._rows, group) for group in self._groups_of_lanes]
        self._where = np.full(envs.lanes, READY, np.int8)
        self._where_of_groups = [self._where[group] for group in self._groups_of_lanes]
        self._next = np.zeros((), np.int64)  # the lane that recv gives next, if that lane is ready
        self._arrays: Batch = {"rows": self._rows, "turns": {"where": self._where, "next": self._next}}  # for state()
        if seating is not None:
            self.seating, self._arrays["seating"] = seating, seating.arrays
        self._open = True

    @property
    def ready(self) -> int:
        """See Pool."""
        return 0 if self.fixed else int(np.count_nonzero(self._where == READY))

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Never waits. Raises RuntimeError if no lanes are ready."""
        if (found := self._take()) is None:
            raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
        return found

    def _take(self) -> tuple[Lanes, Batch] | None:
        """Return the next lanes and their rows, or None if no lanes are ready."""
        self._check_open()
        if self.fixed:
            for turn in range(self.groups):
                group = (self._next.item() // self._width + turn) % self.groups
                where = self._where_of_groups[group].tobytes()
                if where[0] == TAKEN:
                    continue
                if STEPPING in where:
                    break
                self._where_of_groups[group].fill(TAKEN)
                self._next[...] = (group + 1) % self.groups * self._width
                return self._groups_of_lanes[group], self._of_groups[group]
        elif (ready := np.flatnonzero(self._where == READY)).size:
            lanes = np.roll(ready, -np.searchsorted(ready, self._next))[: self._most]
            self._where[lanes], self._next[...] = TAKEN, lanes[-1] + 1
            return lanes, tree.at(self._rows, lanes)
        return None

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool."""
        self._check_open()
        numbers = self._everyone[lanes]
        action = check_action(self.spec.action, action, len(numbers))
        if not numbers.size or self._where[lanes].tobytes().count(TAKEN) < numbers.size:
            raise ValueError(f"send() answers lanes that recv() gave and that were not answered yet, got {lanes}")
        if self.fixed and not (isinstance(lanes, slice) and lanes in self._groups_of_lanes):
            begin = int(numbers[0]) // self._width * self._width
            if not np.array_equal(numbers, self._everyone[begin : begin + self._width]):
                raise ValueError(f"send() answers a whole group of {self._width} lanes, got {lanes}")
        self._where[lanes] = STEPPING
        try:
            self._step(numbers, action)
        except BaseException:
            if not self.threaded:  # in a threaded pool, other threads may wait in recv
                self.close()
            raise
        if not self._asynchronous:
            self._where[lanes] = READY

    def close(self) -> None:
        """See Pool."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise Closed

    def _whole_matches(self, lanes: np.ndarray) -> np.ndarray:
        """Return the numbers of the lanes' matches in which all players have their actions."""
        assert self.seating is not None
        matches = np.unique(self.seating.match[lanes])
        return matches[(self._where[self.seating.own[matches]] == STEPPING).all(1)]

    @abstractmethod
    def _step(self, numbers: np.ndarray, action: Tree) -> None: ...


def check_action(space: ActionSpec, action: Tree, lanes: int, path: str = "") -> Tree:
    """Return `action` as arrays of `lanes` actions, with the shapes and dtypes of `space`. Raises ValueError if keys,
    shape, dtype or range are wrong.
    """
    if isinstance(space, dict):
        if not isinstance(action, Mapping) or action.keys() != space.keys():
            given = f"keys {list(action)}" if isinstance(action, Mapping) else type(action).__name__
            raise ValueError(f"actions {place_of(path)}must have keys {list(space)}, got {given}")
        return {k: check_action(s, action[k], lanes, inner_path(path, k)) for k, s in space.items()}
    array = np.asarray(action)
    if array.shape != (lanes, *space.field.shape) or array.dtype.kind not in space.kinds:
        want = f"{'floats' if space.kinds == 'f' else 'integers'} {[lanes, *space.field.shape]}"
        raise ValueError(f"actions {place_of(path)}must be {want}, got {array.dtype} {list(array.shape)}")
    if not isinstance(space, Box):
        array = array.astype(np.int64, copy=False)
        if b"\1" in (array.view(np.uint64) >= space.most).tobytes():  # negative numbers are huge as uint64
            want = f"lie in 0…{space.n - 1}" if isinstance(space, Discrete) else f"be {space}, counted from 0"
            raise ValueError(f"actions {place_of(path)}must {want}, got {array.min()}…{array.max()}")
    return array.astype(space.field.dtype, copy=False)


HOUR, STEPS = 3600.0, 10_000  # faults older than these seconds, or than these steps of the pool, no longer count


class Faults:
    """Counts the faults of a pool's environments: exceptions, hangs and lost processes.

    `limit`: number of recent faults that the pool accepts.
    """

    def __init__(self, board: SharedRows, limit: int, clock: Callable[[], float] = time.monotonic):
        self.board, self.limit, self.clock = board, limit, clock
        self.steps = 0  # steps of the pool so far
        self.restarts = 0  # lanes restarted so far
        self.reports: list[str] = []
        self.remarks: list[str] = []
        self._reported = set[str]()  # remarks so far, up to the first comma
        self._recent: deque[tuple[float, int]] = deque()  # (time, step) of recent faults

    def of_lane(self, lane: int, match: list[int] | None = None) -> bool:
        """Read the message of a lane, and return whether the lane must restart. If it does, all lanes of its `match`
        restart too. Raises UserError if the environment cannot be built. Raises EnvFailure if the environment broke a
        rule, or after too many faults.
        """
        kind, text = self.board.read(lane)
        if kind == UNBUILT:
            raise UserError(text)
        if kind == BROKEN:
            raise EnvFailure(text)
        if kind == ROUNDED:
            begin = text.partition(",")[0]
            self.remarks += [] if begin in self._reported else [text]
            self._reported.add(begin)
            return False
        self.of_process(text, match or [lane])
        return True

    def of_process(self, text: str, lanes: list[int]) -> None:
        """Count a fault of a process, for which these lanes restart. Raises EnvFailure after too many faults."""
        now, recent = self.clock(), self._recent
        recent.append((now, self.steps))
        while recent[0][0] < now - HOUR or recent[0][1] < self.steps - STEPS:
            recent.popleft()
        if not self.limit:
            raise EnvFailure(f"an environment failed: {text}")
        if len(recent) > self.limit:
            passed = self.steps - recent[0][1]
            times = f"{len(recent)} times {f'within {passed:,} steps' if passed > 1 else 'in a row'}"
            raise EnvFailure(f"environments failed {times}, more than --max-restarts {self.limit}; the last: {text}")
        self.board.faults[lanes] += 1
        self.restarts += len(lanes)
        self.reports.append(text)


class UnitPool(BasePool):
    """Pool of units, which write their results into shared memory. A unit is a lane (one environment), or a match of
    several players. It steps when all its lanes have actions.

    Units step in send(), in the caller's thread, or in processes (see ProcessPool). If an environment raises an
    exception, it is restarted. In the caller's thread, an environment that hangs blocks the pool.

    `units`: number of units. At most `width` of them step at a time.
    `numbers`: numbers of all units. A unit has the number of its first lane.
    """

    _asynchronous = True  # a match steps only when all its lanes have actions

    def __init__(self, envs: Envs, seed: int, lane: int, processes: int = 0):
        self.seats = envs.spec.seats if envs.spec.kinds else 1
        seating = seat_lanes(envs, seed, lane) if envs.spec.kinds else None
        self.units, self.width, self.processes = envs.lanes // self.seats, units_of_turn(envs), processes
        self._board = board = SharedRows(envs.spec, envs.lanes, processes, seating)
        super().__init__(envs, board.rows, seating)
        self._arrays |= {"action": board.action, "faults": board.faults}
        self._arrays |= {} if seating is None else {"held": board.held, "resting": board.resting}
        self.numbers = self._everyone if seating is None else seating.own[:, 0].copy()
        self._faults = Faults(board, envs.max_restarts)
        self.faults, self.remarks = self._faults.reports, self._faults.remarks
        self._job = LaneJob(b"", envs.title, self.spec, seed, lane, envs.step_timeout, envs.progress)
        # without `inline`, only Gymnasium's own environments step here, and they use no global generators
        self._random = GlobalGenerators(lane_seed(board, self._job, 0)) if envs.inline else None
        self._units = dict[int, Unit]()  # number → unit that steps in the caller's thread
        self._where[:] = STEPPING
        if not processes:
            self._begin(envs, self.numbers)

    restarts = property(lambda self: self._faults.restarts)
    generator = property(lambda self: int(self._board.seeds[0]))  # the first lane's generator, see rules.rng_of
    resting = property(lambda self: self.seating is not None and bool(self._board.resting.all()))

    def _begin(self, envs: Envs, numbers: np.ndarray) -> None:
        """Build the environments that step in the caller's thread, and reset them."""
        try:
            self._enter()
            with seeding_torch():
                make = factory(envs.name, envs.options, envs.progress)  # may import a module that draws random numbers
            self._units |= {i: make_unit(self._job, make, self._board, i) for i in numbers.tolist()}
            self._turns(numbers)
        except BaseException:
            self.close()
            raise

    def _enter(self) -> None:
        if self._random is not None and GlobalGenerators.here is not self._random:
            self._random.enter()

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._board.action, numbers, action)
        self._turns(self._due(numbers))

    def _turns(self, numbers: np.ndarray) -> None:
        self._enter()
        units, faults, ordered = self._units, self._faults, numbers.tolist()
        for i in ordered:
            while take_turn(units[i]) < 0 and faults.of_lane(i, self._lanes_of([i])):
                pass
            faults.steps += self.seats
        self._where[numbers if self.seating is None else self._lanes_of(ordered)] = READY

    def picture(self, lane: int) -> tuple[np.ndarray, float]:
        """Render a lane that steps in the caller's thread. Return the image, and the number of frames per second."""
        first = lane if self.seating is None else self.seating.own[self.seating.match[lane], 0]
        env = self._units[int(first)].env
        if env is None:
            raise RuntimeError(f"lane {lane} has no environment now")
        return env.render(), float(env.metadata.get("render_fps") or 30)

    def close(self) -> None:
        """Close every environment."""
        super().close()
        for unit in self._units.values():
            unit.close()
        if self._random is not None:
            self._random.leave()

    # --------------------------------------------------------------------------------- matches, saving

    def pause_matches(self, on: bool) -> None:
        """See Pool."""
        if self.seating is None:
            super().pause_matches(on)
        self._board.held[:] = on

    def _due(self, lanes: np.ndarray) -> np.ndarray:
        """Return the numbers of the units that can step, now that `lanes` have their actions."""
        return lanes if self.seating is None else self.numbers[self._whole_matches(lanes)]

    def _lanes_of(self, numbers: list[int]) -> list[int]:
        """Return all lanes of the units with these numbers."""
        return numbers if self.seating is None else self.seating.own[self.seating.match[numbers]].ravel().tolist()

    def state(self) -> Batch | None:
        """See Pool."""
        self._check_open()
        self._enter()
        try:
            lanes = {str(i): unit.save() for i, unit in self._units.items()}
            random = {} if self._random is None else {"random": self._random.save()}
        except Exception as e:
            self.unsaved = reason_of(e)
            return None
        return {"lanes": lanes, **tree.map(np.copy, self._arrays), **random}

    def load(self, state: Batch) -> None:
        """See Pool. Raises UserError if an environment rejects its saved state."""
        tree.write(self._arrays, ..., {name: state[name] for name in self._arrays})
        self._enter()
        for i, unit in self._units.items():
            try:
                unit.load(state["lanes"][str(i)])
            except Exception as e:
                raise UserError(f"{unit.who}: cannot restore its saved state: {reason_of(e)}") from e
        if self._random is not None and "random" in state:  # missing in states of earlier versions and of process pools
            self._random.load(state["random"])


def units_of_turn(envs: Envs) -> int:
    """Return the number of units that step together. A unit is a lane or a match."""
    if not envs.spec.kinds:
        return envs.lanes // envs.groups
    blocks = min(envs.agents, envs.spec.seats)  # number of groups with lanes of one match, which step together
    return envs.lanes // envs.spec.seats // max(envs.groups // blocks, 1)
