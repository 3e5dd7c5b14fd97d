"""What a device can do alone: acting and learning with data that lies there, and a learner with recorded rollouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from common import Row

from polyplay import systems
from polyplay.buffers.rollout_slots import row_spec
from polyplay.common import tree
from polyplay.common.context import WorkerContext
from polyplay.common.control import RunControl
from polyplay.common.counters import Counters
from polyplay.learning.worker import learn
from polyplay.nets.device import enter_device, synchronize, to_device
from polyplay.nets.factory import build_network
from polyplay.runs import options
from polyplay.runs.run import crew_of
from polyplay.weights.flat import FlatParams
from polyplay.weights.update import clip_gradient


class Wired:
    """A system wired with these keywords, to take its parts from. Raises UserError."""

    def __init__(self, system: str, keywords: Mapping[str, Any]):
        page = systems.load(system)
        settings, self.options, _ = options.resolve(page, **keywords)
        self.crew = crew_of(self.options)
        self.system = page.build(settings, self.crew)
        self.learner = next(r.arguments(0) for r in self.crew.roles if r.spec)
        self.learns, self.spec = self.learner["spec"], self.system.envs.spec
        self.device = enter_device(self.crew.where.devices[0])

    def rows(self, policy: Any, shape: tuple[int, ...]) -> Any:
        """Rows of noise on the device."""
        rows = tree.zeros(row_spec(self.spec.obs, policy.spec(), self.spec.mask), shape)
        scribble(rows)
        return to_device(rows, self.device)


def scribble(rows: Any) -> None:
    """Bytes and rewards at random, every action legal."""
    rng = np.random.default_rng(0)
    for _, x in tree.leaves(rows["obs"]):
        x[...] = rng.integers(0, 256, x.shape, np.uint8) if x.dtype == np.uint8 else 0
    rows["reward"][...] = rng.integers(-1, 2, rows["reward"].shape)
    for _, x in tree.leaves(rows.get("mask", {})):
        x[...] = True


def alone(wired: Wired, lanes: int, T: int, B: int, seconds: float) -> Row:
    """Samples/s of acting for `lanes` at once and of updates of T·B rows, one pass, all of it on the device."""
    device, spec = wired.device, wired.learns
    policy = build_network(spec.policy, 0, wired.options.precision, device)
    vector = FlatParams(policy)
    optimizer = spec.update.optim.make(vector.parameter)
    step = wired.rows(policy, (lanes,)) | {"noise": torch.rand(lanes, policy.noise, device=device)}
    batch, before = wired.rows(policy, (T + 1, B)), policy.initial(B)
    if spec.passes is not None:
        batch |= spec.loss.prepare(batch) if spec.loss.whole else {}
    state = policy.initial(lanes)

    def act() -> None:
        with torch.no_grad():
            policy.act(step, state)

    def update() -> None:
        rows = batch
        if spec.passes is not None and not spec.loss.whole:
            targets = spec.loss.prepare(batch)
            rows = {k: tree.map(lambda x: x[:-1], v) for k, v in batch.items()} | targets
        scored = spec.loss(policy.unroll(rows, before), rows, spec.hyperparameters)
        vector.zero_grad()
        scored.loss.backward()
        clip_gradient(vector, spec.update.optim.clip)
        optimizer.step()

    policy.hold()
    return {"infer": rate(act, lanes, seconds, device), "learn": rate(update, T * B, seconds, device)}


def rate(turn: Callable[[], None], rows: int, seconds: float, device: torch.device) -> float:
    """Rows per second of a turn that takes so many."""
    for _ in range(3):
        turn()
    synchronize(device)
    begun, turns = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        turn()
        turns += 1
    synchronize(device)
    return turns * rows / (time.perf_counter() - begun)


def recorded(wired: Wired, seconds: float) -> float:
    """Rows/s of the library's own learner from slots that are always full: copies, updates, counts, publishing."""
    source, queue = wired.learner["source"], wired.learner["source"].queue
    all_counters = Counters(4, (*wired.system.metrics, "grad_norm", "learning_rate"))
    how: Row = {"precision": wired.options.precision, "device": wired.crew.where.devices[0], "patience": 0.0}
    ctx = WorkerContext("learn", 0, 1, 0, seed=0, all_counters=all_counters, control=RunControl(), **how)
    queue.patience = 0.0
    scribble(tree.map(lambda x: x[0], queue.rows))
    for _, x in tree.leaves(queue.rows):
        x[1:] = x[:1]
    ends = [queue.producer(p) for p in range(queue.producers)]

    def fill() -> None:
        for end in ends:
            while (slot := end.slot()) is not None:
                queue.rows["version"][slot] = 0
                end.commit(slot)

    turns = learn(ctx, **{k: v for k, v in wired.learner.items() if k in ("source", "spec", "params")})

    def turn() -> None:
        fill()
        next(turns)

    for _ in range(4):
        turn()
    begun, before = time.perf_counter(), ctx.counters.get("learnt")
    while time.perf_counter() - begun < seconds:
        turn()
    assert source.n * queue.lanes * queue.T > 0
    return float(ctx.counters.get("learnt") - before) / (time.perf_counter() - begun)


@contextmanager
def watched_memory(on_gpu: bool) -> Iterator[Row]:
    """gpu_mb: the most that the device's memory grew by meanwhile, all processes together."""
    found: Row = {}
    if not on_gpu:
        yield found
        return
    begin, stop = torch.cuda.mem_get_info()[0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.25):
            found["gpu_mb"] = max(found.get("gpu_mb", 0.0), (begin - torch.cuda.mem_get_info()[0]) / 2**20)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
