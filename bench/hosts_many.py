"""More machines, and slower lines to them: impala on Pong, its actors on pretended machines.

    python bench/hosts_many.py --seconds 12 --rounds 2

1. Eight actors here and on 1, 2, 4 and 8 pretended machines, in turn. All share the same cores: what is measured is
   what more links cost, not what more machines bring.
2. Two actors on two machines, through a relay that holds every byte for 1, 10 or 50 ms (one way), or lets through 1 or
   10 Gbit/s for each machine; and without one.

Expected: a link more costs its process and agent, about 1 % of a core each. A rollout of an actor takes 300 ms here, or
150 where it has a core of its own; `quick` gives an actor two slots, so a delay costs steps once the way there and back
is longer than a rollout less the time that the learner needs, and four slots hide more. 1 Gbit/s is 125 MB/s, and
10 MB/s come from each machine.
"""

from __future__ import annotations

import os
import queue
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from common import RESULTS, about, command_line, lines_about, publish, table
from hosts import impala

from polyplay.workers.hosts.engines import AgentHandle, MachineInfo, PretendedMachines

MACHINES, ACTORS = (1, 2, 4, 8), 8
LINES = {"no relay": "", "as it is": "0,0", "1 ms": "0.001,0", "10 ms": "0.01,0", "50 ms": "0.05,0"}
LINES |= {"10 Gbit/s": "0,1.25e9", "1 Gbit/s": "0,1.25e8"}
RELAYED = "RELAY"  # seconds, bytes a second (0: as many as come): of each direction


def forward(source: socket.socket, to: socket.socket, delay: float, rate: float) -> None:
    """Until one of them closes: each byte `delay` seconds later, at most `rate` a second."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(1 << 16)

    def send() -> None:
        while (piece := pieces.get())[1]:
            time.sleep(max(0.0, piece[0] - time.monotonic()))
            to.sendall(piece[1])
        to.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    free = 0.0
    while data := source.recv(1 << 18):
        free = max(free, time.monotonic()) + (len(data) / rate if rate else 0.0)
        pieces.put((free + delay, data))
    pieces.put((0.0, b""))


def relay(address: str, port: int, delay: float, rate: float) -> int:
    """The port of a relay in a process of its own, which ends with its connection."""
    listener = socket.create_server((address, 0))
    if os.fork():
        port = int(listener.getsockname()[1])
        listener.close()
        return port
    here, there = listener.accept()[0], socket.create_connection((address, port))
    for end in (here, there):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=forward, args=(there, here, delay, rate))
    back.start()
    forward(here, there, delay, rate)
    back.join()
    os._exit(0)


class RelayedMachines(PretendedMachines):
    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        handle = super().open(info, config)
        delay, rate = map(float, os.environ[RELAYED].split(","))
        handle.about["port"] = relay(handle.about["address"], handle.about["port"], delay, rate)
        return handle


def child() -> int:
    """`polyplay` with relays before its pretended machines."""
    from polyplay.cli.main import main as polyplay
    from polyplay.runs import load

    load.engine_of = lambda hosts: RelayedMachines(int(hosts.rpartition(":")[2]))
    return polyplay(sys.argv[2:])


def measured(what: dict[str, dict[str, Any]], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each arm: medians over rounds in turn, and the steps as a part of the first arm's."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in what}
    for _ in range(rounds):
        for name, given in what.items():
            os.environ[RELAYED] = relayed = given.get("relay", "")
            command = (str(Path(__file__).resolve()), "--child") if relayed else ("-m", "polyplay")
            more = {k: v for k, v in given.items() if k != "relay"}
            found[name].append(impala(network="a3c", seconds=seconds, command=command, **more))
            print(name, found[name][-1], flush=True)
    first = next(iter(found.values()))
    rows = []
    for name, each in found.items():
        ratios = [one["steps"] / other["steps"] for one, other in zip(each, first, strict=True)]
        row: dict[str, Any] = {"": name, "steps/s": round(statistics.median(one["steps"] for one in each))}
        row |= {"of the first": round(statistics.median(ratios), 3), "each": [round(r, 3) for r in ratios]}
        rows.append({**row, "lag": round(statistics.median(one["lag"] for one in each), 2)})
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    what = about()
    many = {"here": {"hosts": "none", "actors": ACTORS}}
    many |= {f"{n} machines": {"hosts": f"pretend:{n}", "actors": ACTORS, "begin": 15.0 + 4 * n} for n in MACHINES}
    lines: dict[str, dict[str, Any]] = {n: {"hosts": "pretend:2", "relay": given} for n, given in LINES.items()}
    lines["50 ms, 4 slots"] = {**lines["50 ms"], "more": ["--slots", "4"]}
    by_number = measured(many, asked.rounds, asked.seconds)
    by_line = measured(lines, asked.rounds, asked.seconds)
    text = ["# More machines, and slower lines", "", *lines_about(what), ""]
    text += [f"impala `quick` on Pong, {ACTORS} actors, float32; medians of {asked.rounds} rounds in turn:", ""]
    text += [*table(by_number), "", "Two actors on two machines, by the line to each:", "", *table(by_line)]
    publish(RESULTS / "hosts_many", {**what, "machines": by_number, "lines": by_line}, text)


if __name__ == "__main__":
    sys.exit(child() if sys.argv[1:2] == ["--child"] else main())
