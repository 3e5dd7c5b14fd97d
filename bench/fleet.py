"""Ape-X's actors by the hundred on one machine: what memories and slots hold, how old rows get, and what failures do.

    python bench/fleet.py                                    # 5 min at the paper's rates, then their greatest: 9 min
    python bench/fleet.py --seconds 60 --no-maximum --delay 0.2 --jitter 0.1 --loss 0.01
    python bench/fleet.py --seconds 60 --no-maximum --fail kill=send:10,hang=send:20:3,kill=serve_replay:30
    python bench/fleet.py --short                            # 12 s and two steps of the search

Play that was recorded once, Pong's pictures as `act` wrote them, is sent by simulated actors of one lane each (a few
processes play hundreds) through the real RolloutQueue to the real `serve_replay` workers, from there through the real
SampleQueue to a learner that copies each batch as a transfer to a device would, gives priorities back and computes
nothing: it stands for the paper's GPU, 19 batches of 512 a second. Rollouts are handed over --delay ± --jitter seconds
after they were whole, and --loss of them never: after a gap a lane goes on as with a new episode. --fail is what
tests/faults.py takes; the workers are send, serve_replay and learn.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import senders
import torch
from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table, verdict
from senders import SLACK, Recording, record, spec_of

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_worker import SampleQueue, serve_replay
from polyplay.buffers.rollout_queue import RolloutBatches, RolloutQueue
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters, WorkerContext
from polyplay.envs import Envs
from polyplay.weights.params import Params
from polyplay.workers.crew import Crew
from polyplay.workers.hosts.cluster import Cluster
from polyplay.workers.hosts.fleet import Fleet
from tests.faults import FaultInjector, parse_faults

# The page and the picture of bench/fleet.py


def summed(windows: list[Row]) -> list[Row]:
    """Median, least and greatest of every column."""
    names = [k for k in windows[0] if k != "MB"] + ["MB"] * ("MB" in windows[0])
    values = {k: [w[k] for w in windows if w.get(k) is not None] for k in names}
    ways = {"median": statistics.median, "least": min, "greatest": max}
    return [{"of the windows": how, **{k: f(v) if v else None for k, v in values.items()}} for how, f in ways.items()]


def _flat(row: Row) -> Row:
    """A role's faults, of seconds the median and the greatest."""
    plain = {k: v for k, v in row.items() if "seconds" not in k}
    times = {k.partition("_")[0]: row[k] or {} for k in row if k not in plain}
    return {**plain, **{f"{k} {m} s": found.get(m) for k, found in times.items() for m in ("median", "max")}}


def page(what: Row, asked: argparse.Namespace, held: float) -> list[str]:
    windows, seconds = what["windows"], asked.unroll * asked.actors / asked.rate
    text = ["# A fleet of simulated actors", "", *lines_about(what)]
    text.append(
        f"- {asked.actors} actors in {asked.senders} processes, {asked.memories} memories, rollouts of {asked.unroll}"
    )
    text.append(f"- {asked.capacity:,} transitions kept; batches of 512, {asked.prefetch} ready in each memory's slots")
    text.append(
        f"- delay {asked.delay:g} ± {asked.jitter:g} s, {100 * asked.loss:g} % of rollouts lost, faults: {asked.fail}"
    )
    text += [
        "",
        "![rates](fleet.png)",
        "",
        f"{len(windows)} windows of {asked.window:g} s:",
        "",
        *table(summed(windows)),
        "",
    ]
    text += [
        "*age*: from when a rollout's last row was made until it could be drawn (but for its last 3, whose windows the",
        f"next rollout completes); its first row is {seconds:.1f} s older, so long it takes to be made. *lag*: of rows",
        f"learnt from, in updates since the weights that acted; most {what['lag_max']:.0f}. *lost*, *blocked*, *late*:",
        f"rollouts in a window; blocked had no slot, late were more than {SLACK:g} s behind. *cores*: CPU over time.",
        "",
    ]
    for way, goal in (("in/s", asked.rate), ("out/s", asked.out_rate)):
        each = [w[way] for w in windows]
        text.append(verdict(f"transitions {way}, mean of all windows", statistics.fmean(each), least=goal))
        text.append(verdict(f"transitions {way}, the least window", min(each), least=0.95 * goal))
    if what["harm"]:
        text += ["", *table([{"role": role, **_flat(row)} for role, row in what["harm"]["roles"].items()])]
    if what["maximum"]:
        good = [r["of the target"] for r in what["maximum"] if r["held"] == "yes"]
        most = f"The most that is held: {max(good):.2f} × what was asked for" if good else "More than that is not held"
        text += ["", f"## {most}", ""]
        text += [f"Both rates at once; held: at least {100 * held:.0f} % of both.", "", *table(what["maximum"])]
    return text


