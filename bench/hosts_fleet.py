"""Ape-X's actors on other machines: what a memory and a learner here hold of what eight machines send.

    python bench/hosts_fleet.py                          # 5 min at the paper's rates, then their greatest: 9 min
    python bench/hosts_fleet.py --machines 1 2 4 8 --seconds 60 --no-maximum

The actors of bench/fleet.py, 360 lanes in all, in one worker on each pretended machine: it sends recorded play at the
rate asked for and copies the weights once a rollout. A real `serve_replay` and a learner that computes nothing are
here; the learner publishes weights of the paper's network after each update. All machines share this one's cores, so
the columns *cores* say what each part costs, also where it would be elsewhere.

Expected: 89 MB/s of new pictures come (7.1 KB a transition), which is 0.05 of a core at 0.6 core-seconds a GB. Weights
of 13 MB after each of 19 updates a second to eight machines would be 2 GB/s, so a link must send fewer than that.
"""

from __future__ import annotations

import argparse
import os
import statistics
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
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict
from fleet import HELD, IN, OUT, OVER, await_batches, busy, greatest, recorded
from fleet_report import summed
from recording import Recording, spec_of

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_worker import SampleQueue, serve_replay
from polyplay.buffers.rollout_queue import RolloutBatches, RolloutQueue
from polyplay.core import tree
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters, WorkerContext
from polyplay.envs import Envs
from polyplay.weights.params import Params
from polyplay.workers.crew import Crew
from polyplay.workers.hosts.engines import PretendedMachines
from polyplay.workers.hosts.fleet import Fleet

LANES, WEIGHTS = 360, 3_292_838  # all actors; parameters of the dueling network for 84 × 84 × 4 and 6 actions
PARTS = ("send", "agent", "link", "serve_replay", "learn")  # of processes' titles


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


class Timed:
    """In the place of a queue's batches: how old rollouts are when a memory has done with them."""

    def __init__(self, source: RolloutBatches, ages: senders.Seen):
        self.source, self.edge, self.queue, self.ages = source, source.queue, source.queue, ages

    def consumer(self, c: int, log: Callable[[list[int]], None], **more: Any) -> Iterator[Any]:
        for taken in self.source.consumer(c, log=log, **more):
            if taken is None:
                yield None
                continue
            rows, state = taken
            made = float(rows["made"][0, 0])
            yield {k: v for k, v in rows.items() if k != "made"}, state
            self.ages.ages[c, senders.bin_of(time.monotonic() - made)] += 1  # whoever asks again has added it


def learn(
    ctx: WorkerContext, *, samples: SampleQueue, params: Params, seen: senders.Seen, pace: Hyperparameters
) -> Iterator[None]:
    """As bench/fleet.py's; after each batch the weights are published."""
    vector, version = Vector(), 0
    params.publish(vector, 0, 0)  # type: ignore[arg-type]
    for _ in senders.learn(ctx, samples=samples, seen=seen, pace=pace, copies=True):
        if samples.version > version:
            version = samples.version
            params.publish(vector, version, version)  # type: ignore[arg-type]
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
        self.fleet = Fleet(PretendedMachines(machines))
        self.crew = Crew(fleet=self.fleet, say=lambda kind, text: print(f"fleet: {text}"))
        self.crew.directory = place
        envs = Envs("ALE/Pong-v5", lanes, workers=1, **self.crew.stepping)
        self.actors = self.crew.add(send, n=machines, on_loss="replace", envs=envs, out=queue)
        self.actors.params = self.params
        self.actors.settings = {"recording": str(asked.recording), "pace": self.pace}
        source: Any = Timed(queue.batches(1), self.seen)
        self.crew.add(serve_replay, on_loss="replace", source=source, out=self.samples, trim=100)
        self.crew.add(learn, learner=True, params=self.params, samples=self.samples, seen=self.seen, pace=self.pace)
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
        rows = [worker.ctx.row for worker in self.actors.workers.values()]
        row |= {"blocked": float(self.crew.counters.column("wait")[rows].sum()), "busy": busy()}
        return row | {"lines": list(self.fleet.report().values())}  # since the last look

    def cpu(self) -> Counter[str]:
        """CPU seconds so far, by what our processes are."""
        spent, agents = Counter[str](), [machine.handle.about["pid"] for machine in self.fleet.opened]
        for pid in (os.getpid(), *agents):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                title = " ".join(process.cmdline()).removeprefix("polyplay: ")
                spent[next((part for part in PARTS if title.startswith(part)), "rest")] += sum(process.cpu_times()[:2])
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


def measured(asked: argparse.Namespace, machines: int) -> Row:
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


def page(what: Row, asked: argparse.Namespace) -> list[str]:
    text = ["# A fleet of simulated actors on other machines", "", *lines_about(what)]
    text.append(f"- {LANES} lanes, rollouts of {asked.unroll}; {asked.capacity:,} transitions kept; batches of 512")
    for machines, found in what["machines"].items():
        windows = found["windows"]
        text += ["", f"## {machines} pretended machines", "", f"{len(windows)} windows of {asked.window:g} s:", ""]
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
    text += ["*blocked*: of a sender's time, what it waited for a slot. *cores*: CPU over time; *link*: this machine's"]
    text += ["ends, *agent*: the others'."]
    return text


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
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


def main() -> None:
    asked = arguments()
    recorded(asked)
    what: Row = {**about(), "machines": {n: measured(asked, n) for n in asked.machines}}
    publish(asked.out, what, page(what, asked))


if __name__ == "__main__":
    main()
