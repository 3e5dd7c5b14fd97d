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
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict
from copies import copies
from exchange import SPEC, parameters

from polyplay.core.worker import Hyperparameters, WorkerContext
from polyplay.nets import factory
from polyplay.weights.parameter_server import ParameterServer, ParameterShard, serve_parameters
from polyplay.weights.params import param_sizes
from polyplay.weights.update import OptimizerSpec
from polyplay.workers.crew import Crew
from polyplay.workers.process import tune

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
    vector = server.vector(ctx, factory.make(network, SPEC))
    bound: Any = server.bind(ctx, vector)
    bound.counts.begin(0, 0.0)
    while not bound.counts.ready:
        yield
    bound.counts.newest()
    vector.grad.copy_(vector.flat[: vector.weights]).mul_(1e-3)
    while True:
        what = int(todo.what)
        if what == REST:
            time.sleep(0.01)
        if what == CYCLE:
            bound.counts.newest()
        if what == PULL:
            server.fetch(vector, np.full(server.shards, -1))
            ctx.counters.add("rollouts", 1)
        if what in (PUSH, CYCLE):
            yield from bound(1e-4, np.zeros(3))
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
        while not server.ready:
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
    vector = server.vector(None, factory.make(network, SPEC))  # type: ignore[arg-type]
    server.fill(vector, [0], 0, 0.0)
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
    return {"optimiser": optimizer, **{f"{k}, ms": 1e3 * statistics.median(v) for k, v in times.items()}}


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
    text += [*lines_about(what), f"- optimiser: {what['optimizer']}", "", *table(rows), ""]
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