def draw(what: Row, asked: argparse.Namespace, out: Path) -> None:
    """Rates and ages by window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    rates, ages = figure.subplots(2, 1, sharex=True)
    at = (np.arange(len(what["windows"])) + 0.5) * asked.window
    for (way, goal, name), color in zip(
        (("in/s", asked.rate, "in"), ("out/s", asked.out_rate, "out")), COLORS, strict=False
    ):
        rates.plot(at, [w[way] for w in what["windows"]], color=color, marker="o", markersize=3, label=name)
        rates.axhline(goal, color=color, linewidth=0.8, linestyle="--")
    for q, color in ((50, COLORS[2]), (99, COLORS[3])):
        ages.plot(
            at, [w[f"age p{q}, s"] for w in what["windows"]], color=color, marker="o", markersize=3, label=f"p{q}"
        )
    rates.set_ylabel("transitions a second", color=INK)
    ages.set_ylabel("age when drawable, s", color=INK)
    ages.set_xlabel("seconds", color=INK)
    ages.set_yscale("log")
    for axes in (rates, ages):
        axes.grid(color=FAINT)
        axes.tick_params(which="both", colors=INK, length=0)
        axes.legend(frameon=False, labelcolor=INK, loc="best", ncols=2)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    rates.set_ylim(bottom=0)
    rates.set_title(f"{asked.actors} simulated actors; dashed: what is to be held", loc="left", color=INK, fontsize=11)
    figure.savefig(out)


IN, OUT = 12_500.0, 9_700.0  # transitions a second: 360 actors of 139 frames a second, 19 batches of 512
OVER = 1.01  # what is offered, of what is to be held
HELD = 0.97  # of what was asked for, in and out, that counts as held in the search
PATIENCE = 600.0  # seconds for the first batches
ROLES = ("send", "serve_replay", "learn")
MB = 2**20


class SimulatedFleet:
    """The crew, and what of it can be read from outside."""

    def __init__(self, recording: Recording, asked: argparse.Namespace, place: Path):
        spec = spec_of(Field((4, 84, 84), "uint8"))
        kept = {k: v for k, v in spec.items() if k != "agent"}
        each = asked.actors // asked.memories
        sampler: Any = Proportional(0.6, 0.4, first="td")
        more: Any = {"sampler": sampler, "soft": True, "n_step": 3, "reward": "sign", "stack": 4, "start": asked.start}
        replay = Replay(kept, each, asked.capacity // asked.memories, 512, **more)
        self.asked, slots = asked, 2 * asked.actors
        self.queue = RolloutQueue(spec, {}, asked.unroll, 1, slots, asked.actors, asked.memories)
        self.samples = SampleQueue(replay, self.queue, 1, asked.prefetch)
        self.seen = senders.Seen(asked.actors, slots, asked.memories)
        rates = {"rate": asked.rate * OVER, "learn": asked.out_rate * OVER, "actors": float(asked.actors)}
        self.pace = Hyperparameters(**rates, delay=asked.delay, jitter=asked.jitter, loss=asked.loss)
        self.crew = Crew(log=lambda kind, text: print(f"fleet: {text}", flush=True))
        both: Any = {"samples": self.samples, "seen": self.seen, "pace": self.pace}
        self.crew.add(senders.send, n=asked.senders, if_lost="replace", queue=self.queue, recording=recording, **both)
        source = senders.Timed(self.queue, self.seen)
        served: Any = {"source": source, "out": self.samples, "evict_every": 100}
        self.crew.add(serve_replay, n=asked.memories, if_lost="replace", **served)
        self.crew.add(senders.learn, learner=True, copies=asked.copies, **both)
        self.crew.start(())
        self.fresh, self.harm = 0.0, None if asked.fail is None else self._harm(place)

    def _harm(self, place: Path) -> FaultInjector:
        return FaultInjector(parse_faults(self.asked.fail), self.crew, place)

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.crew.poll(min(left, 0.02 if self.harm else 0.2))
            if self.harm:
                self.harm.tick(saved=False)

    def look(self) -> Row:
        """Counts so far."""
        assert self.crew.counters is not None
        self.fresh += self.samples.fresh()
        counts = self.seen.rollouts.sum(0)
        row: Row = {
            "at": time.monotonic(),
            "in": self.fresh,
            "out": 512 * float(self.crew.counters.column("updates").sum()),
        }
        row |= {"ages": self.seen.ages.sum(0), "lags": self.seen.lags.copy(), "rollouts": counts}
        return row | {"cpu": self.cpu(), "busy": busy()}

    def cpu(self) -> Counter[str]:
        """CPU seconds by role so far, of those that live."""
        spent: Counter[str] = Counter()
        for worker in self.crew.workers():
            try:
                spent[worker.role.name] += sum(psutil.Process(worker.runs.pid).cpu_times()[:2])
            except psutil.Error:
                continue
        return spent

    def memory(self) -> float:
        """MB of all workers now; what several share counts once."""
        found = 0.0
        for worker in self.crew.workers():
            try:
                found += psutil.Process(worker.runs.pid).memory_full_info().pss / MB
            except psutil.Error:
                continue
        return found

    def window(self, seconds: float, memory: bool = False) -> Row:
        """What happened in so long, a second."""
        a = self.look()
        self.run(seconds)
        b = self.look()
        passed = b["at"] - a["at"]
        rate = {k: (b[k] - a[k]) / passed for k in ("in", "out")}
        ages, lags, rollouts = b["ages"] - a["ages"], b["lags"] - a["lags"], b["rollouts"] - a["rollouts"]
        own = {f"{role}, cores": max(0.0, b["cpu"][role] - a["cpu"][role]) / passed for role in ROLES}
        row: Row = {"in/s": rate["in"], "out/s": rate["out"], "slots waiting": self.samples.depth}
        row |= {f"age p{q}, s": senders.quantile(ages, q / 100) for q in (50, 99)}
        row["lag, updates"] = float(lags[1] / lags[0]) if lags[0] else None
        for name in ("LOST", "BLOCKED", "LATE"):
            row[name.lower()] = int(rollouts[getattr(senders, name)])
        row |= own | {"others, cores": max(0.0, (b["busy"] - a["busy"]) / passed - sum(own.values()))}
        return row | ({"MB": self.memory()} if memory else {})

    def close(self) -> Row | None:
        if self.harm:
            self.harm.release()
        self.crew.stop()
        return self.harm.report() if self.harm else None


def await_batches(crew: Crew) -> None:
    """Until the learner has had its first ones. SystemExit: it does not come to that."""
    assert crew.counters is not None
    until = time.monotonic() + PATIENCE
    while crew.counters.column("updates").max() < 3:
        if time.monotonic() > until:
            raise SystemExit(f"fleet: no batch within {PATIENCE:.0f} s: a lower --start, or a higher --rate")
        crew.poll(0.2)


def busy() -> float:
    """CPU seconds that the machine's cores have worked."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def greatest(fleet: Any, asked: argparse.Namespace) -> list[Row]:
    """Both rates doubled until one is not held, then halved between; a row for each try."""
    low, high, rows = 1.0, None, list[Row]()
    for _ in range(asked.tries):
        factor = 2 * low if high is None else (low + high) / 2
        fleet.pace.set("rate", asked.rate * factor)
        fleet.pace.set("learn", asked.out_rate * factor)
        fleet.run(asked.settle)
        row = fleet.window(asked.window)
        good = row["in/s"] >= HELD * asked.rate * factor and row["out/s"] >= HELD * asked.out_rate * factor
        rows.append({"of the target": factor, "held": "yes" if good else "no", **row})
        print(f"fleet: × {factor:.2f}: {row['in/s']:.0f} in, {row['out/s']:.0f} out a second", flush=True)
        low, high = (factor, high) if good else (low, factor)
    return rows


