"""Gorila's parameter server: gradients pushed and weights pulled a second, beside plain copies of as many bytes.

    python bench/server.py              # about 8 min
    python bench/server.py --short      # brief windows, few of them

Real shards and learners in processes (`parameter_shard` and `parameter_server` of `polyplay.weights`); the learners'
gradients are ready, so that nothing but the exchange is measured. In turn, window by window:

- push: a learner's whole update: norm, its slices into the slots; shards apply each gradient and publish;
- handed over: the same with gradients that are too old, which shards drop unread: what is left is exchange alone;
- pull: all parts, while nobody writes; cycle: pull what is new, then push, as a learner does;
- copy: for each learner a process that copies as many bytes into one of two slots of shared memory, and one that copies
  them out; read: for each learner a process that copies them out of shared memory.

And in this thread, on memory that was not used for a while: a shard's sweep of one gradient, and a copy beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict

from polyplay.core.shared_memory import Semaphores, SharedBlock
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters, WorkerContext
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.nets import factory
from polyplay.weights import update
from polyplay.weights.parameter_server import ParameterServer, ParameterShard, serve_parameters
from polyplay.weights.params import FlatParams, param_sizes
from polyplay.weights.update import AllReduce, OptimizerSpec
from polyplay.workers.crew import Crew
from polyplay.workers.process import tune

# What replicas' averaging of gradients costs, in processes; and how long the rollouts of one replica take


SPEC = EnvSpec(Field((4, 84, 84), "uint8"), Discrete(6))
OPTIM = OptimizerSpec("rmsprop_tf", eps=1e-5, clip=0.5)
PARTS = ("copy", "wait", "mean", "step")  # of an update; step: the optimizer's, of a replica's part of the weights
SCRATCH = 4_000_000  # float32 that are touched between updates, as a rollout would
WARM = 20  # updates that don't count


def clocks() -> np.ndarray:
    """Wall and CPU seconds of this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


class Watched:
    """A function, or an object with `wait`, whose calls are timed: `spent` is wall and CPU seconds."""

    def __init__(self, call: Callable[..., Any]):
        self.call, self.spent = call, np.zeros(2)

    def __call__(self, *given: Any) -> Any:
        before = clocks()
        try:
            return self.call(*given)
        finally:
            self.spent += clocks() - before


class Bells:
    """Semaphores whose waits are timed."""

    def __init__(self, bells: Any):
        self.bells, self.wait = bells, Watched(lambda bell, seconds: bell.wait(seconds))

    def __getitem__(self, i: int) -> Any:
        bell = self.bells[i]
        return SimpleNamespace(post=bell.post, wait=lambda seconds: self.wait(bell, seconds))


def _replica(rank: int, reduces: dict[str, AllReduce], turns: int, block: SharedBlock) -> None:
    """Fills block [networks, replicas, turns, parts, wall and CPU]."""
    tune(1)
    mean = Watched(update._mean)
    update._mean = mean  # type: ignore[assignment]
    n = next(iter(reduces.values())).replicas
    found = block.array((len(reduces), n, turns, len(PARTS), 2), np.float64)
    scratch = np.ones(SCRATCH, np.float32)
    for i, (network, reduce) in enumerate(reduces.items()):
        ctx: Any = SimpleNamespace(index=rank, resume=None)
        bound: Any = reduce.open(ctx, factory.make(network, SPEC))
        bound.vector.grad.fill_(1e-4 * (1 + rank))
        bound.bells, bound.part.step = bells, step = Bells(bound.bells), Watched(bound.part.step)
        timed = (bells.wait, mean, step)
        for k in range(-WARM, turns):
            scratch *= 1.0
            for watched in timed:
                watched.spent[:] = 0.0
            before = clocks()
            for _ in bound.apply(1e-4, np.zeros(3)):
                pass
            whole = clocks() - before
            waits, means, steps = (w.spent for w in timed)
            if k >= 0:
                found[i, rank, k] = [whole - waits - means - steps, waits, means, steps]


