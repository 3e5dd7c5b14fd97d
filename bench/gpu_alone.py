"""Rates of a device alone: acting and learning with data that is already there, and learners without actors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from common import Row
from torch.profiler import ProfilerActivity, profile

from polyplay import systems
from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.buffers.rollout_queue import row_spec
from polyplay.core import tree
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.learning.learner import Learner
from polyplay.learning.loop import learn
from polyplay.nets.device import enter_device, synchronize, to_device
from polyplay.nets.factory import build_network
from polyplay.runs import options
from polyplay.runs.load import crew_of
from polyplay.weights.params import FlatParams
from polyplay.weights.update import clip_gradient

Extras = Callable[[Any], Any]  # adds to rows [T, B] what only this system's learner has


class Wired:
    """A system wired with these keywords, to take its parts from. Raises UserError."""

    def __init__(self, system: str, keywords: Mapping[str, Any]):
        page = systems.load(system)
        settings, self.options, _ = options.resolve(page, **keywords)
        self.crew = crew_of(self.options)
        self.system = page.build(settings, self.crew)
        self.settings = settings
        self.learner = next(r.arguments(0) for r in self.crew.roles if r.spec)
        self.learns, self.spec = self.learner["spec"], self.system.envs.spec
        self.device = enter_device(self.crew.where.devices[0])

    def context(self) -> WorkerContext:
        """The context of its one learner, outside any run."""
        counters = Counters(4, (*self.system.metrics, "grad_norm", "learning_rate"))
        how: Row = {"precision": self.options.precision, "device": self.crew.where.devices[0], "patience": 0.0}
        return WorkerContext("learn", 0, 1, 0, seed=0, all_counters=counters, control=RunControl(), **how)

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


def alone(wired: Wired, lanes: int, T: int, B: int, seconds: float, extras: Extras | None = None) -> Row:
    """Acting for `lanes` at once, and updates of T·B rows, one pass, all of it on the device: samples/s (infer, learn),
    and what `busy` finds of each. extras: for learners of windows without a last row.
    """
    device, spec = wired.device, wired.learns
    policy = build_network(spec.policy, 0, wired.options.precision, device)
    vector = FlatParams(policy)
    optimizer = spec.update.optim.make(vector.parameter)
    step = wired.rows(policy, (lanes,)) | {"noise": torch.rand(lanes, policy.noise, device=device)}
    batch, before = wired.rows(policy, (T + (extras is None), B)), policy.initial(B)
    if spec.passes is not None:
        batch |= spec.loss.prepare(batch) if spec.loss.whole else {}
    if extras is not None:
        batch = extras(batch)
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

    if hasattr(policy, "hold"):
        policy.hold()
    found = {"infer": rate(act, lanes, seconds, device), "learn": rate(update, T * B, seconds, device)}
    for name, turn, rows in (("infer", act, lanes), ("learn", update, T * B)):
        found |= {f"{name} {k}": v for k, v in busy(turn, rows / found[name], device).items()}
    return found


def busy(turn: Callable[[], None], wall: float, device: torch.device, turns: int = 3) -> Row:
    """kernels: of a turn; busy: their time over `wall`, the seconds of a turn. What is missing to 1 is launch cost and
    waiting. On a CPU: its operations, and their time.
    """
    gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU], acc_events=True) as seen:
        for _ in range(turns if gpu else 1):
            turn()
        synchronize(device)
    events = [e for e in seen.events() if e.device_type.name == ("CUDA" if gpu else "CPU")]
    micros = sum(e.time_range.elapsed_us() if gpu else e.self_cpu_time_total for e in events)
    n = turns if gpu else 1
    return {"kernels": round(len(events) / n), "busy": min(1.0, micros / n / 1e6 / wall)}


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
    source, queue, ctx = wired.learner["source"], wired.learner["source"].queue, wired.context()
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


# ------------------------------------------------------------------------------------------------- learners of a replay


def filled(replay: Replay, episode: int) -> ReplayBuffer:
    """A replay with enough noise to draw from, in episodes of this length. Each adds to every lane."""
    buffer = replay.open(0)
    rng, lanes = np.random.default_rng(0), slice(0, replay.lanes)
    rows = tree.zeros(replay.spec, (episode, replay.lanes))
    scribble(rows | {"obs": {}})
    for path, x in tree.leaves(rows["obs"]):
        frames = rng.integers(0, 256, (episode + x.shape[2] - 1, *x.shape[1:2], *x.shape[3:]), np.uint8)
        for plane in range(x.shape[2]):  # stacks continue from row to row
            x[:, :, plane] = frames[plane : plane + episode]
        assert x.dtype == np.uint8, path
    rows["first"][0], rows["terminated"][-1] = True, True
    state = tree.zeros(replay.state, (replay.lanes,)) if replay.state else None
    while not buffer.ready:
        buffer.add(rows, lanes, state)
    return buffer


def learner_alone(wired: Wired, seconds: float, episode: int) -> Row:
    """Updates of a learner that draws from a replay: from a sample in the machine's memory (updates/s), and with
    drawing it and returning priorities on the same thread (with_replay/s).
    """
    given = wired.learner.get("replay") or wired.learner["source"].replay
    buffer, learner = filled(given, episode), Learner(wired.context(), wired.learns)
    item, device = tree.map(np.copy, buffer.sample()), wired.device
    rows = given.batch * max(1, given.sequence)

    def step() -> None:
        deque(learner.step_on_sample(item), 0)

    def whole() -> None:
        drawn = buffer.sample()
        deque(learner.step_on_sample(drawn), 0)
        priority = learner.priorities()
        if priority is not None:
            buffer.update_priorities(drawn["id"], priority)

    updates = rate(step, 1, seconds, device)
    found: Row = {"rows": rows, "updates": updates, "transitions": updates * rows}
    found["with_replay"] = rate(whole, rows, seconds, device)
    return found | busy(step, 1.0 / updates, device)
