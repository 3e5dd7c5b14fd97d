"""What pools share: rows in shared memory, who sits where, the batching rule, orders, faults."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import Closed, EnvFailure, UserError
from polyplay.core.numbers import SPLITMIX, mix
from polyplay.core.shared_memory import SharedObject
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.pool import Batching, Envs, EnvSpec, Greedy, Lanes, Pool, lane_seeds
from polyplay.envs.spaces import check_action, fields


class Seating:
    """Matches of `seats` players each. A lane is a player in a match.

    With one agent in all seats (`agents` 1), match m has lanes m·seats …, in the order of the seats. With several,
    agent j holds lanes j·lanes/agents …; match m takes as many lanes of each (where there are more agents than seats:
    one lane of each of `seats` agents), and `draw` says anew which of them have which seats. Lanes of one agent that
    are in one match stay next to each other, so an agent has whole teams where seats are in the order of teams.
    """

    def __init__(self, lanes: int, seats: int, agents: int = 1, seed: int = 0, lane: int = 0):
        """lane: the number of the first lane in the run, which with the seed decides the draws. Raises UserError."""
        check_seats(lanes, seats, agents)
        self.matches = lanes // seats
        self.blocks = min(agents, seats)  # of a match, that are drawn
        self.own = _lanes_of_matches(lanes, seats, agents)
        self.lanes = self.own.copy()  # [matches, seats]: who has a seat
        self.match, self.seat = np.empty((2, lanes), np.int64)  # of each lane
        self.match[self.own] = np.arange(self.matches)[:, None]
        self.drawn = np.zeros(self.matches, np.int64)  # matches begun
        self._keys = lane_seeds(seed, lane, lanes)[self.own[:, 0]].astype(np.uint64)
        self._place(np.arange(self.matches))

    def draw(self, matches: np.ndarray) -> None:
        """These matches begin: who sits where."""
        self.drawn[matches] += 1
        if self.blocks > 1:
            count = self.drawn[matches].astype(np.uint64)[:, None] * np.uint64(self.blocks)
            numbers = mix(self._keys[matches][:, None] * SPLITMIX + count + np.arange(self.blocks, dtype=np.uint64))
            order = np.argsort(numbers, axis=1, kind="stable")
            own = self.own[matches].reshape(len(matches), self.blocks, -1)
            self.lanes[matches] = np.take_along_axis(own, order[..., None], 1).reshape(len(matches), -1)
        self._place(matches)

    def _place(self, matches: np.ndarray) -> None:
        self.seat[self.lanes[matches]] = np.arange(self.lanes.shape[1])

    # who sits where, as `state` has it and as other processes see it
    arrays = property(lambda self: {"lanes": self.lanes, "drawn": self.drawn, "seat": self.seat})

    def bind(self, arrays: Batch) -> None:
        """Keep who sits where in these arrays, as `state` has them and as other processes see them."""
        self.lanes, self.drawn, self.seat = arrays["lanes"], arrays["drawn"], arrays["seat"]

    def state(self) -> Batch:
        return {"lanes": self.lanes.copy(), "drawn": self.drawn.copy(), "keys": self._keys.copy()}

    def load(self, state: Batch) -> None:
        self.lanes[:], self.drawn[:], self._keys[:] = state["lanes"], state["drawn"], state["keys"]
        self._place(np.arange(self.matches))


def check_seats(lanes: int, seats: int, agents: int = 1) -> None:
    """Raises UserError: lanes that make no whole matches, or agents that cannot share them."""
    if max(agents, seats) % min(agents, seats):
        allowed = f"divisors and multiples of the {seats} seats of a match"
        raise UserError(f"--players {agents} given; allowed: {allowed}")
    if lanes % agents:
        raise UserError(f"--lanes {lanes} given; allowed: multiples of --players {agents}")
    if lanes % seats:
        raise UserError(f"--lanes {lanes} is no multiple of the {seats} seats of a match: make it one")


def _lanes_of_matches(lanes: int, seats: int, agents: int) -> np.ndarray:
    """int64 [matches, seats]."""
    everyone, matches = np.arange(lanes), lanes // seats
    if agents == 1:
        return everyone.reshape(matches, seats)
    width = lanes // agents
    if agents <= seats:  # agent, match, its lanes there
        return everyone.reshape(agents, matches, seats // agents).transpose(1, 0, 2).reshape(matches, seats)
    return everyone.reshape(agents // seats, seats, width).transpose(0, 2, 1).reshape(matches, seats)


NOTE = 4096  # bytes of a lane's note: its kind, then text
FAILED, BROKEN, UNBUILT, ROUNDED = 1, 2, 3, 4  # kinds of notes: a fault; two that end the pool; a remark on a good row
FLAGS = ("terminated", "truncated", "first", "over")


def row_fields(spec: EnvSpec) -> Spec:
    """The fields of one lane's row."""
    mask = {} if spec.mask is None else {"mask": spec.mask}
    flags = dict.fromkeys(FLAGS, Field((), "bool"))
    return {"obs": spec.obs, "reward": Field((), "float32"), **flags, **mask, **spec.team_fields}


