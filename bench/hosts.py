"""What another machine costs: the link between two, and impala with its actors on the other side of one.

    python bench/hosts.py --seconds 10 --rounds 3

1. The link: rollouts of 9.5 and of 1.2 MB from a slot on one side to a slot on the other, as many as go through, and 20
   a second; weights of 6.8 MB the other way; and nothing. Both sides are on this machine, connected by TCP.
2. impala on Pong, actors here and on pretended machines in turn (A B A B), with a small network and with Nature's.

Expected: 1.5 GB/s and 0.6 core-seconds a GB (two copies through the kernel and one checksum-free path); 92 % of the
agent steps a second, since a step of 28 KB costs 17 µs of a core at 0.6 core-seconds a GB.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, about, command_line, lines_about, publish, table

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.shared_memory import Semaphores
from polyplay.core.tree import Field
from polyplay.weights.params import Params
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.link import Link
from polyplay.workers.hosts.mirrors import RemoteSeat
from polyplay.workers.hosts.queue_mirrors import QueueMirror
from polyplay.workers.hosts.weight_mirrors import ParamsMirror

SLOTS, WEIGHTS = 4, 1_700_000  # in flight; parameters of 6.8 MB
NETWORKS = ("a3c", "nature")
SEATS = RemoteSeat(0, 0, role="act", end="out"), RemoteSeat(0, 0, role="act", end="params")  # of rollouts, of weights


def away_side(data: bytes, address: tuple[str, int], pace: float) -> None:
    """The other machine: commits a rollout whenever there is an empty slot, at most one every `pace` seconds."""
    bells = Semaphores(1)
    agent.relay_by(bells)
    mirrors = agent.load(data)
    for mirror in mirrors:
        mirror.away = True
    link = Link(socket.create_connection(address), mirrors, bells[0], 5.0, None)
    link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.echoes = True
    threading.Thread(target=link.run, daemon=True).start()
    queue, params = mirrors[0].queue, mirrors[1].params
    link.closed.wait(0.2)  # for what the seat begins with
    for mirror, seat in zip(mirrors, SEATS, strict=True):
        mirror.sit(seat)
    producer = queue.producer(0)
    queue.rows["version"][:] = 0
    version = -1
    while not link.closed.is_set():
        if pace < 0:  # weights only
            if params.wait(version + 1, 0, 0.1):
                version = params.version
                queue.by[0] = version
                there, slot = time.perf_counter(), producer.slot()
                queue.rows["version"][slot], queue.rows["when"][slot] = 0, there
                producer.commit(slot, version)
            continue
        if (slot := producer.slot()) is not None:
            queue.rows["version"][slot] = 0
            queue.rows["when"][slot] = time.perf_counter()
            producer.commit(slot)
            time.sleep(pace)


class Sides:
    """Two processes, a link between them."""

    def __init__(self, mb: float, pace: float):
        rows = {
            "data": Field((int(mb * 1e6),), np.uint8),
            "version": Field((), np.int64),
            "when": Field((), np.float64),
            "first": Field((), np.bool_),
        }
        self.queue, self.params = RolloutQueue(rows, {}, 0, 1, SLOTS), Params(WEIGHTS)
        self.queue.patience = 0.1
        bells, mirrors = Semaphores(1), [QueueMirror(self.queue), ParamsMirror(self.params)]
        data, found = agent.dump(mirrors, agent.TwinNumbers())
        for thing in found:
            if isinstance(thing, Semaphores):
                thing.relay_by(bells)
        self.queue._attach()
        self.params._attach()
        began = list(mirrors[0].begin(SEATS[0]))
        for mirror, seat in zip(mirrors, SEATS, strict=True):
            mirror.sit(seat)
        listener = socket.create_server(("127.0.0.1", 0))
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=away_side, args=(data, listener.getsockname(), pace))
        self.process.start()
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link = Link(sock, mirrors, bells[0], 5.0, None)
        for frame in began:
            self.link.send(0, 0, frame[0], frame[1])
        threading.Thread(target=self.link.run, daemon=True).start()
        self.batches = self.queue.batches(1).consumer(0)

    def close(self) -> None:
        self.link.end("")
        self.process.join(5)
        self.process.kill()

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / 100.0


def through(mb: float, seconds: float) -> dict[str, Any]:
    """As many rollouts as go through."""
    sides = Sides(mb, 0.0)
    for _ in range(20):
        while next(sides.batches) is None:
            pass
    n, cpu, began = 0, sides.cpu(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        n += next(sides.batches) is not None
    passed, cpu = time.perf_counter() - began, sides.cpu() - cpu
    sides.close()
    gb = n * mb / 1e3
    return {"GB/s": round(gb / passed, 3), "core-seconds per GB": round(cpu / gb, 3)}


def paced(mb: float, seconds: float) -> dict[str, Any]:
    """20 a second: milliseconds from a rollout's commit to the learner's batch."""
    sides, took = Sides(mb, 0.05), list[float]()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        if (batch := next(sides.batches)) is not None:
            took.append(1e3 * (time.perf_counter() - float(batch[0]["when"].flat[0])))
    sides.close()
    return {"p50 ms": round(float(np.quantile(took, 0.5)), 2), "p99 ms": round(float(np.quantile(took, 0.99)), 2)}


class _Vector:
    flat = torch.zeros(WEIGHTS)


def weights(seconds: float) -> dict[str, Any]:
    """Milliseconds from before a publication until the other side's waiting reader sees it."""
    sides, took = Sides(0.001, -1.0), list[float]()
    until = time.perf_counter() + seconds
    version = 0
    while time.perf_counter() < until:
        began = time.perf_counter()
        sides.params.publish(_Vector, version, version)  # type: ignore[arg-type]
        version += 1
        while (batch := next(sides.batches)) is None:
            pass
        took.append(1e3 * (float(batch[0]["when"].flat[0]) - began))
        time.sleep(0.05)
    sides.close()
    return {"p50 ms": round(float(np.quantile(took, 0.5)), 2), "p99 ms": round(float(np.quantile(took, 0.99)), 2)}


