"""What learners on another machine cost: replicas that average their gradients, and learners of a parameter server.

    python bench/hosts_learners.py --seconds 12 --rounds 2

1. One update of an AllReduce of two replicas, both in one memory or one behind a link, for the small network and
   Nature's with RMSProp (a gradient, weights and one statistic of half the size each way), and with nothing to compute.
2. Whole systems on Pong with two replicas, or two learners of gorila: both here, or the second on a pretended machine,
   in turn (A B A B). And with 1, 2 and 4 shards of gorila's parameters, ape-X's memory, or impala's learner there.

Expected: half the gradient, weights and statistics each way, so 10 MB for Nature's 1.7 M weights, 3 ms at 3 GB/s, and
three waits for the other side at 0.2 ms each.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import RESULTS, about, command_line, lines_about, publish, table
from torch import nn

from polyplay.core.errors import Closed
from polyplay.core.shared_memory import Semaphores
from polyplay.weights.update import AllReduce, OptimizerSpec
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.link import Link
from polyplay.workers.hosts.mirrors import RemoteSeat
from polyplay.workers.hosts.weight_mirrors import AllReduceMirror

SIZES = {"a3c": 660_000, "nature": 1_690_000}  # weights
SEAT = RemoteSeat(1, 1, (1,), "bundle", "update")
GORILA = ["--learners", "2", "--start", "1000", "--capacity", "20000"]
APEX = ["--actors", "2", "--lanes", "8"]
SYSTEMS = {
    "a2c": ["--replicas", "2", "--network", "a3c"],
    "a2c, Nature": ["--replicas", "2", "--network", "nature"],
    "ppo": ["--replicas", "2"],
    "gorila": GORILA,
    "gorila, 1 shard there": [*GORILA, "--shards", "1"],
    "gorila, 2 shards there": [*GORILA, "--shards", "2"],
    "gorila, 4 shards there": [*GORILA, "--shards", "4"],
    "apex, memory there": [
        "--actors",
        "2",
        "--lanes",
        "8",
        "--start",
        "1000",
        "--capacity",
        "20000",
        "--prefetch",
        "4",
    ],
    "impala, learner there": ["--preset", "quick", "--actors", "2"],
}
PLACES = {"shard": "serve_parameters=others,bundle=here", "memory": "serve_replay=others,act=here"}
PLACES |= {"learner": "learn=others,act=here"}


def updates(reduce: Any, rank: int, seconds: float) -> float:
    """Milliseconds of an update, the median. The last of `seconds` ends the others too."""
    torch.set_num_threads(1)
    net = nn.Linear(reduce.size - 1, 1)
    ctx: Any = SimpleNamespace(index=rank, resume=None, meeting=0)
    vector = reduce.vector(ctx, net)
    end, took, until = reduce.bind(ctx, vector), [], time.perf_counter() + seconds
    try:
        while time.perf_counter() < until or rank:
            vector.grad.fill_(1e-3)
            began = time.perf_counter()
            for _ in end(1e-6, np.zeros(5)):
                pass
            took.append(1e3 * (time.perf_counter() - began))
    except Closed:
        pass
    reduce.close()
    return statistics.median(took[5:]) if len(took) > 5 else float("nan")


def link_of(sock: socket.socket, mirror: AllReduceMirror, bells: Semaphores) -> Link:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    mirror.sit(SEAT)
    link = Link(sock, [mirror], bells[0], 5.0, None)
    link.echoes = mirror.away
    threading.Thread(target=link.run, daemon=True).start()
    return link


def away_side(data: bytes, address: tuple[str, int]) -> None:
    bells = Semaphores(1)
    agent.relay_by(bells)
    mirror = agent.load(data)
    mirror.away = True
    link = link_of(socket.create_connection(address), mirror, bells)

    def ends() -> None:
        link.closed.wait()
        mirror.close()

    threading.Thread(target=ends, daemon=True).start()
    updates(mirror.reduce, 1, 0.0)


def all_reduce(weights: int, linked: bool, seconds: float) -> float:
    reduce = AllReduce(OptimizerSpec("rmsprop_torch", eps=1e-5), 2, weights)
    if not linked:
        other = multiprocessing.get_context("fork").Process(target=updates, args=(reduce, 1, 0.0))
        other.start()
        took = updates(reduce, 0, seconds)
        other.join()
        return took
    bells, mirror = Semaphores(1), AllReduceMirror(reduce)
    data, found = agent.dump(mirror, agent.TwinNumbers())
    for thing in found:
        if isinstance(thing, Semaphores):
            thing.relay_by(bells)
    reduce._attach()
    listener = socket.create_server(("127.0.0.1", 0))
    far = multiprocessing.get_context("spawn").Process(target=away_side, args=(data, listener.getsockname()))
    far.start()
    link = link_of(listener.accept()[0], mirror, bells)
    took = updates(reduce, 0, seconds)
    link.end("")
    far.join(5)
    far.kill()
    return took


def system(name: str, words: list[str], hosts: str, seconds: float) -> dict[str, float]:
    """Agent steps and updates a second, of a run's last `seconds`."""
    with tempfile.TemporaryDirectory() as where:
        given = ["train", name.split(",")[0], "--env", "ALE/Pong-v5", *words, "--hosts", hosts, "--no-tensorboard"]
        place = next((place for what, place in PLACES.items() if what in name and hosts != "none"), None)
        given += [] if place is None else ["--place", place]
        limit = ["--minutes", str(round((seconds + 14) / 60, 3)), "--report-every", "1", "--quiet"]
        command = [sys.executable, "-m", "polyplay", *given, *limit, "--run", f"{where}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(f"{where}/run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["updates"]][-int(seconds) :]
    passed = rows[-1]["wall_seconds"] - rows[0]["wall_seconds"]
    return {what: (rows[-1][what] - rows[0][what]) / passed for what in ("steps", "updates")}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    what, meetings, rows = about(), [], []
    for name, size in SIZES.items():
        pairs = [[all_reduce(size, linked, asked.seconds / 3) for linked in (False, True)] for _ in range(asked.rounds)]
        here, there = (round(statistics.median(pair[i] for pair in pairs), 2) for i in (0, 1))
        meetings.append({"weights": f"{size:,} ({name})", "one memory, ms": here, "a link between, ms": there})
    for name, words in SYSTEMS.items():
        runs = [[system(name, words, h, asked.seconds) for h in ("none", "pretend:1")] for _ in range(asked.rounds)]
        ratios = [b["steps"] / a["steps"] for a, b in runs]
        row: dict[str, Any] = {"system": name}
        for where, i in (("here", 0), ("pretend:1", 1)):
            for of in ("steps", "updates"):
                row[f"{where}, {of}/s"] = round(statistics.median(run[i][of] for run in runs), 1)
        rows.append({**row, "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios]})
    text = ["# Learners on other machines", "", *lines_about(what), "", "An update of two replicas:", ""]
    text += [
        *table(meetings),
        "",
        f"On Pong, float32, {asked.rounds} rounds of {asked.seconds:g} s in turn. Two replicas",
    ]
    text += ["or learners, both here or the second on a pretended machine:", "", *table(rows)]
    publish(RESULTS / "hosts_learners", {**what, "all_reduce": meetings, "systems": rows}, text)


if __name__ == "__main__":
    main()
