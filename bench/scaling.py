"""How replicas scale, measured, simulated and predicted: 1, 2, 4, 8 of them, beside Accel RL's table for 8 GPUs.

    python bench/scaling.py
    python bench/scaling.py --draw       # models, page and picture anew, from what was measured

Measured here: what averaging gradients costs (bench/server.py), how long a replica's rollouts take, and, for as many
replicas as there are cores, their rate. Everything else is computed from that by bench/scaling.py.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table
from measure import measure
from server import PARTS, exchange, parameters, rollouts

from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import write_json

# How replicas scale: two simulations of replicas whose rollouts take random times, and a model of time and hour


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
    update. T includes the optimizer's step. Rollouts are independent of each other, also of the replica's last one.
    """
    times = draw(np.random.default_rng(seed), (updates, replicas))
    return float(times.mean() / (times.max(1).mean() + cost))


class Center:
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
    away. `less`: what a replica alone spends on its own optimizer's step, part of T.

    Staleness, in updates: how many others updated a chunk between a replica's look at it and its own update of it,
    mean over chunks and updates. Efficiency: updates / (time · R) · mean(T). The first tenth doesn't count.
    """
    center = Center(replicas, chunks, service)
    drawn = draw(np.random.default_rng(seed), (updates + 2 * replicas,))
    times = iter(np.maximum(drawn - less, 0.0).tolist())
    events = [(next(times) * (i + 1) / replicas, i) for i in range(replicas)]  # they begin out of step
    heapq.heapify(events)
    done, warm, begun, now = 0, updates // 10, 0.0, 0.0
    while done < updates:
        now, i = heapq.heappop(events)
        if center.left[i]:
            heapq.heappush(events, (center.visit(i, now), i))
            continue
        done += 1
        if done == warm:
            begun, center.staleness = now, []
        center.left[i] = list(range(chunks))
        heapq.heappush(events, (now + next(times), i))
    return (updates - warm) / ((now - begun) * replicas) * float(drawn.mean()), float(np.mean(center.staleness))


# ------------------------------------------------------------------------------------------- a model of many GPUs


@dataclass(frozen=True)
class Machine:
    """What is assumed of a machine with several GPUs."""

    bandwidth: float = 10e9  # bytes/s of one GPU's ring neighbor, as NCCL reaches it with a few MB
    latency: float = 10e-6  # of one of the ring's 2(R − 1) turns
    host: float = 10e9  # bytes/s between a GPU and the host's memory (PCIe 3.0 × 16)


@dataclass(frozen=True)
class Algorithm:
    """What one GPU does. `updates`: of a rollout of `rows` agent steps, each with an all-reduce, or a visit to the
    center. `hours`: of one GPU for `steps` agent steps.
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


NUMBERS = (1, 2, 4, 8)
NETWORKS = {"a3c": "small", "nature": "Nature's"}
LANES, UNROLL = 16, 5  # of a replica, as Accel RL's A2C
ROWS = LANES * UNROLL
RUN = {"env": "ALE/Pong-v5", "network": "a3c", "lanes": LANES, "unroll": UNROLL, "replicas": 1}
# Stooke & Abbeel 2018, table 2: hours to 50M agent steps on a DGX-1 (8 × P100, 40 cores), per number of GPUs. There is
# no figure for one GPU of the asynchronous ones: theirs is taken to be the synchronous ones'. PPO's rollouts are not in
# the table: the paper's 128 steps of PPO are assumed, 4 passes in minibatches of 512 as released.
PUBLISHED: list[tuple[Algorithm, dict[int, float]]] = [
    (Algorithm("A2C", 16 * 5, 1, 3.8), {1: 3.8, 2: 2.2, 4: 1.2, 8: 0.59}),
    (Algorithm("A3C", 16 * 5, 1, 3.8, sync=False), {2: 2.4, 4: 1.3, 8: 0.65}),
    (Algorithm("PPO", 8 * 128, 8, 4.4), {1: 4.4, 2: 2.6, 4: 1.5, 8: 1.1}),
    (Algorithm("APPO", 8 * 128, 8, 4.4, sync=False), {2: 2.8, 4: 1.5, 8: 0.71}),
]


def cores() -> int:
    return len(os.sched_getaffinity(0))


# -------------------------------------------------------------------------------------------------------- measuring