def idle(seconds: float) -> dict[str, Any]:
    sides = Sides(1.0, 3600.0)
    time.sleep(1.0)
    cpu = sides.cpu()
    time.sleep(seconds)
    cpu = sides.cpu() - cpu
    sides.close()
    return {"cores, both ends": round(cpu / seconds, 4)}


def impala(
    hosts: str,
    network: str,
    seconds: float,
    command: Sequence[str] = ("-m", "polyplay"),
    actors: int = 2,
    begin: float = 12.0,
    more: Sequence[str] = (),
) -> dict[str, float]:
    """Agent steps a second, lag and traffic of a run's last seconds. begin: seconds until it learns."""
    with tempfile.TemporaryDirectory() as where:
        words = ["train", "impala", "--preset", "quick", "--network", network, "--hosts", hosts, "--no-tensorboard"]
        words += ["--actors", str(actors), "--minutes", str(round((seconds + begin) / 60, 3))]
        words += ["--report-every", "1", "--quiet", "--run", f"{where}/run", *more]
        subprocess.run([sys.executable, *command, *words], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(f"{where}/run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["updates"]]
    rows = rows[-int(seconds) :]
    passed = rows[-1]["wall_seconds"] - rows[0]["wall_seconds"]
    lag = statistics.fmean(row["lag_mean"] for row in rows if row["lag_mean"] is not None)
    steps = (rows[-1]["steps"] - rows[0]["steps"]) / passed
    mb = statistics.fmean(sum(host["mb_in"] for host in row.get("hosts", {}).values()) for row in rows)
    return {"steps": steps, "lag": lag, "kb": 1e3 * mb / steps}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    what = about()
    link = [
        {"what": "rollouts of 9.5 MB", **through(9.5, asked.seconds)},
        {"what": "rollouts of 1.2 MB", **through(1.2, asked.seconds)},
        {"what": "20 rollouts of 9.5 MB a second", **paced(9.5, asked.seconds)},
        {"what": "20 rollouts of 1.2 MB a second", **paced(1.2, asked.seconds)},
        {"what": "weights of 6.8 MB, 20 times a second", **weights(asked.seconds)},
        {"what": "nothing", **idle(asked.seconds)},
    ]
    columns = list(dict.fromkeys(key for row in link for key in row))
    link = [{key: row.get(key, "") for key in columns} for row in link]
    rows = []
    for network in NETWORKS:
        pairs = []
        for _ in range(asked.rounds):
            pairs.append([impala(hosts, network, asked.seconds) for hosts in ("none", "pretend:2")])
        ratios = [b["steps"] / a["steps"] for a, b in pairs]
        row: dict[str, Any] = {"network": network}
        for name, i in (("here", 0), ("pretend:2", 1)):
            row[f"{name}, steps/s"] = round(statistics.median(pair[i]["steps"] for pair in pairs))
            row[f"{name}, lag"] = round(statistics.median(pair[i]["lag"] for pair in pairs), 2)
        row["KB a step"] = round(statistics.median(pair[1]["kb"] for pair in pairs), 2)
        rows.append({**row, "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios]})
    text = ["# Other machines", "", *lines_about(what), "", "The link:", "", *table(link), ""]
    text += ["impala `quick` on Pong, two actors here or on two pretended machines, float32; medians of"]
    text += [f"{asked.rounds} rounds of {asked.seconds:g} s in turn:", "", *table(rows)]
    publish(RESULTS / "hosts", {**what, "link": link, "impala": rows}, text)


if __name__ == "__main__":
    main()