def measured(recording: Recording, asked: argparse.Namespace) -> Row:
    with tempfile.TemporaryDirectory(prefix="polyplay-fleet-") as place:
        fleet, found = SimulatedFleet(recording, asked, Path(place)), Row()
        try:
            await_batches(fleet.crew)
            fleet.run(asked.warm)
            n = max(1, round(asked.seconds / asked.window))
            found["windows"] = [fleet.window(asked.window, memory=i % 3 == 0) for i in range(n)]
            found["lag_max"], found["maximum"] = float(fleet.seen.lags[2]), []
            if asked.maximum:
                found["maximum"] = greatest(fleet, asked)
        finally:
            found["harm"] = fleet.close()
    return found


def recorded(asked: argparse.Namespace) -> Recording:
    """The recording, made if it is not there."""
    if not asked.recording.exists():
        print(f"fleet: recording {asked.rows} rows of 8 lanes of Pong into {asked.recording.name}", flush=True)
        record(asked.rows).save(asked.recording)
    return Recording.load(asked.recording)


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rate", type=float, default=IN, help="transitions a second that come")
    parser.add_argument("--out-rate", type=float, default=OUT, help="transitions a second that are learnt from")
    parser.add_argument("--actors", type=int, default=360)
    parser.add_argument("--senders", type=int, default=4, help="processes that play the actors")
    parser.add_argument("--memories", type=int, default=1)
    parser.add_argument("--unroll", type=int, default=100, help="rows of a rollout")
    parser.add_argument("--capacity", type=int, default=200_000, help="transitions; 7.6 kB each")
    parser.add_argument("--start", type=int, default=20_000, help="of each memory")
    parser.add_argument("--prefetch", type=int, default=16, help="slots; 29 MB each")
    parser.add_argument("--seconds", type=float, default=300.0, help="after the warm-up")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds")
    parser.add_argument("--window", type=float, default=10.0, help="seconds")
    parser.add_argument("--settle", type=float, default=6.0, help="seconds before each try of the search")
    parser.add_argument("--tries", type=int, default=8, help="of the search for the greatest rates")
    parser.add_argument("--maximum", action=argparse.BooleanOptionalAction, default=True, help="search for it")
    parser.add_argument("--copies", action=argparse.BooleanOptionalAction, default=True, help="the learner copies")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds, of rollouts and of weights")
    parser.add_argument("--jitter", type=float, default=0.0, help="seconds, either way")
    parser.add_argument("--loss", type=float, default=0.0, help="the chance that a rollout gets lost")
    parser.add_argument("--fail", default=None, help="faults, see tests/faults.py")
    parser.add_argument("--rows", type=int, default=1_200, help="of each lane, to record")
    parser.add_argument("--recording", type=Path, default=ROOT / "runs" / "fleet" / "pong.npz", help="kept here")
    parser.add_argument("--short", action="store_true", help="64 actors, 12 s, two tries")
    parser.add_argument("--out", type=Path, default=RESULTS / "fleet")
    asked = parser.parse_args()
    if asked.short:
        brief: Row = {"actors": 64, "senders": 2, "capacity": 20_000, "start": 2_000, "prefetch": 4, "tries": 2}
        vars(asked).update(brief, seconds=12.0, warm=8.0, window=4.0, settle=3.0)
    if asked.actors % asked.memories or asked.actors < asked.senders:
        raise SystemExit(f"--actors {asked.actors}: a multiple of --memories, and one for each of --senders at least")
    return asked


