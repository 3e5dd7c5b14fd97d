"""What another machine costs: the link between two, and impala with its actors on the other side of one.

    python bench/hosts.py --seconds 10 --rounds 3

1. The link: rollouts of 9.5 and of 1.2 MB from a slot on one side to a slot on the other, as many as go through, and 20
   a second; weights of 6.8 MB the other way; and nothing. Both sides are on this machine, connected by TCP.
2. impala on Pong, actors here and on local machines in turn (A B A B), with a small network and with Nature's.

Expected: 1.5 GB/s and 0.6 core-seconds a GB (two copies through the kernel and one checksum-free path); 92 % of the
agent steps a second, since a step of 28 KB costs 17 µs of a core at 0.6 core-seconds a GB.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import queue
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import (
    RESULTS,
    ROOT,
    Row,
    about,
    command_line,
    commands,
    evaluation,
    lines_about,
    publish,
    reached,
    table,
    thin,
)
from torch import nn

from polyplay.buffers.rollout_queue import RolloutQueue
from polyplay.core.errors import Closed
from polyplay.core.files import read_lines, read_object, write_json
from polyplay.core.shared_memory import Semaphores
from polyplay.core.tree import Field
from polyplay.weights.params import Params
from polyplay.weights.update import AllReduce, OptimizerSpec
from polyplay.workers.hosts import agent
from polyplay.workers.hosts.engines import AgentHandle, LocalMachines, MachineInfo
from polyplay.workers.hosts.link import Link
from polyplay.workers.hosts.mirrors import RemoteSeat
from polyplay.workers.hosts.queue_mirrors import QueueMirror
from polyplay.workers.hosts.weight_mirrors import AllReduceMirror, ParamsMirror

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
            self.link.send(0, 0, *frame)
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
            pairs.append([impala(hosts, network, asked.seconds) for hosts in ("none", "local:2")])
        ratios = [b["steps"] / a["steps"] for a, b in pairs]
        row: dict[str, Any] = {"network": network}
        for name, i in (("here", 0), ("local:2", 1)):
            row[f"{name}, steps/s"] = round(statistics.median(pair[i]["steps"] for pair in pairs))
            row[f"{name}, lag"] = round(statistics.median(pair[i]["lag"] for pair in pairs), 2)
        row["KB a step"] = round(statistics.median(pair[1]["kb"] for pair in pairs), 2)
        rows.append({**row, "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios]})
    text = ["# Other machines", "", *lines_about(what), "", "The link:", "", *table(link), ""]
    text += ["impala `quick` on Pong, two actors here or on two local machines, float32; medians of"]
    text += [f"{asked.rounds} rounds of {asked.seconds:g} s in turn:", "", *table(rows)]
    publish(RESULTS / "hosts", {**what, "link": link, "impala": rows}, text)


# More machines, and slower lines to them: impala on Pong, its actors on local machines


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


class RelayedMachines(LocalMachines):
    def open(self, info: MachineInfo, config: dict[str, Any]) -> AgentHandle:
        handle = super().open(info, config)
        delay, rate = map(float, os.environ[RELAYED].split(","))
        handle.about["port"] = relay(handle.about["address"], handle.about["port"], delay, rate)
        return handle


def child() -> int:
    """`polyplay` with relays before its local machines."""
    from polyplay.cli.main import main as polyplay
    from polyplay.workers.hosts import engines

    engines.engine_of = lambda hosts: RelayedMachines(int(hosts.rpartition(":")[2]))
    return polyplay(sys.argv[1:])


def measured(what: dict[str, dict[str, Any]], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each arm: medians over rounds in turn, and the steps as a part of the first arm's."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in what}
    for _ in range(rounds):
        for name, given in what.items():
            os.environ[RELAYED] = relayed = given.get("relay", "")
            command = (str(Path(__file__).resolve()), "relayed") if relayed else ("-m", "polyplay")
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


def run_hosts_many() -> None:
    """More machines, and slower lines to them: impala on Pong, its actors on local machines.

        python bench/hosts.py many --seconds 12 --rounds 2

    1. Eight actors here and on 1, 2, 4 and 8 local machines, in turn. All share the same cores: what is measured is
       what more links cost, not what more machines bring.
    2. Two actors on two machines, through a relay that holds every byte for 1, 10 or 50 ms (one way), or lets through 1
       or 10 Gbit/s for each machine; and without one.

    Expected: a link more costs its process and agent, about 1 % of a core each. A rollout of an actor takes 300 ms
    here, or 150 where it has a core of its own; `quick` gives an actor two slots, so a delay costs steps once the way
    there and back is longer than a rollout less the time that the learner needs, and four slots hide more. 1 Gbit/s is
    125 MB/s, and 10 MB/s come from each machine.
    """
    parser = command_line(run_hosts_many.__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    what = about()
    many = {"here": {"hosts": "none", "actors": ACTORS}}
    many |= {f"{n} machines": {"hosts": f"local:{n}", "actors": ACTORS, "begin": 15.0 + 4 * n} for n in MACHINES}
    lines: dict[str, dict[str, Any]] = {n: {"hosts": "local:2", "relay": given} for n, given in LINES.items()}
    lines["50 ms, 4 slots"] = {**lines["50 ms"], "more": ["--slots", "4"]}
    by_number = measured(many, asked.rounds, asked.seconds)
    by_line = measured(lines, asked.rounds, asked.seconds)
    text = ["# More machines, and slower lines", "", *lines_about(what), ""]
    text += [f"impala `quick` on Pong, {ACTORS} actors, float32; medians of {asked.rounds} rounds in turn:", ""]
    text += [*table(by_number), "", "Two actors on two machines, by the line to each:", "", *table(by_line)]
    publish(RESULTS / "hosts_many", {**what, "machines": by_number, "lines": by_line}, text)


# Pong learnt on a Ray cluster of three that loses a machine every two minutes


CURVE = ("wall_seconds", "frames", "updates", "episodes", "episodic_return_mean", "lag_mean")
FEW = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(), "RAY_worker_niceness": "0"}


def words_of(*given: str) -> list[str]:
    print(f"$ polyplay {shlex.join(given)}", flush=True)
    return [sys.executable, "-m", "polyplay", *given]


def run_hosts_lost() -> None:
    """Pong learnt on a Ray cluster of three that loses a machine every two minutes.

        python bench/hosts.py lost --until-return 19.0 --minutes 60

    A cluster of three raylets on this machine; impala's learner is with the first, its two actors with the others,
    which have a core each. Every --every seconds one of these, in turn, gets SIGKILL, and a new one joins. The run, its
    evaluation by 30 games, its curve and its hosts.jsonl go to results/hosts_lost*. A run that was stopped goes on.
    """
    p = command_line(run_hosts_lost.__doc__)
    p.add_argument("--until-return", type=float, default=19.0)
    p.add_argument("--minutes", type=float, default=60.0, help="the longest run")
    p.add_argument("--every", type=float, default=120.0, help="seconds between two losses")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--run", type=Path, default=ROOT / "runs/hosts-lost")
    asked = p.parse_args()
    os.environ.update(TOKEN)
    from ray.cluster_utils import Cluster

    head = {**FEW, "node_name": "first", "include_dashboard": False}
    cluster, names = Cluster(initialize_head=True, head_node_args=head), (f"machine-{i}" for i in itertools.count(2))
    nodes = [cluster.add_node(**FEW, node_name=next(names)) for _ in range(2)]
    limits = ["--until-return", str(asked.until_return), "--minutes", str(asked.minutes)]
    limits += ["--hosts", f"ray:{cluster.address}"]
    words = ["train", "impala", "--env", "ALE/Pong-v5", "--preset", "quick", "--run", str(asked.run)]
    words += ["--seed", str(asked.seed), "--checkpoint-every", "60"]
    words = ["resume", str(asked.run)] if asked.run.exists() else words
    run = subprocess.Popen(words_of(*words, *limits), cwd=ROOT)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(asked.every)
            break
        nodes.append(cluster.add_node(**FEW, node_name=next(names)))
        os.kill(nodes.pop(0).all_processes["raylet"][0].process.pid, signal.SIGKILL)
    if run.returncode:
        raise SystemExit(run.returncode)
    subprocess.run(words_of("evaluate", str(asked.run), "--episodes", "30"), cwd=ROOT, check=True)
    report(asked.run)
    with contextlib.suppress(Exception):  # raylets that were killed
        cluster.shutdown()


def report(run: Path) -> None:
    rows, events = list(read_lines(run / "metrics.jsonl")), list(read_lines(run / "hosts.jsonl"))
    (RESULTS / "hosts_lost_hosts.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    good, score, what = reached(run), evaluation(run), about()
    found: Row = {"begun and resumed": 1 + len(read_object(run / "config.json")["resumed"])}
    found |= Counter(f"machines {e['event']}" for e in events)
    found["minutes to 18"] = good["wall_seconds"] / 60 if good else None
    found |= {"agent steps": rows[-1]["steps"], "minutes": rows[-1]["wall_seconds"] / 60}
    if score:
        found["30 games"] = f"{score['episodic_return_mean']:.2f} ± {score['episodic_return_std']:.2f}"
    curve = thin([{k: row[k] for k in CURVE} for row in rows])
    write_json(RESULTS / "hosts_lost.json", {**what, **found, "evaluation": score, "curve": curve})
    head = ["# Pong on a Ray cluster that loses a machine every two minutes", "", *lines_about(what), ""]
    (RESULTS / "hosts_lost.md").write_text("\n".join([*head, *table([found])]) + "\n")


# What learners on another machine cost: replicas that average their gradients, and learners of a parameter serv


SIZES = {"a3c": 660_000, "nature": 1_690_000}  # weights
SEAT = RemoteSeat(1, 1, (1,), "bundle", "update")
GORILA = ["--learners", "2", "--learning-starts", "1000", "--capacity", "20000"]
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
        "--learning-starts",
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
    end, took, until = reduce.open(ctx, net), [], time.perf_counter() + seconds
    try:
        while time.perf_counter() < until or rank:
            end.vector.grad.fill_(1e-3)
            began = time.perf_counter()
            for _ in end.apply(1e-6, np.zeros(5)):
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


def learners_away_side(data: bytes, address: tuple[str, int]) -> None:
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
    far = multiprocessing.get_context("spawn").Process(target=learners_away_side, args=(data, listener.getsockname()))
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


def run_hosts_learners() -> None:
    """What learners on another machine cost: replicas that average their gradients, and learners of a parameter server.

        python bench/hosts.py learners --seconds 12 --rounds 2

    1. One update of an AllReduce of two replicas, both in one memory or one behind a link, for the small network and
       Nature's with RMSProp (a gradient, weights and one statistic of half the size each way), and with nothing to
       compute.
    2. Whole systems on Pong with two replicas, or two learners of gorila: both here, or the second on a local
       machine, in turn (A B A B). And with 1, 2 and 4 shards of gorila's parameters, ape-X's memory, or impala's
       learner there.

    Expected: half the gradient, weights and statistics each way, so 10 MB for Nature's 1.7 M weights, 3 ms at 3 GB/s,
    and three waits for the other side at 0.2 ms each.
    """
    parser = command_line(run_hosts_learners.__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    what, meetings, rows = about(), [], []
    for name, size in SIZES.items():
        pairs = [[all_reduce(size, linked, asked.seconds / 3) for linked in (False, True)] for _ in range(asked.rounds)]
        here, there = (round(statistics.median(pair[i] for pair in pairs), 2) for i in (0, 1))
        meetings.append({"weights": f"{size:,} ({name})", "one memory, ms": here, "a link between, ms": there})
    for name, words in SYSTEMS.items():
        runs = [[system(name, words, h, asked.seconds) for h in ("none", "local:1")] for _ in range(asked.rounds)]
        ratios = [b["steps"] / a["steps"] for a, b in runs]
        row: dict[str, Any] = {"system": name}
        for where, i in (("here", 0), ("local:1", 1)):
            for of in ("steps", "updates"):
                row[f"{where}, {of}/s"] = round(statistics.median(run[i][of] for run in runs), 1)
        rows.append({**row, "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios]})
    text = ["# Learners on other machines", "", *lines_about(what), "", "An update of two replicas:", ""]
    text += [
        *table(meetings),
        "",
        f"On Pong, float32, {asked.rounds} rounds of {asked.seconds:g} s in turn. Two replicas",
    ]
    text += ["or learners, both here or the second on a local machine:", "", *table(rows)]
    publish(RESULTS / "hosts_learners", {**what, "all_reduce": meetings, "systems": rows}, text)


if __name__ == "__main__":
    sys.exit(
        commands(
            {"": main, "relayed": child, "many": run_hosts_many, "lost": run_hosts_lost, "learners": run_hosts_learners}
        )
    )
