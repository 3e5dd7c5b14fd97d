"""What pools share: the batching rule, orders, faults.

Which lanes are being stepped, are ready, are taken by the caller, or are absent; and which recv gives next.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs.board import BROKEN, ROUNDED, UNBUILT, Seating, SharedRows, check_seats, row_fields
from polyplay.envs.pool import Batching, Envs, Greedy, Lanes
from polyplay.envs.spaces import check_action

STEPPING, READY, TAKEN, ABSENT = 0, 1, 2, 3


class ReadySet:
    """The batching rules over `lanes` lanes. At first all are being stepped, or only the first `active` (0: all)."""

    def __init__(self, lanes: int, groups: int, batching: Batching, active: int = 0):
        self.lanes, self.groups, self.width = lanes, groups, lanes // groups
        self.fixed = not isinstance(batching, Greedy)
        self.most = batching.n if isinstance(batching, Greedy) else lanes
        self.where = np.full(lanes, STEPPING, np.int8)
        self.where[active or lanes :] = ABSENT
        self._next = 0  # the group that comes next
        self._queue: deque[int] = deque()  # lanes that are ready, oldest first

    def back(self, numbers: Sequence[int]) -> None:
        """These lanes have a row."""
        self.where[numbers] = READY
        if not self.fixed:
            self._queue.extend(numbers)

    def take(self) -> Lanes | None:
        """The lanes to give now, or None: wait."""
        if not self.fixed:
            if not self._queue:
                return None
            numbers = np.array([self._queue.popleft() for _ in range(min(self.ready, self.most))], np.int64)
            self.where[numbers] = TAKEN
            return numbers
        for turn in range(self.groups):
            g = (self._next + turn) % self.groups
            lanes = slice(g * self.width, (g + 1) * self.width)
            if self.where[lanes.start] != TAKEN:
                if np.count_nonzero(self.where[lanes]) < self.width:  # STEPPING is 0
                    return None
                self.where[lanes] = TAKEN
                self._next = (g + 1) % self.groups
                return lanes
        return None

    def count(self, lanes: Lanes) -> int:
        return len(range(self.lanes)[lanes]) if isinstance(lanes, slice) else len(lanes)

    @property
    def ready(self) -> int:
        """Lanes that are ready, of a pool that gives whoever is ready."""
        return len(self._queue)

    def part(self, lane: int) -> None:
        """A lane that the caller took is absent from now on."""
        if self.where[lane] != TAKEN:
            raise ValueError(f"only a lane that recv() gave and that was not answered yet can go, got {lane}")
        self.where[lane] = ABSENT

    def join(self, lane: int) -> None:
        """A lane that was absent is being stepped: its row will come."""
        if self.where[lane] != ABSENT:
            raise ValueError(f"lane {lane} is there already")
        self.where[lane] = STEPPING

    @property
    def idle(self) -> bool:
        """The caller has every lane: recv would wait for ever (unless another thread sends)."""
        return bool((self.where == TAKEN).all())

    def sent(self, lanes: Lanes) -> np.ndarray:
        """The caller answers `lanes`: they are being stepped. Their numbers, int64. Raises ValueError: not taken."""
        numbers = np.arange(self.lanes)[lanes] if isinstance(lanes, slice) else np.asarray(lanes, np.int64)
        if not numbers.size or not (self.where[numbers] == TAKEN).all():
            raise ValueError(f"send() answers lanes that recv() gave and that were not answered yet, got {lanes}")
        if self.fixed:
            group = int(numbers[0]) // self.width
            if numbers.size != self.width or numbers[0] != group * self.width or (np.diff(numbers) != 1).any():
                raise ValueError(f"send() answers a whole group of {self.width} lanes, got {lanes}")
        self.where[numbers] = STEPPING
        return numbers

    def state(self) -> dict[str, np.ndarray]:
        queue = np.full(self.lanes, -1, np.int64)
        queue[: len(self._queue)] = list(self._queue)
        return {"where": self.where.copy(), "queue": queue, "next": np.array(self._next)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self.where[:] = state["where"]
        self._queue = deque(int(i) for i in state["queue"] if i >= 0)
        self._next = int(state["next"])


class StepRequests:
    """What a pool orders to step: lanes, each by itself; or matches, by their first lanes, when all lanes are answered.
    `numbers`: of all that it may order, int64 [units].
    """

    def __init__(self, seating: Seating | None, turns: ReadySet):
        self.seating, self.turns = seating, turns
        self.numbers = np.arange(turns.lanes) if seating is None else seating.own[:, 0].copy()

    def complete(self, lanes: np.ndarray) -> np.ndarray:
        """The numbers to order now that these lanes are answered."""
        if self.seating is None:
            return lanes
        matches = np.unique(self.seating.match[lanes])
        return self.numbers[matches[self._stepping(matches)]]

    def _stepping(self, matches: np.ndarray) -> np.ndarray:
        """bool [matches]: nothing is waited for but the environment."""
        assert self.seating is not None
        return (self.turns.where[self.seating.own[matches]] == STEPPING).all(1)

    def lanes(self, numbers: list[int]) -> list[int]:
        """The lanes of what was ordered by these numbers."""
        if self.seating is None:
            return numbers
        return self.seating.own[self.seating.match[numbers]].ravel().tolist()

    @property
    def busy(self) -> bool:
        """Something is being stepped."""
        if self.seating is None:
            return bool((self.turns.where == STEPPING).any())
        return bool(self._stepping(np.arange(self.seating.matches)).any())

    @property
    def idle(self) -> bool:
        """Nothing is being stepped, and every other lane is the caller's: recv would wait for ever."""
        return self.turns.idle if self.seating is None else not self.busy


