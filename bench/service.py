"""A simulated GA3C: agents, predictors and trainers on shared cores, as a closed queueing network in mean values.

`steady` answers what a configuration gives in the long run; `Service` plays a run: what changes takes time to arrive
and to take effect, and every look at it is noisy. Deterministic by its seed.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyplay.workers.autoscale.ga3c import Config, Decision, RateReading, Rule

T_MAX = 5  # rows of a chunk
QUEUE = 100  # chunks that may wait for a trainer
MOST = 128  # of a prediction batch


@dataclass(frozen=True)
class Shape:
    """Seconds that things take. Of a device (GPU) there is one; without one its times are 0."""

    name: str
    cores: int
    env: float  # one agent step, on a core
    predict: tuple[float, float]  # a prediction batch on a core: fixed, per row
    train: tuple[float, float]  # a training batch on a core: fixed, per row
    device_predict: tuple[float, float] = (0.0, 0.0)
    device_train: tuple[float, float] = (0.0, 0.0)
    held: float = 0.4  # share of predict and train during which the interpreter's lock is held
    crowding: float = 0.003  # of all work, lost per agent and core to switching and caches
    convoy: float = 0.03  # of the lock's time, lost per thread that wants it
    bounds: tuple[tuple[str, int, int], ...] = (("agents", 1, 64), ("predictors", 1, 12), ("trainers", 1, 12))
    min_batch: int = 0

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        return {name: (low, high) for name, low, high in self.bounds}


MS = 1e-3
SMALL = Shape("2 cores", 2, 0.4 * MS, (1.0 * MS, 0.12 * MS), (2.5 * MS, 0.3 * MS))
WIDE = (("agents", 1, 256), ("predictors", 1, 16), ("trainers", 1, 16))
DEVICE = Shape(
    "16 cores, GPU",
    16,
    1.5 * MS,
    (1.0 * MS, 0.02 * MS),
    (2.0 * MS, 0.03 * MS),
    (0.4 * MS, 0.01 * MS),
    (0.8 * MS, 0.02 * MS),
    bounds=WIDE,
    min_batch=20,
)
SLOW_ENV = replace(DEVICE, name="16 cores, GPU, slow environment", env=12.0 * MS)
SHAPES = (SMALL, DEVICE, SLOW_ENV)


def steady(shape: Shape, agents: Any, predictors: Any, trainers: Any, min_batch: Any = None) -> dict[str, np.ndarray]:
    """rows, updates, predictions per second, lag (updates), batch (rows of a prediction); numbers or arrays.

    An agent's cycle is an environment step and a prediction. A free predictor takes what has arrived since the last one
    became free, so a batch is rate · service time / predictors. Trainers that are too slow fill their queue, and then
    hold up the agents. Cores slow everything, the interpreter's lock and the device slow predictors and trainers, each
    by the least factor with which it is not asked for more than there is of it: found by damped iteration.
    """
    least = shape.min_batch if min_batch is None else min_batch
    a, p, t, m = np.broadcast_arrays(*(np.asarray(x, float) for x in (agents, predictors, trainers, least)))
    m = T_MAX * np.ceil((m + 1.0) / T_MAX)
    slow, queued, batch = (np.ones(a.shape) for _ in range(3))
    crowd = 1.0 + shape.crowding * a / shape.cores
    for _ in range(250):
        service = slow * queued * (_cost(shape.predict, batch) + _cost(shape.device_predict, batch))
        training = slow * queued * (_cost(shape.train, m) + _cost(shape.device_train, m))
        rate = np.minimum(a / (slow * shape.env + service * (1.0 + 0.5 / p)), p * MOST / service)
        load = rate * training / (t * m)
        rate = rate / np.maximum(load, 1.0)
        batch = 0.7 * batch + 0.3 * np.clip(rate * service / p, 1.0, np.minimum(MOST, np.maximum(a, 1.0)))
        threads = rate / batch * _cost(shape.predict, batch) + rate / m * _cost(shape.train, m)
        cores = (rate * shape.env + threads) * crowd / shape.cores
        lock = threads * shape.held * (1.0 + shape.convoy * (p + t - 2.0))
        device = rate / batch * _cost(shape.device_predict, batch) + rate / m * _cost(shape.device_train, m)
        slow = np.maximum(1.0, slow * cores**0.3)
        queued = np.maximum(1.0, queued * np.maximum(lock, device) ** 0.3)
    over = np.maximum(1.0, np.maximum(np.maximum(lock, device), cores))
    rows = rate / over  # what is left of the iteration's error
    waiting = np.where(load < 1.0, np.minimum(QUEUE, load / np.maximum(1.0 - load, 1e-9)), QUEUE)
    lag = (a * T_MAX / 2 + waiting * T_MAX + t * m) / m
    return {"rows": rows, "updates": rows / m, "predictions": rows, "lag": lag, "queue": waiting, "batch": batch}


def _cost(cost: tuple[float, float], n: Any) -> Any:
    return cost[0] + cost[1] * n


@functools.lru_cache(maxsize=32)
def grid(shape: Shape) -> dict[str, np.ndarray]:
    """`steady` of every configuration, indexed by its numbers less the lowest."""
    axes = [np.arange(low, high + 1) for low, high in shape.limits.values()]
    return steady(shape, **dict(zip(shape.limits, np.meshgrid(*axes, indexing="ij"), strict=True)))


def known(shape: Shape, config: Config) -> dict[str, float]:
    """`steady` of one configuration, from the grid."""
    at = tuple(config[name] - low for name, (low, _) in shape.limits.items())
    return {k: float(v[at]) for k, v in grid(shape).items()}


def best(shape: Shape, lag: float = math.inf) -> tuple[float, Config]:
    """Greatest rows/s of the whole grid where the lag is at most `lag`, and where."""
    all_of = grid(shape)
    rows = np.where(all_of["lag"] <= lag, all_of["rows"], 0.0)
    at = np.unravel_index(int(rows.argmax()), rows.shape)
    return float(rows.max()), {n: int(i) + low for (n, (low, _)), i in zip(shape.limits.items(), at, strict=True)}


@dataclass
class Noise:
    second: float = 0.06  # deviation of the log rate over a look of one second; longer looks average
    drift: float = 0.02  # deviation of what changes slowly, over
    memory: float = 60.0  # seconds
    outliers: float = 0.03  # share of looks in which something else ran: a rate of 60 % to 100 %


class Service:
    """A run of `shape`: `look(config, settle, measure)` and time goes on. `true`: (seconds, rows/s) pieces passed."""

    def __init__(self, shape: Shape, start: Config, seed: int, noise: Noise | None = None):
        self.shape, self.config, self.noise = shape, dict(start), noise or Noise()
        self.rng = random.Random(seed)
        self.now, self.drifting = 0.0, self.rng.gauss(0.0, self.noise.drift)
        self.true: list[tuple[float, float]] = []
        self.flow = self.steady(self.config)["rows"]  # right now

    def steady(self, config: Config) -> dict[str, float]:
        """In the long run."""
        return known(self.shape, config)

    def _pass(self, seconds: float, config: Config) -> float:
        """Time goes on; the mean true rate. The flow comes near its new rate within seconds."""
        if seconds <= 0.0:
            return self.flow
        aim, tau = self.steady(config)["rows"], 0.7
        fade = math.exp(-seconds / tau)
        mean = aim + (self.flow - aim) * tau / seconds * (1.0 - fade)
        self.flow = aim + (self.flow - aim) * fade
        self.now += seconds
        self.true.append((seconds, mean))
        keep = math.exp(-seconds / self.noise.memory)
        self.drifting = self.drifting * keep + self.rng.gauss(0.0, self.noise.drift) * math.sqrt(1.0 - keep * keep)
        return mean

    def look(self, config: Config, settle: float, measure: float) -> RateReading:
        more = max(0, config["agents"] - self.config["agents"])
        self._pass((0.2 + 0.3 * more / self.shape.cores) if config != self.config else 0.0, self.config)
        self.config = dict(config)
        self._pass(settle, config)
        rate = self._pass(measure, config)
        noise = self.noise
        factor = math.exp(self.drifting + self.rng.gauss(0.0, noise.second / math.sqrt(measure)))
        if self.rng.random() < noise.outliers:
            factor *= self.rng.uniform(0.6, 1.0)
        at = self.steady(config)
        share = rate / at["rows"] * factor
        lag = at["lag"] * math.exp(self.rng.gauss(0.0, noise.second / math.sqrt(measure)))
        return RateReading(measure, at["rows"] * share, at["updates"] * share, lag, at["rows"] * share, at["queue"])


def play(rule: Rule, service: Service, start: Config, bounds: Any, seed: int, seconds: float) -> list[tuple]:
    """Run `rule` for so long: its decisions, each with its time."""
    steps, decided = rule(start, bounds, seed), list[tuple[float, Decision]]()
    trial = next(steps)
    while service.now < seconds:
        if trial.decided is not None:
            decided.append((service.now, trial.decided))
        trial = steps.send(service.look(trial.config, trial.settle, trial.measure))
    return decided
