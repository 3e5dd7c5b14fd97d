"""Ape-X's actors by the hundred on one machine: what memories and trays hold, how old rows get, and what failures do.

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
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import senders
from common import RESULTS, ROOT, Row, about, command_line, publish
from fleet_report import draw, page
from recording import Recording, record, spec_of

from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_worker import SampleQueue, serve_replay
from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters
from polyplay.workers.crew import Crew
from tests.faults import FaultInjector, parse_faults

IN, OUT = 12_500.0, 9_700.0  # transitions a second: 360 actors of 139 frames a second, 19 batches of 512
OVER = 1.01  # what is offered, of what is to be held
HELD = 0.97  # of what was asked for, in and out, that counts as held in the search
PATIENCE = 600.0  # seconds for the first batches
ROLES = ("send", "serve_replay", "learn")
MB = 2**20


class Fleet:
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
        self.crew = Crew(say=lambda kind, text: print(f"fleet: {text}", flush=True))
        both: Any = {"samples": self.samples, "seen": self.seen, "pace": self.pace}
        self.crew.add(senders.send, n=asked.senders, on_loss="replace", queue=self.queue, recording=recording, **both)
        source = senders.Timed(self.queue.batches(1), self.seen)
        self.crew.add(serve_replay, n=asked.memories, on_loss="replace", source=source, out=self.samples, trim=100)
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
        for role in self.crew.roles:
            for worker in role.workers.values():
                try:
                    spent[role.name] += sum(psutil.Process(worker.runs.pid).cpu_times()[:2])
                except psutil.Error:
                    continue
        return spent

    def memory(self) -> float:
        """MB of all workers now; what several share counts once."""
        found = 0.0
        for role in self.crew.roles:
            for worker in role.workers.values():
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
        row: Row = {"in/s": rate["in"], "out/s": rate["out"], "trays waiting": self.samples.depth}
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
        fleet, found = Fleet(recording, asked, Path(place)), Row()
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
    parser.add_argument("--prefetch", type=int, default=16, help="trays; 29 MB each")
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


if __name__ == "__main__":
    main()