def seating_of(envs: Envs, seed: int, lane: int) -> Seating | None:
    """Who sits where in a pool of `envs`; None: an environment without matches. Raises UserError."""
    if not envs.spec.kinds:
        return None
    check_groups(envs, envs.spec.seats)
    return Seating(envs.lanes, envs.spec.seats, envs.agents, seed, lane)


def phases(envs: Envs, seating: Seating | None) -> int:
    """Into how many parts, which step in turn, the orders of a pool fall."""
    return envs.groups if seating is None else max(envs.groups // seating.blocks, 1)


def check_groups(envs: Envs, seats: int) -> None:
    """Raises UserError: lanes that make no whole matches, or groups with parts of matches."""
    check_seats(envs.lanes, seats, envs.agents)
    if envs.active % seats:
        raise UserError(f"--agents {envs.active} is no multiple of the {seats} seats of a match: make it one")
    width, share = envs.lanes // envs.groups, max(seats // envs.agents, 1)  # of a match, that one agent has
    if envs.groups > 1 and (envs.groups % envs.agents or width % share):
        raise UserError(
            f"--groups {envs.groups} of {envs.lanes} lanes have {width} each, no multiple of the {share} seats that an "
            "agent has in a match: change --lanes or --groups"
        )


HOUR, STEPS = 3600.0, 10_000  # a fault is forgotten after so many seconds, or so many steps of its pool


class Faults:
    """The faults of one pool. A fault is an exception, a hang or a lost process; it may restart several lanes.

    `limit`: how many may be remembered at once. A pool whose environments fail rarely goes on for ever.
    """

    def __init__(self, board: SharedRows, limit: int, clock: Callable[[], float] = time.monotonic):
        self.board, self.limit, self.clock = board, limit, clock
        self.steps = 0  # of the pool so far
        self.restarts = 0  # lanes
        self.reports: list[str] = []
        self.remarks: list[str] = []
        self._told = set[str]()  # how remarks begin
        self._recent: deque[tuple[float, int]] = deque()  # (time, step) of those not yet forgotten

    def of_lane(self, lane: int, match: list[int] | None = None) -> bool:
        """Read the note of a lane, or of its `match`; whether it has no row, and is to be begun anew. Raises UserError
        (can't be built), EnvFailure (broke its space, or too many faults).
        """
        kind, text = self.board.read(lane)
        if kind == UNBUILT:
            raise UserError(text)
        if kind == BROKEN:
            raise EnvFailure(text)
        if kind == ROUNDED:
            begin = text.partition(",")[0]
            self.remarks += [] if begin in self._told else [text]
            self._told.add(begin)
            return False
        self.of_process(text, match or [lane])
        return True

    def of_process(self, text: str, lanes: list[int]) -> None:
        """These lanes, all of a process, are to be restarted. Raises EnvFailure: too many faults."""
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


class BasePool(ABC):
    """A Pool, but for `_step`: which steps lanes, and writes their rows or leaves them to `_rows_of`."""

    restarts = 0
    unsaved = ""
    seating: Seating | None = None
    resting = False

    def __init__(self, envs: Envs, rows: Batch | None = None):
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, envs.fixed
        self.spec, self.title = envs.spec, envs.title
        self.faults: list[str] = []
        self.remarks: list[str] = []
        self._rows: Batch = tree.zeros(row_fields(self.spec), (envs.lanes,)) if rows is None else rows
        self._ready = ReadySet(envs.lanes, envs.groups, envs.batching, envs.active)
        self._open, self._asynchronous = True, False  # asynchronous: recv() says which lanes are ready

    @property
    def ready(self) -> int:
        """Lanes whose row nobody took yet, of a pool that gives whoever is ready; by the answers read so far."""
        return self._ready.ready

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Always waits: a step ends. Raises RuntimeError: nothing was sent."""
        self._check_open()
        lanes = self._ready.take()
        if lanes is None:  # lanes step within send(): waiting would never end
            raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
        return lanes, self._rows_of(lanes)

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool."""
        self._check_open()
        action = check_action(self.spec.action, action, self._ready.count(lanes))
        numbers = self._ready.sent(lanes)
        try:
            self._step(numbers, action)
        except BaseException:
            self.close()
            raise
        if not self._asynchronous:
            self._ready.back(numbers.tolist())

    def close(self) -> None:
        """See Pool."""
        self._open = False

    def pause_matches(self, on: bool) -> None:
        """See Pool."""
        raise ValueError(f"{self.title}: has no matches to hold")

    def state(self) -> Batch | None:
        """None: it cannot be saved; `unsaved` says why."""
        return None

    def load(self, state: Batch) -> None:
        raise ValueError(f"{self.title}: has no state to load: {self.unsaved}")

    def _check_open(self) -> None:
        if not self._open:
            raise Closed

    def _rows_of(self, lanes: Lanes) -> Batch:
        return tree.at(self._rows, lanes)

    @abstractmethod
    def _step(self, numbers: np.ndarray, action: Tree) -> None: ...


class UnitPool(BasePool):
    """A pool of lanes or matches that write their rows on a board: orders, faults, matches that are held.

    `units` of them, by at most `width` of which the groups of a turn are stepped at once, with `workers` workers.
    """

    def __init__(self, envs: Envs, seed: int, lane: int, workers: int = 1):
        self.seating = seating_of(envs, seed, lane)
        self.seats = 1 if self.seating is None else envs.spec.seats
        self.units = envs.lanes // self.seats
        self.width = self.units // phases(envs, self.seating)
        self.workers = min(workers, self.width)
        self._board = SharedRows(envs.spec, envs.lanes, self.workers, self.seating)
        super().__init__(envs, self._board.rows)
        self._orders, self._faults = StepRequests(self.seating, self._ready), Faults(self._board, envs.max_restarts)
        self.faults, self.remarks = self._faults.reports, self._faults.remarks

    restarts = property(lambda self: self._faults.restarts)
    resting = property(lambda self: self.seating is not None and bool(self._board.resting.all()))

    def pause_matches(self, on: bool) -> None:
        """See Pool."""
        if self.seating is None:
            super().pause_matches(on)
        self._board.held[:] = on
