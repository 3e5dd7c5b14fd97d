"""How replicas scale: two simulations of replicas whose rollouts take random times, and a model of time and hours.

Pure. Times are in seconds unless said otherwise. Efficiency of R replicas: agent steps per second of all of them over
R times those of one that updates its own weights alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Draw = Callable[..., np.ndarray]  # (rng, shape) → times of rollouts
GRID = 20_000  # points of an integral


@dataclass(frozen=True)
class Lognormal:
    """log T ~ N(mu, sigma²)."""

    mu: float
    sigma: float

    @property
    def mean(self) -> float:
        return math.exp(self.mu + self.sigma**2 / 2)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.lognormal(self.mu, self.sigma, shape)

    def longest(self, n: int) -> float:
        """E[max of n] = ∫₀¹ F⁻¹(u) n uⁿ⁻¹ du, by midpoints."""
        u = (np.arange(GRID) + 0.5) / GRID
        inverse = np.exp(self.mu + self.sigma * np.array([NormalDist().inv_cdf(x) for x in u]))
        return float(np.mean(inverse * n * u ** (n - 1)))


def fit(times: Sequence[float]) -> Lognormal:
    """Maximum likelihood: mean and deviation of the logarithms."""
    logs = np.log(np.asarray(times, float))
    return Lognormal(float(logs.mean()), float(logs.std()))


def straggling(sigma: float, replicas: int) -> float:
    """E[max of R] / E[one] of lognormal times: what waiting for the slowest costs. 1 for one replica."""
    one = Lognormal(-(sigma**2) / 2, sigma)  # of mean 1
    return one.longest(replicas) if replicas > 1 else 1.0


def synchronous(draw: Draw, replicas: int, cost: float, updates: int = 20_000, seed: int = 0) -> float:
    """Efficiency of R replicas in step: mean(T) / (mean(max over R of T) + cost). `cost`: of the all-reduce, per
    update. T includes the optimiser's step. Rollouts are independent of each other, also of the replica's last one.
    """
    times = draw(np.random.default_rng(seed), (updates, replicas))
    return float(times.mean() / (times.max(1).mean() + cost))


class Centre:
    """The central vector of asynchronous replicas, in chunks; a chunk has one holder at a time."""

    def __init__(self, replicas: int, chunks: int, service: float):
        self.service, self.free, self.version = service, [0.0] * chunks, [0] * chunks
        self.seen = [[0] * chunks for _ in range(replicas)]
        self.left = [list(range(chunks)) for _ in range(replicas)]
        self.staleness: list[int] = []

    def visit(self, replica: int, now: float) -> float:
        """Takes the first of its chunks that is free; when to come again."""
        left = self.left[replica]
        chunk = next((c for c in left if self.free[c] <= now), None)
        if chunk is None:
            return min(self.free[c] for c in left)
        self.staleness.append(self.version[chunk] - self.seen[replica][chunk])
        self.version[chunk] += 1
        self.seen[replica][chunk] = self.version[chunk]
        self.free[chunk] = now + self.service
        left.remove(chunk)
        return now + self.service


def asynchronous(
    draw: Draw,
    replicas: int,
    service: float,
    less: float = 0.0,
    chunks: int = 3,
    updates: int = 4000,
    seed: int = 0,
) -> tuple[float, float]:
    """(efficiency, mean staleness) of replicas that don't wait for each other: after each rollout of time T − less a
    replica claims every chunk once, the first that is free first, holds it for `service`, and takes its new values
    away. `less`: what a replica alone spends on its own optimiser's step, part of T.

    Staleness, in updates: how many others updated a chunk between a replica's look at it and its own update of it,
    mean over chunks and updates. Efficiency: updates / (time · R) · mean(T). The first tenth doesn't count.
    """
    centre = Centre(replicas, chunks, service)
    drawn = draw(np.random.default_rng(seed), (updates + 2 * replicas,))
    times = iter(np.maximum(drawn - less, 0.0).tolist())
    events = [(next(times) * (i + 1) / replicas, i) for i in range(replicas)]  # they begin out of step
    heapq.heapify(events)
    done, warm, begun, now = 0, updates // 10, 0.0, 0.0
    while done < updates:
        now, i = heapq.heappop(events)
        if centre.left[i]:
            heapq.heappush(events, (centre.visit(i, now), i))
            continue
        done += 1
        if done == warm:
            begun, centre.staleness = now, []
        centre.left[i] = list(range(chunks))
        heapq.heappush(events, (now + next(times), i))
    return (updates - warm) / ((now - begun) * replicas) * float(drawn.mean()), float(np.mean(centre.staleness))


# ------------------------------------------------------------------------------------------- a model of many GPUs


@dataclass(frozen=True)
class Machine:
    """What is assumed of a machine with several GPUs."""

    bandwidth: float = 10e9  # bytes/s of one GPU's ring neighbour, as NCCL reaches it with a few MB
    latency: float = 10e-6  # of one of the ring's 2(R − 1) turns
    host: float = 10e9  # bytes/s between a GPU and the host's memory (PCIe 3.0 × 16)


@dataclass(frozen=True)
class Algorithm:
    """What one GPU does. `updates`: of a rollout of `rows` agent steps, each with an all-reduce, or a visit to the
    centre. `hours`: of one GPU for `steps` agent steps.
    """

    name: str
    rows: int
    updates: int
    hours: float
    sync: bool = True
    parameters: int = 900_000
    steps: float = 50e6

    @property
    def rollout(self) -> float:
        """Seconds of a rollout and its updates on one GPU: rows / (steps / (3600 · hours))."""
        return self.rows * 3600.0 * self.hours / self.steps


def ring(nbytes: float, gpus: int, machine: Machine) -> float:
    """Seconds of a ring all-reduce (Patarasuk & Yuan 2009): 2(R − 1)/R · bytes / bandwidth + 2(R − 1) · latency."""
    return 2 * (gpus - 1) / gpus * nbytes / machine.bandwidth + 2 * (gpus - 1) * machine.latency


def shorter(sigma: float, rows: int, per: int) -> float:
    """Relative deviation of a rollout of `rows` agent steps when that of one of `per` is sigma, steps independent."""
    return sigma * math.sqrt(per / rows)


def efficiency(what: Algorithm, gpus: int, sigma: float, machine: Machine) -> float:
    """Of R GPUs. In step: T / (T · straggling + updates · ring). Asynchronous: `asynchronous`, a chunk held for a
    third of the time that reading and writing weights and statistics takes, 4 · bytes / host. `sigma`: of the time
    from update to update.
    """
    nbytes, one = 4.0 * what.parameters, what.rollout
    if gpus == 1:
        return 1.0
    if what.sync:
        return one / (one * straggling(sigma, gpus) + what.updates * ring(nbytes, gpus, machine))
    times = Lognormal(math.log(one / what.updates) - sigma**2 / 2, sigma)
    return asynchronous(times.draw, gpus, 4.0 * nbytes / machine.host / 3)[0]


def hours(what: Algorithm, gpus: int, sigma: float, machine: Machine) -> float:
    """hours of one GPU / (R · efficiency)."""
    return what.hours / (gpus * efficiency(what, gpus, sigma, machine))


def implied(what: Algorithm, gpus: int, published: float) -> float:
    """Seconds of each update that `published` hours on R GPUs leave beyond those of one GPU:
    (rows · R · 3600 · published / steps − T) / updates.
    """
    return (what.rows * gpus * 3600.0 * published / what.steps - what.rollout) / what.updates