def exchange(networks: list[str], replicas: int, turns: int) -> dict[str, np.ndarray]:
    """Seconds that each part of an update takes, {network: [parts, wall and CPU]}: medians over updates and replicas;
    of the wait the mean, for its tail is what costs. Raises RuntimeError: a replica failed.
    """
    lengths = {network: param_sizes(factory.make(network, SPEC))[1] for network in networks}
    reduces = {network: AllReduce(OPTIM, replicas, size) for network, size in lengths.items()}
    shape = (len(networks), replicas, turns, len(PARTS), 2)
    block = SharedBlock(8 * int(np.prod(shape)))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_replica, args=(i, reduces, turns, block)) for i in range(replicas)]
    for p in processes:
        p.start()
    try:
        for p in processes:
            p.join(300)
    finally:
        for reduce in reduces.values():
            reduce.close()
        for p in processes:
            p.kill()
    if any(p.exitcode for p in processes):
        raise RuntimeError(f"exchange: exit statuses {[p.exitcode for p in processes]}")
    found = block.array(shape, np.float64).copy()
    middle, mean = np.median(found, axis=(1, 2)), found.mean((1, 2))
    middle[:, PARTS.index("wait")] = mean[:, PARTS.index("wait")]
    return {network: middle[i] for i, network in enumerate(networks)}


def parameters(network: str) -> int:
    return param_sizes(factory.make(network, SPEC))[0]


# ------------------------------------------------------------------------------------------------- rollouts' times


def _rollouts(options: dict[str, Any], seconds: float, core: int, pipe: Any) -> None:
    import polyplay

    os.sched_setaffinity(0, {core})
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the panel of the run
    at: list[float] = []
    clip = update.clip_gradient

    def stamped(*given: Any) -> float:
        norm = clip(*given)
        at.append(time.perf_counter())
        return norm

    update.clip_gradient = stamped
    with tempfile.TemporaryDirectory() as place:
        quiet = {"serial": True, "tensorboard": False, "report_every": 1e4, "checkpoint_every": 1e4}
        polyplay.train("a2c", minutes=seconds / 60.0, run=f"{place}/run", **quiet, **options)
    pipe.send(np.diff(at)[WARM:].tolist())