class SharedRows(SharedObject):
    """The pool's shared memory: rows and actions [lanes, …], and the status of its workers; of environments with
    several players who sits where, whether matches are held, and which rest.
    """

    rows: Batch
    seating: Seating | None = None
    sitting: Batch  # its arrays
    held: np.ndarray  # bool [1]
    resting: np.ndarray  # bool [matches]
    action: Tree
    faults: np.ndarray  # of each lane so far, as the pool counted them
    joins: np.ndarray  # how often each lane came back after it was gone
    seeds: np.ndarray  # of each lane's generator, see rules.rng_of; -1: not known
    notes: np.ndarray
    deadline: np.ndarray  # by when a worker must be done; 0: it is idle
    busy: np.ndarray  # the lane that it steps
    waited: np.ndarray  # seconds that a process waited for orders, number of waits

    def __init__(self, spec: EnvSpec, lanes: int, workers: int, seating: Seating | None = None):
        matches: dict[str, Tree] = {}
        if seating is not None:
            sitting = {name: (array.shape, np.int64) for name, array in seating.arrays.items()}
            matches = {"sitting": sitting, "held": (1, np.bool_), "resting": (seating.matches, np.bool_)}
        super().__init__(
            **matches,
            rows=tree.widen(row_fields(spec), (lanes,)),
            action=tree.widen(fields(spec.action), (lanes,)),
            **dict.fromkeys(("faults", "joins", "seeds"), (lanes, np.int64)),
            notes=((lanes, NOTE), np.uint8),
            deadline=(workers, np.float64),
            busy=(workers, np.int64),
            waited=((workers, 8), np.float64),
        )
        self.seeds[:] = -1
        if seating is not None:
            tree.write(self.sitting, ..., seating.arrays)
            self.seating = seating
            self._attach()

    def _attach(self) -> None:
        super()._attach()
        if self.seating is not None:
            self.seating.bind(self.sitting)

    def note(self, lane: int, kind: int, text: str) -> None:
        data = text.encode(errors="replace")[: NOTE - 2]
        self.notes[lane, 0] = kind
        self.notes[lane, 1 : len(data) + 2] = np.frombuffer(data + b"\0", np.uint8)

    def read(self, lane: int) -> tuple[int, str]:
        text = self.notes[lane, 1:].tobytes().split(b"\0", 1)[0]
        return int(self.notes[lane, 0]), text.decode(errors="replace")


# Which lanes are being stepped, are ready, are taken by the caller, or are absent; and which recv gives next.


STEPPING, READY, TAKEN, ABSENT = 0, 1, 2, 3


