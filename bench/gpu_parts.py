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
from polyplay.buffers.rollout_queue import row_spec
from polyplay.common import tree
from polyplay.common.context import Me
from polyplay.common.control import Control
from polyplay.common.counters import Meter
from polyplay.learning.learner import learn
from polyplay.nets.device import enter, finish, put
from polyplay.nets.factory import build
from polyplay.runs import options
from polyplay.runs.run import new_crew
from polyplay.weights.flat import Vector
from polyplay.weights.update import clip_


class Wired:
    """A system wired with these keywords, to take its parts from. Raises UserError."""

    def __init__(self, system: str, keywords: Mapping[str, Any]):
        page = systems.load(system)
        settings, self.options, _ = options.resolve(page, **keywords)
        self.crew = new_crew(self.options)
        self.system = page.build(settings, self.crew)
        self.learner = next(r.kw for r in self.crew.roles if "task" in r.kw)
        self.task, self.spec = self.learner["task"], self.system.envs.spec
        self.device = enter(self.crew.where.devices[0])

    def rows(self, policy: Any, shape: tuple[int, ...]) -> Any:
        """Rows of noise on the device."""
        rows = tree.zeros(row_spec(self.spec.obs, policy.spec(), self.spec.mask), shape)
        scribble(rows)
        return put(rows, self.device)


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
    device, task = wired.device, wired.task
    policy = build(task.policy, 0, wired.options.precision, device)
    vector = Vector(policy)
    optimizer = task.update.optim.make(vector.parameter)
    step = wired.rows(policy, (lanes,)) | {"noise": torch.rand(lanes, policy.noise, device=device)}
    batch, before = wired.rows(policy, (T + 1, B)), policy.initial(B)
    if task.passes is not None:
        batch |= task.loss.prepare(batch) if task.loss.whole else {}
    state = policy.initial(lanes)

    def act() -> None:
        with torch.no_grad():
            policy.act(step, state)

    def update() -> None:
        rows = batch
        if task.passes is not None and not task.loss.whole:
            targets = task.loss.prepare(batch)
            rows = {k: tree.map(lambda x: x[:-1], v) for k, v in batch.items()} | targets
        scored = task.loss(policy.unroll(rows, before), rows, task.knobs)
        vector.zero_grad()
        scored.loss.backward()
        clip_(vector, task.update.optim.clip)
        optimizer.step()

    policy.hold()
    return {"infer": rate(act, lanes, seconds, device), "learn": rate(update, T * B, seconds, device)}


def rate(turn: Callable[[], None], rows: int, seconds: float, device: torch.device) -> float:
    """Rows per second of a turn that takes so many."""
    for _ in range(3):
        turn()
    finish(device)
    begun, turns = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        turn()
        turns += 1
    finish(device)
    return turns * rows / (time.perf_counter() - begun)


def recorded(wired: Wired, seconds: float) -> float:
    """Rows/s of the library's own learner from slots that are always full: copies, updates, counts, publishing."""
    source, stream = wired.learner["source"], wired.learner["source"].stream
    meters = Meter(4, (*wired.system.metrics, "grad_norm", "learning_rate"))
    how: Row = {"precision": wired.options.precision, "device": wired.crew.where.devices[0], "patience": 0.0}
    me = Me("learn", 0, 1, 0, seed=0, meters=meters, control=Control(), **how)
    stream.patience = 0.0
    scribble(tree.map(lambda x: x[0], stream.rows))
    for _, x in tree.leaves(stream.rows):
        x[1:] = x[:1]
    ends = [stream.producer(p) for p in range(stream.producers)]

    def fill() -> None:
        for end in ends:
            while (slot := end.slot()) is not None:
                stream.rows["version"][slot] = 0
                end.commit(slot)

    turns = learn(me, **{k: v for k, v in wired.learner.items() if k in ("source", "task", "params", "round_slots")})

    def turn() -> None:
        fill()
        next(turns)

    for _ in range(4):
        turn()
    begun, before = time.perf_counter(), me.meter.get("learnt")
    while time.perf_counter() - begun < seconds:
        turn()
    assert source.n * stream.lanes * stream.T > 0
    return float(me.meter.get("learnt") - before) / (time.perf_counter() - begun)


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
