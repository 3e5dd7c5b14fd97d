"""A slow plain twin of a ReplayBuffer: lists of rows by lane, everything looked up anew. And rows to feed both with."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_buffer import LIVE, ItemIndex
from polyplay.core.tree import Field

ROWS = {
    "action": Field((), "int64"),
    "reward": Field((), "float32"),
    "first": Field((), "bool"),
    "terminated": Field((), "bool"),
    "truncated": Field((), "bool"),
    "version": Field((), "int64"),
}
EVENTS = ("go", "go", "go", "go", "go", "terminate", "truncate", "both", "restart")


def live_slots(index: ItemIndex) -> np.ndarray:
    """Slots of all items that may be drawn."""
    return np.flatnonzero(index.flags & LIVE)


class World:
    """Lanes that play: episodes end or are interrupted at random; stacks begin as `fill` says."""

    def __init__(self, rng: np.random.Generator, lanes: int, stack: int, fill: str, shape: tuple[int, ...] = (2, 2)):
        self.rng, self.lanes, self.k, self.fill, self.shape = rng, lanes, stack, fill, shape
        self.events = EVENTS
        self.over = np.ones(lanes, bool)
        self.obs = np.zeros((lanes, max(stack, 1), *shape), np.uint8)
        self.count = 0

    def spec(self) -> dict[str, Any]:
        return {"obs": Field(self.obs.shape[1:], "uint8"), **ROWS}

    def rows(self, T: int, lanes: np.ndarray) -> dict[str, np.ndarray]:
        steps = [self._step(lanes) for _ in range(T)]
        return {key: np.stack([step[key] for step in steps]) for key in steps[0]}

    def _step(self, lanes: np.ndarray) -> dict[str, np.ndarray]:
        events = [str(self.rng.choice(self.events)) for _ in lanes]
        first = np.array([self.over[lane] or e == "restart" for lane, e in zip(lanes, events, strict=True)])
        ends = [not f and e in ("terminate", "truncate", "both") for f, e in zip(first, events, strict=True)]
        for lane, f in zip(lanes, first, strict=True):
            self._draw(lane, f)
        self.over[lanes] = ends
        self.count += len(lanes)
        n = len(lanes)
        return {
            "obs": self.obs[lanes].copy(),
            "action": np.arange(self.count, self.count + n),
            "reward": np.where(first, 0, np.round(self.rng.normal(size=n) * 3, 1)).astype(np.float32),
            "first": first,
            "terminated": np.array([end and e != "truncate" for end, e in zip(ends, events, strict=True)]),
            "truncated": np.array([end and e != "terminate" for end, e in zip(ends, events, strict=True)]),
            "version": np.full(n, self.count),
        }

    def _draw(self, lane: int, first: bool) -> None:
        old, new = self.obs[lane], self.rng.integers(0, 255, self.shape, np.uint8)
        fill = str(self.rng.choice(["zeros", "repeat", "play", "goes on"])) if self.fill == "any" else self.fill
        if first and fill == "zeros":
            old[:] = 0
        elif first and fill == "repeat":
            old[:] = new
        elif first and fill == "play":
            old[:] = self.rng.integers(0, 255, old.shape, np.uint8)
        old[:-1] = old[1:].copy()
        old[-1] = new


class Plain:
    """Every row that ever came, numbered as in the ring: (number, row), planes of strange stacks taking numbers too."""

    def __init__(self, replay: Replay):
        self.replay = replay
        self.lanes: list[list[dict[str, Any]]] = [[] for _ in range(replay.lanes)]
        self.head = [0] * replay.lanes

    def add(self, rows: dict[str, np.ndarray], lanes: np.ndarray) -> None:
        for b, lane in enumerate(lanes):
            for t in range(len(rows["reward"])):
                row = {key: value[t, b] for key, value in rows.items()}
                if self._strange(lane, row):
                    self.head[lane] += self.replay.stack - 1
                self.lanes[lane].append({"number": self.head[lane], **row})
                self.head[lane] += 1

    def _strange(self, lane: int, row: dict[str, Any]) -> bool:
        if not self.replay.stack:
            return False
        older, newest = row["obs"][:-1], row["obs"][-1]
        before = self.lanes[lane][-1]["obs"][1:] if self.lanes[lane] else None
        known = (before is not None and np.array_equal(older, before)) or not older.any()
        return not known and not all(np.array_equal(plane, newest) for plane in older)

    def stretch(self, lane: int, t: int) -> int:
        """Steps that may be taken from row t: up to its episode's end, or the last row there is."""
        rows, m = self.lanes[lane], 0
        while not (rows[t + m]["terminated"] or rows[t + m]["truncated"]):
            if t + m + 1 == len(rows) or rows[t + m + 1]["first"]:
                break
            m += 1
        return m

    def closed(self, lane: int, t: int) -> bool:
        """The episode of row t will have no more rows."""
        rows, end = self.lanes[lane], t + self.stretch(lane, t)
        return bool(end + 1 < len(rows) or rows[end]["terminated"] or rows[end]["truncated"])

    def there(self, lane: int, t: int) -> bool:
        """Nothing that row t needs was replaced: planes of its stack, rows to burn in."""
        keep = self.replay.burn_in + max(self.replay.stack, 1) - 1
        return self.lanes[lane][t]["number"] >= self.head[lane] - self.replay.rows + keep

    def items(self) -> dict[int, dict[str, Any]]:
        """Every transition that may be drawn, by id."""
        r, found = self.replay, {}
        for lane, rows in enumerate(self.lanes):
            for t, row in enumerate(rows):
                m = min(self.stretch(lane, t), r.n_step)
                if m and (m == r.n_step or self.closed(lane, t)) and self.there(lane, t):
                    found[self.id(lane, row["number"])] = self.transition(rows, t, m)
        return found

    def id(self, lane: int, number: int) -> int:
        R = self.replay.rows
        return (number // R + 1 << 32) + lane * R + number % R

    def transition(self, rows: list[dict[str, Any]], t: int, m: int) -> dict[str, Any]:
        gamma, end = self.replay.gamma, rows[t + m]
        rewards = [float(row["reward"]) for row in rows[t + 1 : t + m + 1]]
        made = {"none": lambda x: x, "clip": lambda x: max(-1.0, min(1.0, x)), "sign": lambda x: float(np.sign(x))}
        rewards = [made[self.replay.reward](x) for x in rewards]
        return {
            "obs": np.stack([rows[t]["obs"], end["obs"]]),
            "action": rows[t]["action"],
            "version": rows[t]["version"],
            "first": np.array([rows[t]["first"], end["first"]]),
            "return": self.replay.scale * sum(gamma**j * x for j, x in enumerate(rewards)),
            "discount": 0.0 if end["terminated"] else gamma**m,
        }