def main() -> None:
    asked = arguments()
    found = measured(recorded(asked), asked)
    what: Row = {**about(), "options": {k: str(v) for k, v in vars(asked).items() if not isinstance(v, Path)}, **found}
    publish(asked.out, what, page(what, asked, HELD))
    draw(what, asked, asked.out.with_suffix(".png"))


# Ape-X's actors on other machines: what a memory and a learner here hold of what eight machines send


LANES, WEIGHTS = 360, 3_292_838  # all actors; parameters of the dueling network for 84 × 84 × 4 and 6 actions
PARTS = ("send", "crew", "main", "serve_replay", "learn")  # of processes' titles


class Vector:
    """Weights as Params reads and writes them."""

    def __init__(self) -> None:
        self.flat = torch.zeros(WEIGHTS)


def send(
    ctx: WorkerContext, *, envs: Envs, out: RolloutQueue, params: Params, recording: str, pace: Hyperparameters
) -> Iterator[None]:
    """The lanes of one machine: a rollout whenever its rows would have been made, if there is a slot by then."""
    played, draws = Recording.load(Path(recording)), np.random.default_rng([ctx.seed, ctx.index, ctx.incarnation])
    producer, vector, version = out.producer(ctx.index), Vector(), -1
    out.patience = 0.05
    at = draws.integers(played.rows - out.T, size=out.lanes)
    while not params.wait(0, ctx.index, 0.05):
        yield
    due = time.monotonic() + out.T * pace.actors / pace.rate * float(draws.random())
    while True:
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
            yield
        while (slot := producer.slot()) is None:
            ctx.counters.add("wait", out.patience)
            yield
        if params.wait(0, ctx.index, 0.0):
            version = params.pull(vector, version)  # type: ignore[arg-type]
        rows = tree.at(producer.rows, slot)
        cut = at + out.T >= played.rows
        at[cut] = 0
        for lane, begin in enumerate(at):
            played.copy(lane % played.lanes, int(begin), tree.map(lambda x, i=lane: x[:, i : i + 1], rows))
        rows["first"][0, cut] = True
        rows["version"][:], rows["made"][:] = version, due
        at += out.T
        producer.commit(slot, ctx.incarnation)
        ctx.counters.add("rollouts", 1)
        ctx.counters.add("steps", out.T * out.lanes)
        due = max(due, time.monotonic() - senders.SLACK) + out.T * pace.actors / pace.rate
        yield


