"""What every worker counts, in shared memory: one row each, written by its worker alone. Imports no torch."""

from __future__ import annotations

import time

import numpy as np

from polyplay.common.shared_memory import SharedObject

EVENTS = ("stamp", "stamps", "steps", "rollouts", "updates", "learnt", "episodes", "restarts", "saved")
SECONDS = ("env", "infer", "learn", "replay", "wait")
LOAD = ("lag_sum", "lag_count", "lag_max", "depth_sum", "depth_count", "served", "calls", "simulations")
COLUMNS = [*EVENTS, *SECONDS, *LOAD]
SIZES = 257  # histogram of rows served or chunks learnt at once; the last bin holds everything beyond
LAGS = 64  # histogram of policy lag in updates; the last bin holds everything beyond
EPISODES = 2048  # finished games a worker may report between two readings of the main process
EPISODE = ("return", "length", "lane", "agent", "wall")
METRICS = 48


class WorkerCounters:
    """One worker's counters. They only grow, and only their worker writes them: a reader takes differences."""

    def __init__(self, counters: Counters, i: int):
        self.values, self.lags, self.sizes = counters.values[i], counters.lags[i], counters.sizes[i]
        self.games, self.metrics = counters.games[i], counters.metrics[i]
        self._at, self._names = counters.columns, counters.names

    def add(self, column: str, amount: float) -> None:
        self.values[self._at[column]] += amount

    def set(self, column: str, value: float) -> None:
        self.values[self._at[column]] = value

    def get(self, column: str) -> float:
        return float(self.values[self._at[column]])

    def timed(self, column: str) -> Stopwatch:
        """In `with`: the seconds within are added to a column, also where they end in an exception."""
        return Stopwatch(self, column)

    def stamp(self) -> None:
        self.values[0] = time.monotonic()
        self.values[1] += 1

    def lag(self, lags: np.ndarray) -> None:
        """Count policy lags, in optimiser updates, one per row learnt."""
        if lags.size == 0:
            return
        self.lags += np.bincount(np.clip(lags, 0, LAGS - 1), minlength=LAGS)
        self.add("lag_sum", float(lags.sum()))
        self.add("lag_count", lags.size)
        self.set("lag_max", max(self.get("lag_max"), float(lags.max())))

    def served(self, n: int) -> None:
        """A service was called for `n` at once."""
        self.sizes[min(n, SIZES - 1)] += 1
        self.add("served", n)
        self.add("calls", 1)

    def depth(self, n: int) -> None:
        """`n` wait in the queue that the worker looks at."""
        self.add("depth_sum", n)
        self.add("depth_count", 1)

    def episode(self, ret: float, length: float, lane: int, agent: int = 0) -> None:
        n = int(self.get("episodes"))
        self.games[n % EPISODES] = (ret, length, lane, agent, time.time())
        self.add("episodes", 1)

    def losses(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.tally(name, value, 1)

    def tally(self, name: str, total: float, n: float) -> None:
        """Add the sum of `n` values to a metric, which is reported as their mean."""
        i = self._names.get(name)
        if i is not None:
            self.metrics[i] += total, n


class Stopwatch:
    __slots__ = ("began", "column", "counters")

    def __init__(self, counters: WorkerCounters, column: str):
        self.counters, self.column = counters, column

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.counters.add(self.column, time.perf_counter() - self.began)


class Counters(SharedObject):
    """Counters of every worker in shared memory: one row each."""

    values: np.ndarray
    lags: np.ndarray
    sizes: np.ndarray
    games: np.ndarray
    metrics: np.ndarray

    def __init__(self, workers: int, metrics: tuple[str, ...] = ()):
        if len(metrics) > METRICS:
            raise ValueError(f"at most {METRICS} metrics, got {len(metrics)}")
        self.workers = workers
        self.columns = {name: i for i, name in enumerate(COLUMNS)}
        self.names = {name: i for i, name in enumerate(metrics)}
        super().__init__(
            values=((workers, -(-len(COLUMNS) // 8) * 8), np.float64),
            lags=((workers, LAGS), np.int64),
            sizes=((workers, SIZES), np.int64),
            games=((workers, EPISODES, len(EPISODE)), np.float64),
            metrics=((workers, METRICS, 2), np.float64),
        )

    def row(self, i: int) -> WorkerCounters:
        return WorkerCounters(self, i)

    def column(self, name: str) -> np.ndarray:
        """[workers] the present values of one column."""
        return self.values[:, self.columns[name]]
