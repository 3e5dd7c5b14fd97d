"""Shared memory of a pool, and the assignment of its lanes to the seats (places of players) of matches."""

from __future__ import annotations

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.numbers import SPLITMIX, mix
from polyplay.core.shared_memory import SharedObject
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs.pool import Envs, EnvSpec, lane_seeds
from polyplay.envs.spaces import fields


class Seating:
    """Assignment of lanes to the seats of matches. A lane is one player, and a seat is a player's place in a match.

    With one agent (`agents` is 1), each match has adjacent lanes, in the order of the seats. Otherwise, the lanes are
    split into equal blocks, one for each agent, and a match has equally many lanes of each agent. With more agents than
    seats, a match has one lane of each of `seats` agents. `draw` assigns lanes to seats at random, but an agent's lanes
    in a match have adjacent seats. Agents thus play whole teams if each team has adjacent seats.
    """

    def __init__(self, lanes: int, seats: int, agents: int = 1, seed: int = 0, lane: int = 0):
        """`lane`: number of the first lane in the run. Random draws depend on `lane` and `seed`. Raises UserError."""
        check_seats(lanes, seats, agents)
        self.matches = lanes // seats
        self.blocks = min(agents, seats)  # number of blocks of adjacent seats in a match; `draw` permutes blocks
        self.own = _lanes_of_matches(lanes, seats, agents)
        self.match, seat = np.empty((2, lanes), np.int64)  # each lane's match and seat
        self.match[self.own] = np.arange(self.matches)[:, None]
        drawn, keys = np.zeros(self.matches, np.int64), lane_seeds(seed, lane, lanes)[self.own[:, 0]].astype(np.uint64)
        self.bind({"lanes": self.own.copy(), "seat": seat, "drawn": drawn, "keys": keys})
        self._place(np.arange(self.matches))

    def draw(self, matches: np.ndarray) -> None:
        """Draw the seats of the lanes of these matches, which are about to start."""
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

    def bind(self, arrays: Batch) -> None:
        """Keep the changing data in the given arrays: `lanes` [matches, seats], the `seat` of each lane, the number of
        starts of each match (`drawn`), and the `keys` of random draws.
        """
        self.arrays = arrays
        self.lanes, self.seat, self.drawn, self._keys = (arrays[name] for name in ("lanes", "seat", "drawn", "keys"))


def check_seats(lanes: int, seats: int, agents: int = 1) -> None:
    """Raises UserError if lanes do not fill whole matches, or if agents cannot get equal numbers of lanes and seats."""
    if max(agents, seats) % min(agents, seats):
        allowed = f"divisors and multiples of the {seats} seats of a match"
        raise UserError(f"--players {agents} given; allowed: {allowed}")
    if lanes % agents:
        raise UserError(f"--lanes {lanes} given; allowed: multiples of --players {agents}")
    if lanes % seats:
        raise UserError(f"--lanes {lanes}: must be a multiple of the {seats} seats of a match")


def _lanes_of_matches(lanes: int, seats: int, agents: int) -> np.ndarray:
    """Return the lane of each match and seat (place of a player), int64 [matches, seats]."""
    everyone, matches = np.arange(lanes), lanes // seats
    if agents == 1:
        return everyone.reshape(matches, seats)
    width = lanes // agents
    if agents <= seats:  # axes: agent, match, the agent's lanes in the match
        return everyone.reshape(agents, matches, seats // agents).transpose(1, 0, 2).reshape(matches, seats)
    return everyone.reshape(agents // seats, seats, width).transpose(0, 2, 1).reshape(matches, seats)


def seat_lanes(envs: Envs, seed: int, lane: int) -> Seating:
    """Assign a pool's lanes to the seats (places of players) of its matches. Raises UserError, see check_groups."""
    check_groups(envs, envs.spec.seats)
    return Seating(envs.lanes, envs.spec.seats, envs.agents, seed, lane)


def check_groups(envs: Envs, seats: int) -> None:
    """Raises UserError if lanes do not fill whole matches, or if groups split the lanes of an agent in a match."""
    check_seats(envs.lanes, seats, envs.agents)
    if envs.active % seats:
        raise UserError(f"--agents {envs.active}: must be a multiple of the {seats} seats of a match")
    width, share = envs.lanes // envs.groups, max(seats // envs.agents, 1)  # seats of one agent in a match
    if envs.groups > 1 and (envs.groups % envs.agents or width % share):
        have = f"--groups {envs.groups} of {envs.lanes} lanes have {width} each"
        seats_of = f"the {share} seats that an agent has in a match"
        raise UserError(f"{have}, must have a multiple of {seats_of}: change --lanes or --groups")


NOTE = 4096  # bytes of a lane's note, which is a message to the pool: kind, then text
FAILED, BROKEN, UNBUILT, ROUNDED = 1, 2, 3, 4  # kinds of notes: a fault, a broken rule, a failed build, a remark
FLAGS = ("terminated", "truncated", "first", "over")


def row_fields(spec: EnvSpec) -> Spec:
    """Return the fields of a row, which holds the data of one step of a lane."""
    mask = {} if spec.mask is None else {"mask": spec.mask}
    flags = dict.fromkeys(FLAGS, Field((), "bool"))
    return {"obs": spec.obs, "reward": Field((), "float32"), **flags, **mask, **spec.own_fields}


def first_row(rows: Batch) -> Batch:
    """Return the values of an episode's first row, except the observation and the mask of legal actions."""
    counts: Batch = {name: 0.0 for name in ("reward", "team_reward", "events") if name in rows}
    return {**counts, **dict.fromkeys(FLAGS, False), "first": True}


class SharedRows(SharedObject):
    """Shared memory of a pool: rows and actions [lanes, …], and the status of the pool's processes.

    For several players, it also has the seats of the lanes, and which matches are held (see Pool.pause_matches).
    """

    rows: Batch
    seating: Seating | None = None
    sitting: Batch  # arrays of the seating
    held: np.ndarray  # bool [1]: whether finished matches are held
    resting: np.ndarray  # bool [matches]: whether the match rests
    action: Tree
    faults: np.ndarray  # faults of each lane, counted by the pool
    joins: np.ndarray  # number of each lane's returns after an absence
    seeds: np.ndarray  # identity of each lane's random generator, see rules.rng_of; -1: unknown
    notes: np.ndarray
    deadline: np.ndarray  # by process: time by which its operation must end; 0: idle
    busy: np.ndarray  # by process: the lane that it steps
    waited: np.ndarray  # by process: seconds of waiting for orders, number of waits

    def __init__(self, spec: EnvSpec, lanes: int, workers: int, seating: Seating | None = None):
        matches: dict[str, Tree] = {}
        if seating is not None:
            sitting = {name: (array.shape, array.dtype) for name, array in seating.arrays.items()}
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