def rollouts(options: dict[str, Any], seconds: float) -> list[float]:
    """Seconds from update to update of one replica of a2c on a core of its own. Raises RuntimeError: it failed."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    core = max(os.sched_getaffinity(0))
    child = context.Process(target=_rollouts, args=(options, seconds, core, theirs))
    child.start()
    theirs.close()
    try:
        return mine.recv()
    except EOFError:
        raise RuntimeError("rollouts: the run failed") from None
    finally:
        child.join(30)
        child.kill()


# Plain copies between processes through shared memory: what an exchange of vectors is held against. No torch he


COPIES_WARM = 10  # copies that don't count, and that do at least


def _copier(i: int, role: str, block: SharedBlock, size: int, bells: Semaphores, cells: SharedBlock) -> None:
    """role: into, out, or read. cells int64 [pairs, 8]: transfers of a pair; the last row's first: end."""
    slots = block.array((bells.n // 2, 2, size), np.float32)[i]
    told, own = cells.array((bells.n // 2 + 1, 8), np.int64), np.ones(size, np.float32)
    free, full, turn = bells[2 * i], bells[2 * i + 1], 0
    while not told[-1, 0]:
        if role == "read" or (free if role == "into" else full).wait(0.1):
            np.copyto(*((slots[turn], own) if role == "into" else (own, slots[turn])))
            turn = 1 - turn
            if role == "into":
                full.post()
            else:
                told[i, 0] += 1
                free.post()


def copies(role: str, pairs: int, size: int, seconds: float) -> float:
    """Copies of float32 [size] a second: "out" through shared memory from process to process, "read" out of it.

    Raises RuntimeError: a process failed.
    """
    block, bells, cells = SharedBlock(8 * pairs * size), Semaphores(2 * pairs), SharedBlock(64 * (pairs + 1))
    block.array(2 * pairs * size, np.float32)[:] = 1.0
    told = cells.array((pairs + 1, 8), np.int64)
    for i in range(pairs):
        bells[2 * i].post(2)
    roles = ("into", "out") if role == "out" else ("read",)
    context = multiprocessing.get_context("spawn")
    given = [(i, which, block, size, bells, cells) for i in range(pairs) for which in roles]
    processes = [context.Process(target=_copier, args=one) for one in given]
    for p in processes:
        p.start()
    try:
        while (told[:pairs, 0] < COPIES_WARM).any():
            time.sleep(0.05)
            if any(p.exitcode is not None for p in processes):
                raise RuntimeError(f"copies: exit statuses {[p.exitcode for p in processes]}")
        before, count = time.monotonic(), told[:pairs, 0].sum()
        time.sleep(seconds)
        while told[:pairs, 0].sum() < count + COPIES_WARM:
            time.sleep(0.05)
        return float(told[:pairs, 0].sum() - count) / (time.monotonic() - before)
    finally:
        told[-1, 0] = 1
        for p in processes:
            p.join(5)
            p.kill()


REST, PUSH, PULL, CYCLE = range(4)
LEAST = 0.5  # of a copy's rate
FEW = 10  # that a window has at least
SETTLE = 0.3  # seconds before a window


def made(network: str, optimizer: str, learners: int, shards: int, stale: int) -> ParameterServer:
    return ParameterServer(
        OptimizerSpec(optimizer, eps=0.01), *param_sizes(factory.make(network, SPEC)), learners, shards, stale
    )


# -------------------------------------------------------------------------------------------- who is measured


def learner(ctx: WorkerContext, *, server: ParameterServer, network: str, todo: Hyperparameters) -> Iterator[None]:
    """Does what `todo.what` says for as long as it says so; counts updates pushed, and as rollouts pulls."""
    bound = server.open(ctx, factory.make(network, SPEC))
    bound.begin(0, 0.0)
    while not bound.counts.ready:
        yield
    bound.refresh()
    vector = bound.vector
    vector.grad.copy_(vector.flat[: vector.weights]).mul_(1e-3)
    while True:
        what = int(todo.what)
        if what == REST:
            time.sleep(0.01)
        if what == CYCLE:
            bound.refresh()
        if what == PULL:
            server.fetch(vector, np.full(server.shards, -1))
            ctx.counters.add("rollouts", 1)
        if what in (PUSH, CYCLE):
            yield from bound.apply(1e-4, np.zeros(3))
            ctx.counters.add("updates", 1)
        yield


@contextlib.contextmanager
def running(server: ParameterServer, network: str) -> Iterator[Callable[[int, float], float]]:
    """A function of what to do and for how long; it gives how often a second it was done, by all learners."""
    todo, crew = Hyperparameters(what=REST), Crew()
    crew.add(learner, n=server.workers, learner=True, server=server, network=network, todo=todo)
    crew.add(serve_parameters, n=server.shards, server=server)
    crew.start()

    def rate(what: int, seconds: float) -> float:
        assert crew.counters is not None
        done = crew.counters.column("rollouts" if what == PULL else "updates")
        todo.set("what", what)
        watch(crew, SETTLE)
        before, count = time.monotonic(), done.sum()
        watch(crew, seconds)
        while done.sum() < count + FEW:
            watch(crew, 0.1)
        found = float(done.sum() - count) / (time.monotonic() - before)
        todo.set("what", REST)
        watch(crew, SETTLE)
        return found

    try:
        while not server.counts.ready:
            watch(crew, 0.1)
        yield rate
    finally:
        crew.stop()


def watch(crew: Crew, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        crew.poll(left)


# ---------------------------------------------------------------------------------------- what a shard's work is


def alone(network: str, optimizer: str, turns: int) -> Row:
    """Milliseconds of CPU of a shard of the whole vector, medians: a sweep of one gradient, and a plain copy."""
    server = made(network, optimizer, 1, 1, 0)
    server.fill(FlatParams(factory.make(network, SPEC)), [0], 0, 0.0)
    server.gradient[:] = 1e-3
    part, slot, times = (
        ParameterShard(server, 0),
        server.slot[0, 0],
        {"sweep": list[float](), "copy": list[float]()},
    )
    part.sweep()
    others = np.ones(16_000_000, np.float32)  # what learners touch between two pushes
    into = np.empty_like(server.copies[0])
    for _ in range(turns):
        others += 1.0
        times["copy"].append(timed(lambda: np.copyto(into, server.gradient[0])))
        others += 1.0
        slot[0] += 1
        times["sweep"].append(timed(part.sweep))
    return {"optimizer": optimizer, **{f"{k}, ms": 1e3 * statistics.median(v) for k, v in times.items()}}


def timed(call: Callable[[], Any]) -> float:
    """CPU seconds of this thread: what others do beside it counts as little as can be."""
    before = time.thread_time()
    call()
    return time.thread_time() - before


# ------------------------------------------------------------------------------------------------------ the whole


def measured(network: str, shards: int, learners: int, asked: argparse.Namespace) -> Row:
    """Medians over rounds; shares are of the copies of the same round."""
    rounds: list[Row] = []
    size, wanted = parameters(network), asked.seconds
    for _ in range(asked.rounds):
        row: Row = {"copy/s": copies("out", learners, size, wanted), "read/s": copies("read", learners, size, wanted)}
        with running(made(network, asked.optimizer, learners, shards, 0), network) as rate:
            row |= {"push/s": rate(PUSH, wanted), "pull/s": rate(PULL, wanted), "cycle/s": rate(CYCLE, wanted)}
        with running(made(network, asked.optimizer, learners, shards, 1), network) as rate:
            row["handed over/s"] = rate(PUSH, wanted)
        row["push / copy"], row["pull / read"] = row["push/s"] / row["copy/s"], row["pull/s"] / row["read/s"]
        row["cycle / copy and read"] = row["cycle/s"] * (1 / row["copy/s"] + 1 / row["read/s"])
        row["handed over / copy"] = row["handed over/s"] / row["copy/s"]
        rounds.append(row)
    middle = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
    print(f"server: {network}, {shards} shards, {learners} learners: {middle['push / copy']:.2f}", flush=True)
    return {"network": network, "shards": shards, "learners": learners, **middle}


def page(what: Row) -> list[str]:
    rows, text = what["rows"], ["# A parameter server's exchange, and plain copies of as many bytes", ""]
    text += [*lines_about(what), f"- optimizer: {what['optimizer']}", "", *table(rows), ""]
    text += [
        "A shard's work on a whole vector, CPU time of a thread; *sweep*: one gradient, taken, applied and published.",
        "",
    ]
    text += [*table(what["alone"]), ""]
    for kind in ("push / copy", "pull / read", "handed over / copy"):
        for network in dict.fromkeys(r["network"] for r in rows):
            best = max((r for r in rows if r["network"] == network), key=lambda r: r[kind])
            worst = min(r[kind] for r in rows if r["network"] == network)
            at = f"{best['shards']} shards, {best['learners']} learners"
            text.append(verdict(f"{kind}, {network}: worst {worst:.2f}, best with {at}", best[kind], least=LEAST))
    return text


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--networks", nargs="+", default=["a3c", "nature"])
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="nature, 1 and 2 shards, 1 learner, windows of 0.5 s")
    parser.add_argument("--out", type=type(RESULTS), default=RESULTS / "server")
    asked = parser.parse_args()
    if asked.short:
        asked.networks, asked.shards, asked.learners, asked.seconds = ["nature"], [1, 2], [1], 0.5
    tune(1)
    what: Row = {**about(), "optimizer": asked.optimizer}
    what["alone"] = [alone("nature", name, 30) for name in dict.fromkeys((asked.optimizer, "rmsprop_dqn", "adam"))]
    each = [(network, k, n) for network in asked.networks for k in asked.shards for n in asked.learners]
    what["rows"] = [measured(*one, asked) for one in each]
    publish(asked.out, what, page(what))


if __name__ == "__main__":
    main()