class ReadySet:
    """The batching rules over `lanes` lanes. At first all are being stepped, or only the first `active` (0: all).

    What a pool orders to step are lanes, each by itself; with a seating matches, by their first lanes, when all lanes
    are answered. `numbers`: of all that it may order, int64 [units].
    """

    def __init__(self, lanes: int, groups: int, batching: Batching, active: int = 0, seating: Seating | None = None):
        self.seating, self.numbers = seating, np.arange(lanes) if seating is None else seating.own[:, 0].copy()
        self.lanes, self.groups, self.width = lanes, groups, lanes // groups
        self.fixed = not isinstance(batching, Greedy)
        self.most = batching.n if isinstance(batching, Greedy) else lanes
        self._everyone, self.where = np.arange(lanes), np.full(lanes, STEPPING, np.int8)
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

    @property
    def ready(self) -> int:
        """Lanes that are ready, of a pool that gives whoever is ready."""
        return len(self._queue)

    def part(self, lane: int) -> None:
        """A lane that the caller took is absent from now on."""
        self.where[lane] = ABSENT

    def join(self, lane: int) -> None:
        """A lane that was absent is being stepped: its row will come."""
        self.where[lane] = STEPPING

    def complete(self, lanes: np.ndarray) -> np.ndarray:
        """The numbers to order now that these lanes are answered."""
        if self.seating is None:
            return lanes
        matches = np.unique(self.seating.match[lanes])
        return self.numbers[matches[self._stepping(matches)]]

    def _stepping(self, matches: np.ndarray) -> np.ndarray:
        """bool [matches]: nothing is waited for but the environment."""
        assert self.seating is not None
        return (self.where[self.seating.own[matches]] == STEPPING).all(1)

    def ordered(self, numbers: list[int]) -> list[int]:
        """The lanes of what was ordered by these numbers."""
        if self.seating is None:
            return numbers
        return self.seating.own[self.seating.match[numbers]].ravel().tolist()

    @property
    def busy(self) -> bool:
        """Something is being stepped."""
        if self.seating is None:
            return bool((self.where == STEPPING).any())
        return bool(self._stepping(np.arange(self.seating.matches)).any())

    @property
    def idle(self) -> bool:
        """Nothing is being stepped, and every other lane is the caller's: recv would wait for ever (unless another
        thread sends).
        """
        return bool((self.where == TAKEN).all()) if self.seating is None else not self.busy

    def sent(self, lanes: Lanes) -> np.ndarray:
        """The caller answers `lanes`: they are being stepped. Their numbers, int64. Raises ValueError: not taken."""
        numbers = self._everyone[lanes]
        if not numbers.size or not (self.where[lanes] == TAKEN).all():
            raise ValueError(f"send() answers lanes that recv() gave and that were not answered yet, got {lanes}")
        if self.fixed:
            begin = int(numbers[0]) // self.width * self.width
            if not np.array_equal(numbers, self._everyone[begin : begin + self.width]):
                raise ValueError(f"send() answers a whole group of {self.width} lanes, got {lanes}")
        self.where[lanes] = STEPPING
        return numbers

    def state(self) -> dict[str, np.ndarray]:
        queue = np.full(self.lanes, -1, np.int64)
        queue[: len(self._queue)] = list(self._queue)
        return {"where": self.where.copy(), "queue": queue, "next": np.array(self._next)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self.where[:] = state["where"]
        self._queue = deque(int(i) for i in state["queue"] if i >= 0)
        self._next = int(state["next"])


def check_groups(envs: Envs, seats: int) -> None:
    """Raises UserError: lanes that make no whole matches, or groups with parts of matches."""
    check_seats(envs.lanes, seats, envs.agents)
    if envs.active % seats:
        raise UserError(f"--agents {envs.active} is no multiple of the {seats} seats of a match: make it one")
    width, share = envs.lanes // envs.groups, max(seats // envs.agents, 1)  # of a match, that one agent has
    if envs.groups > 1 and (envs.groups % envs.agents or width % share):
        have = f"--groups {envs.groups} of {envs.lanes} lanes have {width} each"
        seats_of = f"the {share} seats that an agent has in a match"
        raise UserError(f"{have}, no multiple of {seats_of}: change --lanes or --groups")


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
        self._reported = set[str]()  # how remarks begin
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
            self.remarks += [] if begin in self._reported else [text]
            self._reported.add(begin)
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


class BasePool(Pool):
    """A Pool, but for `_step`: which steps lanes and writes their rows, or leaves that to a `recv` of its own."""

    def __init__(self, envs: Envs, rows: Batch | None = None):
        self.lanes, self.groups, self.fixed = envs.lanes, envs.groups, envs.fixed
        self.spec, self.title = envs.spec, envs.title
        self.faults: list[str] = []
        self.remarks: list[str] = []
        self._rows: Batch = tree.zeros(row_fields(self.spec), (envs.lanes,)) if rows is None else rows
        self._ready = ReadySet(envs.lanes, envs.groups, envs.batching, envs.active, self.seating)
        self._open, self._asynchronous = True, False  # asynchronous: recv() says which lanes are ready

    @property
    def ready(self) -> int:
        """See Pool; by the answers read so far."""
        return self._ready.ready

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Always waits: a step ends. Raises RuntimeError: nothing was sent."""
        if not self._open:
            raise Closed
        lanes = self._ready.take()
        if lanes is None:  # lanes step within send(): waiting would never end
            raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
        return lanes, tree.at(self._rows, lanes)

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool."""
        if not self._open:
            raise Closed
        n = len(range(self.lanes)[lanes]) if isinstance(lanes, slice) else len(lanes)
        action = check_action(self.spec.action, action, n)
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

    def _check_open(self) -> None:
        if not self._open:
            raise Closed

    @abstractmethod
    def _step(self, numbers: np.ndarray, action: Tree) -> None: ...


class UnitPool(BasePool):
    """A pool of lanes or matches that write their rows on a board: orders, faults, matches that are held.

    `units` of them, by at most `width` of which the groups of a turn are stepped at once, with `workers` workers.
    """

    def __init__(self, envs: Envs, seed: int, lane: int, workers: int = 1):
        self.seats = envs.spec.seats if envs.spec.kinds else 1
        if envs.spec.kinds:
            check_groups(envs, self.seats)
            self.seating = Seating(envs.lanes, self.seats, envs.agents, seed, lane)
        self.units = envs.lanes // self.seats
        phases = envs.groups if self.seating is None else max(envs.groups // self.seating.blocks, 1)
        self.width = self.units // phases  # of the parts that step in turn
        self.workers = min(workers, self.width)
        self._board = SharedRows(envs.spec, envs.lanes, self.workers, self.seating)
        super().__init__(envs, self._board.rows)
        self._faults = Faults(self._board, envs.max_restarts)
        self.faults, self.remarks = self._faults.reports, self._faults.remarks

    restarts = property(lambda self: self._faults.restarts)
    generator = property(lambda self: int(self._board.seeds[0]))  # of its first lane, see rules.rng_of
    resting = property(lambda self: self.seating is not None and bool(self._board.resting.all()))

    def pause_matches(self, on: bool) -> None:
        """See Pool."""
        if self.seating is None:
            super().pause_matches(on)
        self._board.held[:] = on

    def _saved(self, lanes: Batch) -> Batch:
        """Its state with that of its lanes or matches; every lane has a row."""
        seating = {} if self.seating is None else {"seating": self.seating.state()}
        return {"lanes": lanes, "turns": self._ready.state(), **seating, **tree.map(np.copy, self._arrays())}

    def _arrays(self) -> Batch:
        board = self._board
        matches = {} if self.seating is None else {"held": board.held, "resting": board.resting}
        return {"rows": board.rows, "action": board.action, "faults": board.faults, **matches}

    def _load_seating(self, saved: Batch) -> None:
        if self.seating is not None:
            self.seating.load(saved["seating"])

    def _load_rows(self, saved: Batch) -> None:
        """Once the lanes are loaded."""
        arrays = self._arrays()
        tree.write(arrays, ..., {k: saved[k] for k in arrays})
        self._ready.load(saved["turns"])
