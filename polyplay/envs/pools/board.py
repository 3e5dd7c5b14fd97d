"""A pool's rows; and the memory that it shares with its environment processes: rows, actions, notes, deadlines."""

from __future__ import annotations

import numpy as np

from polyplay.common import tree
from polyplay.common.shared_memory import SharedObject
from polyplay.common.tree import Batch, Field, Spec, Tree
from polyplay.envs import spaces
from polyplay.envs.pool import EnvSpec
from polyplay.envs.pools.seating import Seating

NOTE = 4096  # bytes of a lane's note: its kind, then text
FAILED, BROKEN, UNBUILT, ROUNDED = 1, 2, 3, 4  # kinds of notes: a fault; two that end the pool; a remark on a good row
FLAGS = ("terminated", "truncated", "first", "over")


def row_fields(spec: EnvSpec) -> Spec:
    """The fields of one lane's row."""
    mask = {} if spec.mask is None else {"mask": spec.mask}
    flags = dict.fromkeys(FLAGS, Field((), "bool"))
    return {"obs": spec.obs, "reward": Field((), "float32"), **flags, **mask, **spec.team_fields}


def _match_arrays(seating: Seating) -> dict[str, Tree]:
    sitting = {name: (getattr(seating, name).shape, np.int64) for name in ("lanes", "drawn", "seat")}
    return {"sitting": sitting, "held": (1, np.bool_), "resting": (seating.matches, np.bool_)}


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
        matches = {} if seating is None else _match_arrays(seating)
        super().__init__(
            **matches,
            rows=tree.widen(row_fields(spec), (lanes,)),
            action=tree.widen(spaces.fields(spec.action), (lanes,)),
            **dict.fromkeys(("faults", "joins", "seeds"), (lanes, np.int64)),
            notes=((lanes, NOTE), np.uint8),
            deadline=(workers, np.float64),
            busy=(workers, np.int64),
            waited=((workers, 8), np.float64),
        )
        self.seeds[:] = -1
        if seating is not None:
            for name, array in self.sitting.items():
                array[:] = getattr(seating, name)
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