def exchanges(turns: int) -> list[Row]:
    """A row per network and number of replicas, µs. Wall time counts, or CPU time where replicas share cores."""
    found = []
    for n in NUMBERS:
        for network, parts in exchange(list(NETWORKS), n, turns).items():
            crowded = n > cores()
            row: Row = {"network": network, "parameters": parameters(network), "replicas": n, "oversubscribed": crowded}
            for name, (wall, cpu) in zip(PARTS, parts.tolist(), strict=True):
                row |= {f"{name}, wall": wall * 1e6, f"{name}, CPU": cpu * 1e6}
            clock = "CPU" if crowded else "wall"
            row["overhead"] = sum(row[f"{name}, {clock}"] for name in PARTS[:3])
            found.append(row)
            print(f"scaling: {network:<6} {n} replicas: {row['overhead']:7.0f} µs {clock} per update", flush=True)
    return found


def rates(window: float) -> dict[int, float]:
    """Agent steps/s of a2c, one replica on one core, two on two, …, each with LANES lanes."""
    found = {}
    for n in [k for k in NUMBERS if k <= cores()]:
        more = {**RUN, "replicas": n, "lanes": n * LANES, "report_every": 1, "minutes": 30}
        words = [w for k, v in more.items() for w in (f"--{k.replace('_', '-')}", str(v))]
        pinned = f"import os, sys; os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[:n]}); "
        pinned += "os.execv(sys.executable, [sys.executable, '-m', 'polyplay', *sys.argv[1:]])"
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / "run"
            command = [sys.executable, "-c", pinned, "train", "a2c", *words, "--no-tensorboard", "--run", str(run)]
            found[n] = measure(command, run / "metrics.jsonl", 4.0, window, ROOT, stop=True)["sps"]
        print(f"scaling: a2c, {n} replicas: {found[n]:.0f} agent steps/s", flush=True)
    return found


def measured(asked: argparse.Namespace) -> Row:
    """All that is measured; seconds of the rollouts are kept, to 10 µs."""
    found = exchanges(asked.turns)
    times = rollouts(RUN, asked.seconds)
    print(f"scaling: {len(times)} rollouts, {1000 * np.mean(times):.1f} ms", flush=True)
    kept = {"exchange": found, "rollouts": np.round(times, 5).tolist()}
    return kept | {"sps": {str(k): v for k, v in (rates(asked.window) if asked.window else {}).items()}}


# -------------------------------------------------------------------------------------------------- what follows


def shape(times: list[float]) -> Row:
    """The fit beside what was measured."""
    fitted, logs = fit(times), np.log(times)
    high = {p: float(np.quantile(times, p)) for p in (0.5, 0.95, 0.99)}
    z = {0.5: 0.0, 0.95: 1.645, 0.99: 2.326}
    row: Row = {"rollouts": len(times), "mean, ms": 1e3 * float(np.mean(times)), "σ of log": fitted.sigma}
    for p, value in high.items():
        row[f"{100 * p:.0f} %, ms"] = 1e3 * value
        row[f"{100 * p:.0f} %, fit"] = 1e3 * math.exp(fitted.mu + z[p] * fitted.sigma)
    return row | {"correlation with the next": float(np.corrcoef(logs[:-1], logs[1:])[0, 1])}


def simulated(kept: Row) -> list[Row]:
    """Efficiencies of replicas of the small network: what the fit gives, and what rollouts drawn anew from those
    measured give.
    """
    times = np.array(kept["rollouts"])
    fitted = fit(kept["rollouts"])
    small = {r["replicas"]: r for r in kept["exchange"] if r["network"] == "a3c"}
    found = []
    for n in NUMBERS:
        cost, step = 1e-6 * small[n]["overhead"] * (n > 1), 1e-6 * small[1]["step, CPU"]
        held = (step + 1e-6 * small[1]["copy, CPU"]) / 3
        free, stale = asynchronous(fitted.draw, n, held, less=step)
        row: Row = {"replicas": n, "slowest / mean": straggling(fitted.sigma, n), "exchange, ms": 1e3 * cost}
        row["in step"] = synchronous(fitted.draw, n, cost)
        row["in step, as measured"] = synchronous(lambda rng, size: rng.choice(times, size), n, cost)
        row |= {"asynchronous": free, "staleness, updates": stale}
        if kept["sps"].get(str(n)):
            row["measured"] = kept["sps"][str(n)] / n / kept["sps"]["1"]
        found.append(row)
    return found