class Timed(senders.Timed):
    """A queue of rollouts whose rows say when they were made: how old they are when a memory has done with them."""

    def batches(self, n: int, in_turn: bool = False) -> RolloutBatches:
        return TimedBatches(self, n, in_turn)


class TimedBatches(RolloutBatches):
    """The memory's end of a Timed queue."""

    queue: Timed

    def consumer(self, c: int, log: Callable[[list[int]], None], **more: Any) -> Iterator[Any]:  # type: ignore[override]
        for taken in super().consumer(c, log=log, **more):
            if taken is None:
                yield None
                continue
            rows, state = taken
            made = float(rows["made"][0, 0])
            yield {k: v for k, v in rows.items() if k != "made"}, state
            self.queue.seen.ages[c, senders.bin_of(time.monotonic() - made)] += 1  # whoever asks again has added it


def learn(
    ctx: WorkerContext, *, samples: SampleQueue, publish: Params, seen: senders.Seen, pace: Hyperparameters
) -> Iterator[None]:
    """As bench/fleet.py's; after each batch the weights are published."""
    vector, version = Vector(), 0
    publish.publish(vector, 0, 0)  # type: ignore[arg-type]
    for _ in senders.learn(ctx, samples=samples, seen=seen, pace=pace, copies=True):
        if samples.version > version:
            version = samples.version
            publish.publish(vector, version, version)  # type: ignore[arg-type]
        yield


