"""Metrics of a run, computed from the counters that its workers write while they act and learn. Some of the metrics:

pps                 predictions per second (a prediction answers one observation with an action)
predict_batch       observations per call of the network
tps                 updates per second
train_batch         transitions per update
queue_depth         mean number of rollouts or batches in a learner's queue
prediction_queue    mean number of agents in the queue of a predictor of GA3C
simulations_per_second, games_per_hour  simulations and ended games of tree search
agent_wait_ms       milliseconds from an agent's observation to its action
shard_updates_…, grads_…, staleness_…  numbers of a parameter server
cpu                 fraction of all cores used by this process and its descendants
Imports no torch.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from polyplay.buffers.league import League
from polyplay.core.files import Row
from polyplay.core.machine import cores
from polyplay.core.worker import COLUMNS, EPISODES, Counters
from polyplay.envs.pool import EnvSpec
from polyplay.runs.reporter import KINDS, Reporter

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew
    from polyplay.workers.role import Role

# Memory and processor time of a process (default: the current process) and its descendants.


class Throttled:
    """Limits the time of a slow measurement to the fraction `share` of all time.

    A call returns the last result of `measure`, or measures again if enough time has passed.
    """

    def __init__(self, measure: Callable[[], float], share: float = 0.01, clock: Callable[[], float] = time.monotonic):
        self.measure, self.share, self.clock = measure, share, clock
        self.next, self.last = -math.inf, 0.0

    def __call__(self) -> float:
        before = self.clock()
        if before >= self.next:
            self.last = self.measure()
            now = self.clock()
            self.next = now + (now - before) / self.share
        return self.last


def process_tree(root: psutil.Process | None = None) -> list[psutil.Process]:
    """Return a process (default: the current process) and its descendants. Return [] if the process has ended."""
    with contextlib.suppress(psutil.Error):
        root = root or psutil.Process()
        return [root, *root.children(recursive=True)]
    return []


def memory_mb(root: psutil.Process | None = None) -> float:
    """Return the MB used by a process and its descendants. If the system reports PSS, shared pages count only once."""
    return round(_total(root, lambda p: getattr(info := p.memory_full_info(), "pss", info.rss) / 2**20), 1)


def cpu_seconds(root: psutil.Process | None = None, ended: bool = True) -> float:
    """Return the CPU seconds of a process and its descendants. ended: also count child processes that have ended."""
    return _total(root, lambda process: sum(process.cpu_times()[: 4 if ended else 2]))


def _total(root: psutil.Process | None, of: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    for process in process_tree(root):
        with contextlib.suppress(psutil.Error):  # the process has ended, or another user owns it
            total += of(process)
    return total


Metrics = dict[str, float | None]
DECILES = (0.1, 0.5, 0.9)
SILENCE = 120.0  # seconds that a worker's loop may stand still before a warning


class CrewMetrics:
    """Compute the totals of a run, and how much they grew since the last report.

    crew: the crew (all workers of the run).
    before: agent steps and updates at the checkpoint from which the run resumed.
    tasks: agent steps of each task at that checkpoint.
    roles: how workers of each kind spent their time, as {role: {"workers": number, "env", "infer", "learn", "replay",
    "wait": fractions}}.
    """

    def __init__(
        self, crew: Crew, frames_per_step: int, before: Mapping[str, int], tasks: Mapping[str, int] | None = None
    ):
        self.crew, self.frames_per_step, self.before, self.tasks_before = crew, frames_per_step, before, tasks or {}
        self.totals, self.at, self.memory = dict[str, Any](), time.monotonic(), Throttled(memory_mb)
        self.roles: dict[str, dict[str, float]] = {}
        self.reported: dict[int, int] = {}  # a worker's row of the counters → number of its games reported
        self.losses = np.zeros((1, 2))  # sum and count of each metric's values at the last report

    @property
    def counters(self) -> Counters:
        assert self.crew.counters is not None
        return self.crew.counters

    @property
    def steps(self) -> int:
        return self.before["steps"] + int(self.counters.column("steps").sum())

    @property
    def frames(self) -> int:
        return self.steps * self.frames_per_step

    @property
    def updates(self) -> int:
        """Number of updates since the start of the run, summed over all roles (kinds of workers) that learn. For a role
        with several agents, all agents' updates are summed. For other roles, the learner with the most updates counts.
        """
        made, roles = self.counters.column("updates"), [role for role in self.crew.roles if role.learner]
        each = sum(made[self.crew.agent_rows(role)].sum() for role in roles)
        own = sum(made[self.crew.rows(role, past=True)].max(initial=0) for role in roles if not role.agents)
        return self.before["updates"] + int(each + own)

    def report_games(self, reporter: Reporter, warn: Callable[[str], None]) -> None:
        """Report the games that ended since the last call, in the order of their ends. Warn if games were lost."""
        counts, games = self.counters.column("episodes").astype(np.int64), list[np.ndarray]()
        for row in map(int, np.flatnonzero(counts)):
            count = int(counts[row])
            first = max(self.reported.get(row, 0), count - EPISODES)
            if first > self.reported.get(row, 0):
                warn("games ended faster than they could be counted: reports lack some")
            games += [self.counters.games[row, i % EPISODES] for i in range(first, count)]
            self.reported[row] = count
        several, found, spec = any(role.agents for role in self.crew.roles), list[Row](), self.spec
        at = {"frames": self.frames, "steps": self.steps}
        for return_, length, lane, agent, _ in sorted(games, key=lambda game: float(game[-1])):
            game = {**at, "episodic_return": float(return_), "episodic_length": int(length), "lane": int(lane)}
            task = {"task": spec.task_of(int(lane))} if spec is not None and spec.tasks else {}
            found.append({**game, **task, **({"agent": int(agent)} if several else {})})
        reporter.episode(*found)

    @property
    def spec(self) -> EnvSpec | None:
        """Description of the run's environments, or None if no worker acts in environments."""
        return next((role.envs.spec for role in self.crew.roles if role.envs is not None), None)

    def read(self) -> tuple[Row, dict[str, float]]:
        """Return the numbers of one report, and the mean of each metric of the learners since the last call."""
        now, steps, column, roles = time.monotonic(), self.steps, self.counters.column, self.crew.roles
        passed, self.at = now - self.at, now
        made = self._new("steps", steps - self.before["steps"])
        lag_max = _largest(self._new("lags", self.counters.lags.sum(0)), int(column("lag_max").max()))
        lags, lag_sum = (self._new(name, column(name).sum()) for name in ("lag_count", "lag_sum"))
        learners = [row for role in roles if role.learner for row in self.crew.rows(role)]
        depths, takings = (self._growth(name, learners, "queue") for name in ("depth_sum", "depth_count"))
        league = next((league for role in roles if (league := role.find(League)) and league.begun[0]), None)
        elo = {} if league is None else {str(i): round(float(league.elo[i]), 1) for i in range(league.agents)}
        hosts = self.crew.fleet.report() if self.crew.fleet is not None else {}
        row = {
            "frames": steps * self.frames_per_step,
            "steps": steps,
            "updates": self.updates,
            "fps": ratio(made * self.frames_per_step, passed, 1),
            "sps": ratio(made, passed, 1),
            "lag_mean": ratio(lag_sum, lags, 4),
            "lag_max": lag_max if lags else None,
            **self.tasks(),
            **({"agent_elo": elo} if elo else {}),
            **({"hosts": hosts} if hosts else {}),
            **self._times(),
            "queue_depth": ratio(depths, takings),
            "restarts": int(column("restarts").sum()) + self.crew.lost,
            "memory_mb": self.memory(),
            **self._service(passed, lags),
        }
        sums = self.counters.metrics.sum(0)
        new, self.losses = sums - self.losses, sums
        return row, {name: float(new[i, 0] / new[i, 1]) for name, i in self.counters.names.items() if new[i, 1] > 0}

    def tasks(self, made: list[list[int]] | None = None) -> Row:
        """Return {"task_steps": {task: agent steps}} if the run has several tasks, else {}.

        made: steps of each worker and task. If None, use the workers' counters.
        """
        steps, spec = np.sum(self.counters.tasks if made is None else made, 0, int).tolist(), self.spec
        if spec is None or not steps:
            return {}
        return {"task_steps": {k: n + self.tasks_before.get(k, 0) for k, n in zip(spec.tasks, steps, strict=True)}}

    def _times(self) -> Metrics:
        """Return the fraction of all workers' time for each kind of work since the last call. Also update `roles`."""
        rows = [self.crew.rows(role, past=True) for role in self.crew.roles]
        spent = [[self.counters.column(kind)[own].sum() for kind in KINDS] for own in rows]
        new = self._new("time", np.array(spent))
        for role, own in zip(self.crew.roles, new, strict=True):
            fractions = {kind: ratio(n, own.sum(), 4) or 0.0 for kind, n in zip(KINDS, own, strict=True)}
            self.roles[role.name] = {"workers": self.crew.count(role), **fractions}
        return {f"time_{kind}": ratio(n, new.sum(), 4) for kind, n in zip(KINDS, new.sum(0), strict=True)}

    def _new(self, name: str, total: Any) -> Any:
        """Return how much a total (or an array of totals) grew since the last call. If it fell, return 0."""
        before, self.totals[name] = self.totals.get(name, 0), total
        return np.maximum(total - before, 0)

    def _growth(self, column: str, rows: Iterable[int], name: str = "") -> float:
        return float(self._new(name + column, self.counters.column(column)[list(rows)].sum()))

    def silent(self, now: float) -> Iterator[str]:
        """Yield a warning for each worker whose loop has stood still for SILENCE seconds."""
        for worker in self.crew.workers():
            stamp = self.counters.values[worker.ctx.row, COLUMNS.index("stamp")]
            if stamp and not worker.done and now - stamp > SILENCE:
                yield f"worker {worker.role.name} {worker.ctx.index} has not taken a turn for {SILENCE:.0f} s"

    # ------------------------------------------------------------------------------------------ acting and training

    def _service(self, passed: float, learnt: float) -> Metrics:
        """Return metrics of the last `passed` seconds, in which learners trained on `learnt` transitions."""
        acting, training = self._rows()
        served, calls = self._growth("served", acting), self._growth("calls", acting)
        updates = self._new("updates", self.updates - self.before["updates"])
        searches, simulations = self.counters.column("simulations").any(), self._growth("simulations", acting)
        games, first, time_spent = self._growth("episodes", acting), "cpu" not in self.totals, cpu_seconds()
        cpu = ratio(self._new("cpu", time_spent), passed * cores(), 4)
        return {
            "pps": ratio(served, passed),
            "predict_batch": ratio(served, calls),
            "tps": ratio(updates, passed),
            "train_batch": ratio(learnt, updates),
            **self._deciles("predict_batch", acting),
            **self._deciles("train_batch", training),
            **self._agents(acting),
            **({"simulations_per_second": ratio(simulations, passed)} if searches else {}),
            **({"games_per_hour": ratio(3600 * games, passed)} if searches else {}),
            **self._parameter_servers(),
            "cpu": None if first else cpu,
        }

    def _rows(self) -> tuple[list[int], list[int]]:
        """Return the counters' rows of workers that act and of workers that only learn. Include past workers."""
        rows: tuple[list[int], list[int]] = [], []
        for role in self.crew.roles:
            rows["source" in role.edges()].extend(self.crew.rows(role, past=True))
        return rows

    def _deciles(self, name: str, rows: list[int]) -> Metrics:
        new = self._new(f"{name} sizes", self.counters.sizes[rows].sum(0))
        if not new.sum():
            return {}
        reached = np.cumsum(new) / new.sum()
        return {f"{name}_p{round(100 * q)}": float(np.searchsorted(reached, q)) for q in DECILES}

    def _agents(self, acting: list[int]) -> Metrics:
        """Return metrics of predictors, which choose actions for other workers, or {} without predictors."""
        tables: list[tuple[Role, Any]] = [(r, r.edges()["agents"]) for r in self.crew.roles if "agents" in r.edges()]
        tables = [(role, table) for role, table in tables if table.is_open]
        if not tables:
            return {}
        pools = [table.pool for _, table in tables]
        metrics: Metrics = {
            "agents": sum(pool.present for pool in pools),
            "predictors": sum(self.crew.count(role) for role, _ in tables),
            "trainers": sum(self.crew.count(role) for role in self.crew.roles if "source" in role.edges()),
            "prediction_queue": ratio(self._growth("depth_sum", acting), self._growth("depth_count", acting)),
        }
        if waits := [found for pool in pools if (found := pool.waits()) is not None]:
            seconds, count = (sum(column) for column in zip(*waits, strict=True))
            waited = 1e3 * self._new("waited", seconds)
            metrics["agent_wait_ms"] = ratio(waited, self._new("waits", count))
        return metrics

    def _parameter_servers(self) -> Metrics:
        """Return the metrics of parameter servers, or {} if the run has none. Staleness is counted in updates."""
        servers = [role.holds["server"] for role in self.crew.roles if "server" in role.holds]
        if not servers:
            return {}
        totals = [server.totals() for server in servers]
        versions = np.concatenate([t["versions"] for t in totals])
        lags = self._new("staleness", np.sum([t["lags"] for t in totals], 0))
        lag_sum = self._new("staleness sum", float(sum(t["lag_sum"] for t in totals)))
        found, ever = np.flatnonzero(lags), max(t["lag_max"] for t in totals)
        return {
            "shard_updates_min": float(versions.min()),
            "shard_updates_max": float(versions.max()),
            "grads_applied": float(sum(t["applied"].sum() for t in totals)),
            "grads_discarded_stale": float(sum(t["stale"].sum() for t in totals)),
            "grads_discarded_outlier": float(sum(t["outlier"] for t in totals)),
            "staleness_min": float(found[0]) if found.size else None,
            "staleness_mean": ratio(lag_sum, float(lags.sum())),
            "staleness_max": float(_largest(lags, ever)) if found.size else None,
        }


def _largest(counts: np.ndarray, ever: int) -> int:
    """Return the largest value in a histogram. If the last bin, which has no upper end, is not empty, return `ever`."""
    top = int(np.flatnonzero(counts).max(initial=0))
    return top if top < len(counts) - 1 else ever


def ratio(a: float, b: float, digits: int = 3) -> float | None:
    """Return a / b, rounded to `digits` digits. Return None if b is not positive."""
    return round(float(a) / float(b), digits) if b > 0 else None
