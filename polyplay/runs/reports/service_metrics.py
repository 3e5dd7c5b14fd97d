"""What a service is judged by, counted where it is served and learnt, never from episodes: PPS, TPS, sizes of batches
and queues, how long agents wait, how busy the machine is.

pps                 predictions per second: rows served with an action; predict_batch: how many at once
tps                 trainings per second: updates; train_batch: transitions of each
prediction_queue    agents that wait when a predictor comes; queue_depth (elsewhere): chunks that wait for a trainer
agent_wait_ms       from an agent's row to its action
shard_updates_…, grads_…, staleness_…  of a parameter server
cpu                 of all cores, by this process and all below it
Imports no torch.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import psutil

from polyplay.common.machine import cores

Gauge = float | None
DECILES = (0.1, 0.5, 0.9)


class ServiceMetrics:
    """Differences between one look at a crew's meter and the next."""

    def __init__(self, crew: Any):
        self.crew, self.seen = crew, {}  # type: Any, dict[str, Any]
        self.at = time.monotonic()

    def read(self) -> dict[str, Gauge]:
        now = time.monotonic()
        passed, self.at = now - self.at, now
        acting, training = self._rows()
        told: dict[str, Gauge] = {}
        served = self._new("served", self._sum("served", acting))
        calls = self._new("calls", self._sum("calls", acting))
        updates = self._new("updates", self._updates())
        told |= {"pps": _ratio(served, passed), "predict_batch": _ratio(served, calls)}
        told |= {"tps": _ratio(updates, passed)}
        told |= {
            "train_batch": _ratio(self._new("lag_count", self._sum("lag_count", range(self._meter.workers))), updates)
        }
        told |= self._deciles("predict_batch", acting) | self._deciles("train_batch", training)
        told |= self._desk(acting, passed) | self._server()
        return told | {"cpu": self._cpu(passed)}

    def histograms(self) -> dict[str, dict[int, int]]:
        """How often how many were served, and learnt, at once, since the beginning."""
        named = zip(("predict_batch", "train_batch"), self._rows(), strict=True)
        counts = {name: self._meter.sizes[rows].sum(0) for name, rows in named}
        return {name: {int(i): int(n[i]) for i in np.flatnonzero(n)} for name, n in counts.items() if n.any()}

    @property
    def _meter(self) -> Any:
        return self.crew.counters

    def _rows(self) -> tuple[list[int], list[int]]:
        """Meter rows of those that act, and of those that only learn: also of those that have left, so that nothing
        that was counted is missing after.
        """
        rows: tuple[list[int], list[int]] = [], []
        for role in self.crew.roles:
            rows[role.source is not None].extend(self.crew.rows(role, past=True))
        return rows

    def _sum(self, column: str, rows: Any) -> float:
        return float(self._meter.column(column)[list(rows)].sum())

    def _updates(self) -> float:
        """Every learner knows of all."""
        rows = [row for role in self.crew.roles if role.learner for row in self.crew.rows(role, past=True)]
        return float(self._meter.column("updates")[rows].max()) if rows else 0.0

    def _new(self, name: str, total: Any) -> Any:
        """What was added since the last look; what fell has begun anew."""
        before = self.seen.get(name, 0.0)
        self.seen[name] = total
        return np.maximum(total - before, 0.0)

    def _deciles(self, name: str, rows: list[int]) -> dict[str, Gauge]:
        new = self._new(f"{name} sizes", self._meter.sizes[rows].sum(0))
        if not new.sum():
            return {}
        reached = np.cumsum(new) / new.sum()
        return {f"{name}_p{round(100 * q)}": float(np.searchsorted(reached, q)) for q in DECILES}

    def _desk(self, acting: list[int], passed: float) -> dict[str, Gauge]:
        """Of crews whose agents share a desk."""
        role = next((r for r in self.crew.roles if r.agents), None)
        if role is None or role.agents is None or role.agents.pool is None:
            return {}
        pool = role.agents.pool
        depth = self._new("depth_sum", self._sum("depth_sum", acting))
        count = self._new("depth_count", self._sum("depth_count", acting))
        trainers = sum(r.n for r in self.crew.roles if r.source is not None)
        told = {"agents": getattr(pool, "present", pool.lanes), "predictors": role.n, "trainers": trainers}
        told["prediction_queue"] = _ratio(depth, count)
        if hasattr(pool, "waits"):
            seconds, waits = pool.waits()
            told["agent_wait_ms"] = _ratio(1e3 * self._new("waited", seconds), self._new("waits", waits))
        return told

    def _server(self) -> dict[str, Gauge]:
        """Of crews that learn by a parameter server: its version vector from end to end, what was discarded so far, and
        how stale gradients were that came since the last look, each at its shard. Sums are over shards.
        """
        server = next((r.server for r in self.crew.roles if r.server), None)
        if server is None:
            return {}
        now = server.totals()
        lags, total = self._new("staleness", now["lags"]), float(self._new("staleness sum", now["lag_sum"]))
        found = np.flatnonzero(lags)
        most = int(found[-1]) if found.size else 0
        return {
            "shard_updates_min": float(now["versions"].min()),
            "shard_updates_max": float(now["versions"].max()),
            "grads_applied": float(now["applied"].sum()),
            "grads_discarded_stale": float(now["stale"].sum()),
            "grads_discarded_outlier": float(now["outlier"]),
            "staleness_min": float(found[0]) if found.size else None,
            "staleness_mean": _ratio(total, float(lags.sum())),
            "staleness_max": float(most if most < len(lags) - 1 else now["lag_max"]) if found.size else None,
        }

    def _cpu(self, passed: float) -> Gauge:
        total = 0.0
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            try:
                total += sum(process.cpu_times()[:4])  # its own, and that of its children that have ended
            except psutil.Error:
                continue  # it has ended
        first = "cpu" not in self.seen
        new = self._new("cpu", total)
        return None if first or passed <= 0 else round(float(new) / passed / cores(), 4)


def _ratio(a: float, b: float) -> Gauge:
    return round(float(a) / float(b), 3) if b > 0 else None