class Machines:
    """The crew, and what of it can be read from outside."""

    def __init__(self, asked: argparse.Namespace, machines: int, place: Path):
        spec: Any = spec_of(Field((4, 84, 84), "uint8"))
        lanes = LANES // machines
        sampler: Any = Proportional(0.6, 0.4, first="td")
        more: Any = {"sampler": sampler, "soft": True, "n_step": 3, "reward": "sign", "stack": 4, "start": asked.start}
        kept = {k: v for k, v in spec.items() if k != "agent"}
        replay = Replay(kept, LANES, asked.capacity, 512, **more)
        self.asked = asked
        queue = RolloutQueue(spec | {"made": Field((), "float64")}, {}, asked.unroll, lanes, 2 * machines, machines)
        self.samples, self.params = SampleQueue(replay, queue, 1, asked.prefetch), Params(WEIGHTS, machines)
        self.seen = senders.Seen(1, 1, 1)
        self.pace = Hyperparameters(rate=IN * OVER, learn=OUT * OVER, actors=float(LANES))
        self.fleet = Fleet(Cluster(f"local:{machines}"))
        self.crew = Crew(fleet=self.fleet, log=lambda kind, text: print(f"fleet: {text}"))
        self.crew.directory = place
        envs = Envs("ALE/Pong-v5", lanes, workers=1, **self.crew.env_defaults)
        sends: Any = {"out": queue, "params": self.params, "recording": str(asked.recording), "pace": self.pace}
        self.actors = self.crew.add(send, n=machines, if_lost="replace", envs=envs, **sends)
        served: Any = {"source": Timed(queue, self.seen), "out": self.samples, "evict_every": 100}
        self.crew.add(serve_replay, if_lost="replace", **served)
        self.crew.add(learn, learner=True, publish=self.params, samples=self.samples, seen=self.seen, pace=self.pace)
        self.crew.start(())
        self.fresh, self.queue = 0.0, queue

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.crew.poll(min(left, 0.2))

    def look(self) -> Row:
        """Counts so far."""
        assert self.crew.counters is not None
        self.fresh += self.samples.fresh()
        row: Row = {"at": time.monotonic(), "in": self.fresh, "ages": self.seen.ages.sum(0), "cpu": self.cpu()}
        row |= {"out": 512 * float(self.crew.counters.column("updates").sum()), "lags": self.seen.lags.copy()}
        rows = self.crew.rows(self.actors)
        row |= {"blocked": float(self.crew.counters.column("wait")[rows].sum()), "busy": busy()}
        return row | {"lines": list(self.fleet.report().values())}  # since the last look

    def cpu(self) -> Counter[str]:
        """CPU seconds so far, by what our processes are."""
        spent = Counter[str]()
        known = {os.getpid(): "main"} | {machine.about["pid"]: "crew" for machine in self.fleet.opened}
        main = psutil.Process()  # the raylets are below it
        for process in (main, *main.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline()).removeprefix("polyplay: ")
                part = known.get(process.pid) or next((part for part in PARTS if title.startswith(part)), "rest")
                spent[part] += sum(process.cpu_times()[:2])
        return spent

    def window(self, seconds: float) -> Row:
        """What happened in so long, a second."""
        a = self.look()
        self.run(seconds)
        b = self.look()
        passed = b["at"] - a["at"]
        ages, lags = b["ages"] - a["ages"], b["lags"] - a["lags"]
        row: Row = {f"{k}/s": (b[k] - a[k]) / passed for k in ("in", "out")}
        row |= {f"MB/s {way}": sum(line[f"mb_{way}"] for line in b["lines"]) for way in ("in", "out")}
        row["batches waiting"] = self.samples.depth
        row |= {f"age p{q}, s": senders.quantile(ages, q / 100) for q in (50, 99)}
        row["lag, updates"] = float(lags[1] / lags[0]) if lags[0] else None
        row["blocked"] = (b["blocked"] - a["blocked"]) / passed / self.queue.producers
        row |= {f"{part}, cores": max(0.0, b["cpu"][part] - a["cpu"][part]) / passed for part in PARTS}
        row["busy, cores"] = (b["busy"] - a["busy"]) / passed
        return row


def measured_on_machines(asked: argparse.Namespace, machines: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="polyplay-fleet-") as place:
        fleet, found = Machines(asked, machines, Path(place)), Row()
        try:
            await_batches(fleet.crew)
            fleet.run(asked.warm)
            found["windows"] = [fleet.window(asked.window) for _ in range(max(1, round(asked.seconds / asked.window)))]
            found["lag_max"] = float(fleet.seen.lags[2])
            found["maximum"] = greatest(fleet, asked) if asked.maximum else []
        finally:
            fleet.crew.stop()
    return found