def predicted(sigma: float, machine: Machine) -> list[Row]:
    """Hours beside Accel RL's. From 2: the published hours on 2 GPUs and the model's ratio of efficiencies."""
    found = []
    for what, published in PUBLISHED:
        own = shorter(sigma, what.rows if what.sync else what.rows // what.updates, ROWS)
        for n in NUMBERS[1:]:
            row: Row = {"algorithm": what.name, "GPUs": n, "published, h": published[n]}
            guess = hours(what, n, own, machine)
            row |= {"model, h": guess, "error": off(guess, published[n])}
            row |= {"efficiency, model": efficiency(what, n, own, machine)}
            row |= {"efficiency, published": what.hours / n / published[n]}
            row["beyond one GPU, ms an update"] = 1e3 * implied(what, n, published[n])
            if n > 2:
                again = published[2] * guess / hours(what, 2, own, machine)
                row |= {"from 2, h": again, "its error": off(again, published[n])}
            found.append(row)
    return found


def off(guess: float, true: float) -> str:
    return f"{100 * (guess / true - 1):+.0f} %"


# ---------------------------------------------------------------------------------------------------------- the page


def draw(rows: list[Row], kept: list[Row], out: Path) -> None:
    """Left efficiencies here, right hours: published as points, the model as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=140, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    names = {k: f"{k}, simulated" for k in ("in step", "asynchronous")} | {"measured": "in step, measured"}
    for (key, label), color in zip(names.items(), COLORS, strict=False):
        there = [r for r in rows if r.get(key) is not None]
        style = "o" if key == "measured" else "o-"
        left.plot([r["replicas"] for r in there], [r[key] for r in there], style, color=color, label=label)
    left.set_ylabel("efficiency", color=INK)
    left.set_ylim(0.0, 1.05)
    left.set_title("replicas on this machine's cores", loc="left", color=INK, fontsize=10)
    for (what, published), color in zip(PUBLISHED, COLORS, strict=False):
        mine = [r for r in kept if r["algorithm"] == what.name]
        model = {1: what.hours} | {r["GPUs"]: r["model, h"] for r in mine}
        right.plot(list(model), [n * h for n, h in model.items()], "-", color=color)
        right.plot(list(published), [n * h for n, h in published.items()], "o", color=color, label=what.name)
    right.set_ylim(bottom=0.0)
    right.set_ylabel("GPUs · hours to 50M agent steps", color=INK)
    right.set_title("Accel RL on GPUs: published (points), model (lines)", loc="left", color=INK, fontsize=10)
    for panel, word in ((left, "replicas"), (right, "GPUs")):
        panel.set_xscale("log", base=2)
        panel.set_xticks(NUMBERS, [str(n) for n in NUMBERS])
        panel.set_xlabel(word, color=INK)
        panel.grid(color=FAINT, linewidth=0.8)
        panel.tick_params(colors=INK, length=0)
        panel.legend(frameon=False, fontsize=8, loc="lower left")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.savefig(out)


def shown(row: Row) -> Row:
    """A row of the exchange, the clock that counts alone."""
    clock = "CPU" if row["oversubscribed"] else "wall"
    first: Row = {"network": NETWORKS[row["network"]], "parameters": row["parameters"], "replicas": row["replicas"]}
    first["clock"] = "CPU, oversubscribed" if row["oversubscribed"] else "wall"
    times = {f"{name}, µs": row[f"{name}, {clock}"] for name in PARTS}
    return {**first, **times, "overhead, µs": row["overhead"]}


EXCHANGE = """
`AllReduce` in processes, between updates 16 MB of other memory touched. *copy*: own gradient into shared memory and
telling the others; *wait*: for the others, who have the same to do (mean; the others are medians); *mean*: of all
gradients; *step*: the optimizer's, which one replica has as well and is not in the overhead. Where there are more
replicas than cores ({cores}) they wait for a core: there it is CPU time, without wakes and waiting.
"""
SIMULATED = """
Efficiency: agent steps/s of all, over those of so many that need not wait. *in step*: every update takes the slowest
of independent lognormal rollouts and the exchange above; *as measured*: rollouts drawn anew from those measured, for
the fit's tail. *asynchronous*: a central vector in 3 chunks, no barrier; a chunk is held for a third of a step and a
copy. Staleness is the number of others' updates between looking at a chunk and updating it: R − 1 whatever the times
are, for while one replica makes one update the others make one each. *measured*: a2c in processes, so many replicas
on so many cores, over those times one replica on one core. The simulation knows of no memory that cores share.
"""
PREDICTED = """
hours(R) = hours(1) / (R · efficiency). In step: efficiency = T / (T · slowest/mean + updates · ring), T = rows / rate
of one GPU, ring = 2(R−1)/R · bytes / bandwidth + 2(R−1) · latency. Asynchronous: the simulation, a chunk held for a
third of 4 · bytes / host. The spread of rollouts is the one measured above on a CPU core, for longer rollouts smaller
by the root of the number of agent steps. Assumed, not measured: bandwidth {bandwidth:g} GB/s, latency {latency:g} µs,
host {host:g} GB/s, 0.90M parameters, PPO's 128 steps and 8 updates a rollout; A3C's and APPO's hours on one GPU are
A2C's and PPO's. *beyond one GPU*: what the published hours leave for each update above T; *from 2*: the published
hours on 2 GPUs and the model's ratio.
"""
MISSING = """
What the model leaves out: cores, memory and buses of the host that all GPUs share, and replicas that are slower than
others all the time. It has no figure of theirs but the hours on one GPU.
"""


def summary(kept: Row, rows: list[Row], guesses: list[Row], where: Row, machine: Machine) -> list[str]:
    options = shlex.join(w for k, v in RUN.items() for w in (f"--{k}", str(v)))
    assumed = {"bandwidth": machine.bandwidth / 1e9, "latency": 1e6 * machine.latency, "host": machine.host / 1e9}
    text = ["# How replicas scale", "", *lines_about(where), "", "![scaling](scaling.png)", ""]
    text += ["## What averaging gradients costs", EXCHANGE.format(cores=where["machine"]["cores"])]
    text += [*table([shown(r) for r in kept["exchange"]]), ""]
    text += ["## Replicas whose rollouts take random times: simulated", ""]
    text += [f"`polyplay train a2c {options}` on a core of its own, from update to update:", ""]
    text += [*table([shape(kept["rollouts"])]), SIMULATED, *table(rows), ""]
    text += ["## Eight GPUs: predicted, beside Accel RL's table (Stooke & Abbeel 2018)", PREDICTED.format(**assumed)]
    return [*text, *table(guesses), "", *judged(guesses), MISSING.rstrip()]


def judged(guesses: list[Row]) -> list[str]:
    """The errors in words, per algorithm."""
    answer = []
    for what, published in PUBLISHED:
        mine = [r for r in guesses if r["algorithm"] == what.name]
        errors = [r["model, h"] / r["published, h"] - 1 for r in mine]
        eight = mine[-1]
        answer.append(
            f"- {what.name}: 8 GPUs in {eight['model, h']:.2f} h, published {published[8]:g} ({eight['error']}); mean "
            f"error {100 * np.mean(np.abs(errors)):.0f} % over 2, 4, 8 GPUs; from 2 GPUs {eight['its error']}"
        )
    return answer


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--turns", type=int, default=150, help="updates of each exchange")
    parser.add_argument("--seconds", type=float, default=40.0, help="of rollouts")
    parser.add_argument("--window", type=float, default=15.0, help="seconds of each rate; 0: none")
    parser.add_argument("--bandwidth", type=float, default=Machine.bandwidth, help="bytes/s of a GPU's neighbor (1e10)")
    parser.add_argument("--latency", type=float, default=Machine.latency, help="seconds of a ring's turn")
    parser.add_argument("--host", type=float, default=Machine.host, help="bytes/s between GPU and host")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling")
    asked = parser.parse_args()
    file, machine = asked.out.with_suffix(".json"), Machine(asked.bandwidth, asked.latency, asked.host)
    where = about()
    if asked.draw:
        old = json.loads(file.read_text())
        where, kept = {k: old[k] for k in where}, old["measured"]
    else:
        kept = measured(asked)
        write_json(file, {**where, "measured": kept})
    rows = simulated(kept)
    guesses = predicted(fit(kept["rollouts"]).sigma, machine)
    data = {**where, "measured": kept, "simulated": rows, "predicted": guesses}
    publish(asked.out, data, summary(kept, rows, guesses, where, machine))
    draw(rows, guesses, asked.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
