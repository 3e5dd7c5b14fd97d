"""The memory that a pool and its environment processes share: rows, actions, notes, deadlines."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyplay.common import tree
from polyplay.common.shared_memory import Layout
from polyplay.envs import spaces
from polyplay.envs.pool import EnvSpec

NOTE = 4096  # bytes of a lane's note: its kind, then text
RESTARTED, BROKEN, UNBUILT, HOPELESS = 1, 2, 3, 4  # kinds of notes; all but the first are the end of the pool
FLAGS = ("terminated", "truncated", "first", "over")


class SharedRows:
    """The pool's shared memory: rows and actions [lanes, …], and what workers say about themselves."""

    def __init__(self, spec: EnvSpec, lanes: int, workers: int):
        layout = Layout()
        rows: dict[str, Any] = {
            "obs": tree.map(lambda f: layout.add((lanes, *f.shape), f.dtype), spec.obs),
            "reward": layout.add(lanes, np.float32),
            **{flag: layout.add(lanes, bool) for flag in FLAGS},
        }
        if spec.mask is not None:
            rows["mask"] = tree.map(lambda f: layout.add((lanes, *f.shape), f.dtype), spec.mask)
        self._fields = {
            "rows": rows,
            "action": tree.map(lambda f: layout.add((lanes, *f.shape), f.dtype), spaces.fields(spec.action)),
            "faults": layout.add(lanes, np.int64),  # of each lane so far
            "joins": layout.add(lanes, np.int64),  # how often each lane came back after it was gone
            "seeds": layout.add(lanes, np.int64),  # what each lane's random numbers come from; -1: not known
            "notes": layout.add((lanes, NOTE), np.uint8),
            "deadline": layout.add(workers, np.float64),  # when what a worker does must be done; 0: it does nothing
            "busy": layout.add(workers, np.int64),  # with which lane
            "waited": layout.add((workers, 8), np.float64),  # seconds that a process waited for orders, and how often
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

    def __getstate__(self) -> dict:
        return {"_fields": self._fields, "_block": self._block}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._attach()