def page_of_machines(what: Row, asked: argparse.Namespace) -> list[str]:
    text = ["# A fleet of simulated actors on other machines", "", *lines_about(what)]
    text.append(f"- {LANES} lanes, rollouts of {asked.unroll}; {asked.capacity:,} transitions kept; batches of 512")
    for machines, found in what["machines"].items():
        windows = found["windows"]
        text += ["", f"## {machines} raylets", "", f"{len(windows)} windows of {asked.window:g} s:", ""]
        text += [*table(summed(windows)), ""]
        for way, goal in (("in/s", IN), ("out/s", OUT)):
            each = [w[way] for w in windows]
            text.append(verdict(f"transitions {way}, mean of all windows", statistics.fmean(each), least=goal))
            text.append(verdict(f"transitions {way}, the least window", min(each), least=0.95 * goal))
        if found["maximum"]:
            good = [r["of the target"] for r in found["maximum"] if r["held"] == "yes"]
            most = f"The most that is held: {max(good):.2f} × that" if good else "More than that is not held"
            text += ["", f"{most}. Both rates at once; held: at least {100 * HELD:.0f} % of both.", ""]
            text += table(found["maximum"])
    text += ["", "*MB/s*: on all lines, in from the machines and out to them. *age*: from when a rollout's last row"]
    text += ["was made until it could be drawn. *lag*: of rows learnt from, in updates since the weights that acted."]
    text += ["*blocked*: of a sender's time, what it waited for a slot. *cores*: CPU over time; *main*: with this"]
    text += ["machine's ends of the lines, *crew*: with the others'."]
    return text


def machine_arguments() -> argparse.Namespace:
    parser = command_line(run_hosts_fleet.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--machines", type=int, nargs="+", default=[8])
    parser.add_argument("--unroll", type=int, default=20, help="rows of a rollout")
    parser.add_argument("--capacity", type=int, default=200_000, help="transitions; 7.6 kB each")
    parser.add_argument("--start", type=int, default=20_000)
    parser.add_argument("--prefetch", type=int, default=16, help="batches; 29 MB each")
    parser.add_argument("--seconds", type=float, default=300.0, help="after the warm-up")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds")
    parser.add_argument("--window", type=float, default=10.0, help="seconds")
    parser.add_argument("--settle", type=float, default=6.0, help="seconds before each try of the search")
    parser.add_argument("--tries", type=int, default=8, help="of the search for the greatest rates")
    parser.add_argument("--maximum", action=argparse.BooleanOptionalAction, default=True, help="search for it")
    parser.add_argument("--out", type=Path, default=RESULTS / "hosts_fleet")
    asked = parser.parse_args()
    if bad := [n for n in asked.machines if LANES % n]:
        raise SystemExit(f"--machines {bad[0]}: a divisor of {LANES}, the lanes of all")
    asked.rate, asked.out_rate, asked.rows = IN, OUT, 1_200
    asked.recording = RESULTS.parents[1] / "runs" / "fleet" / "pong.npz"
    return asked


def run_hosts_fleet() -> None:
    """Ape-X's actors on other machines: what a memory and a learner here hold of what eight raylets send.

        python bench/fleet.py hosts                          # 5 min at the paper's rates, then their greatest: 9 min
        python bench/fleet.py hosts --machines 1 2 4 8 --seconds 60 --no-maximum

    The actors of bench/fleet.py, 360 lanes in all, in one worker on each raylet: it sends recorded play at
    the rate asked for and copies the weights once a rollout. A real `serve_replay` and a learner that computes nothing
    are here; the learner publishes weights of the paper's network after each update. All machines share this one's
    cores, so the columns *cores* say what each part costs, also where it would be elsewhere.

    Expected: 89 MB/s of new pictures come (7.1 KB a transition), which is 0.05 of a core at 0.6 core-seconds a GB.
    Weights of 13 MB after each of 19 updates a second to eight machines would be 2 GB/s, so a link must send fewer than
    that.
    """
    asked = machine_arguments()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "bench"), str(ROOT)])  # of workers on the raylets
    recorded(asked)
    what: Row = {**about(), "machines": {n: measured_on_machines(asked, n) for n in asked.machines}}
    publish(asked.out, what, page_of_machines(what, asked))


if __name__ == "__main__":
    sys.exit(commands({"": main, "hosts": run_hosts_fleet}))
