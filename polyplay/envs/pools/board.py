"""A pool's rows; and the memory that it shares with its environment processes: rows, actions, notes, deadlines."""

from __future__ import annotations

import numpy as np

from polyplay.common import tree
from polyplay.common.shared_memory import Layout, SharedObject
from polyplay.common.tree import Batch, Field, Spec
from polyplay.envs import spaces
from polyplay.envs.pool import EnvSpec

NOTE = 4096  # bytes of a lane's note: its kind, then text
RESTARTED, BROKEN, UNBUILT, HOPELESS = 1, 2, 3, 4  # kinds of notes; all but the first are the end of the pool
FLAGS = ("terminated", "truncated", "first", "over")


def row_fields(spec: EnvSpec) -> Spec:
    """The fields of one lane's row."""
    mask = {} if spec.mask is None else {"mask": spec.mask}
    flags = dict.fromkeys(FLAGS, Field((), "bool"))
    return {"obs": spec.obs, "reward": Field((), "float32"), **flags, **mask}


class SharedRows(SharedObject):
    """The pool's shared memory: rows and actions [lanes, …], and the status of its workers."""

    LOCAL = ("rows", "action", "faults", "notes", "deadline", "busy", "seeds", "joins", "waited")

    def __init__(self, spec: EnvSpec, lanes: int, workers: int):
        layout = Layout()

        def per_lane(fields: Spec) -> Batch:
            return tree.map(lambda f: layout.add((lanes, *f.shape), f.dtype), fields)

        self._fields = {
            "rows": per_lane(row_fields(spec)),
            "action": per_lane(spaces.fields(spec.action)),
            "faults": layout.add(lanes, np.int64),  # of each lane so far
            "joins": layout.add(lanes, np.int64),  # how often each lane came back after it was gone
            "seeds": layout.add(lanes, np.int64),  # of each lane's generator, see rules.rng_of; -1: not known
            "notes": layout.add((lanes, NOTE), np.uint8),
            "deadline": layout.add(workers, np.float64),  # by when a worker must be done; 0: it is idle
            "busy": layout.add(workers, np.int64),  # the lane that it steps
            "waited": layout.add((workers, 8), np.float64),  # seconds that a process waited for orders, number of waits
        }
        self._block = layout.block()
        self._attach()
        self.seeds[:] = -1

    def _attach(self) -> None:
        arrays = tree.map(lambda field: self._block.array(*field), self._fields)
        self.rows, self.action, self.faults = arrays["rows"], arrays["action"], arrays["faults"]
        self.notes, self.deadline, self.busy = arrays["notes"], arrays["deadline"], arrays["busy"]
        self.seeds, self.joins, self.waited = arrays["seeds"], arrays["joins"], arrays["waited"]

    def note(self, lane: int, kind: int, text: str) -> None:
        data = text.encode(errors="replace")[: NOTE - 2]
        self.notes[lane, 0] = kind
        self.notes[lane, 1 : len(data) + 2] = np.frombuffer(data + b"\0", np.uint8)

    def read(self, lane: int) -> tuple[int, str]:
        text = self.notes[lane, 1:].tobytes().split(b"\0", 1)[0]
        return int(self.notes[lane, 0]), text.decode(errors="replace")
