"""What gpu_day.py measures: devices and networks alone, whole runs, learners, self-play."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, Row
from measure import MeasureProcesses, MeasureRequest
from originals import NETWORKS, TALK
from self_play import ours
from torch.profiler import ProfilerActivity, profile

from polyplay import systems
from polyplay.buffers.replay import Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.buffers.rollout_queue import row_spec
from polyplay.cli.bench import watch_run
from polyplay.core import tree
from polyplay.core.errors import EnvFailure, UserError, WorkerLost
from polyplay.core.files import read_lines, read_object
from polyplay.core.machine import cores
from polyplay.core.tree import Batch
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Envs
from polyplay.learning import runners
from polyplay.learning.learner import Learner, Runner
from polyplay.learning.loop import learn
from polyplay.learning.pure_update import VECTORS, UpdateFunction
from polyplay.learning.runners import CompiledRunner
from polyplay.nets.device import (
    StaticCall,
    enter_device,
    is_half,
    join_bytes,
    signature_of,
    split_bytes,
    synchronize,
    to_device,
)
from polyplay.nets.factory import build_network
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.runs import options
from polyplay.runs.load import crew_of
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.weights.params import FlatParams
from polyplay.weights.update import clip_gradient

# Rates of a device alone: acting and learning with data that is already there, and learners without actors


Extras = Callable[[Any], Any]  # adds to rows [T, B] what only this system's learner has
runners.LOOK = -1.0  # learners capture their updates at once


class Wired:
    """A system wired with these keywords, to take its parts from. Raises UserError."""

    def __init__(self, system: str, keywords: Mapping[str, Any]):
        page = systems.load(system)
        settings, self.options, _ = options.resolve(page, **keywords)
        self.crew = crew_of(self.options)
        self.system = page.build(settings, self.crew)
        self.settings = settings
        self.learner = next(r.holds for r in self.crew.roles if r.spec)
        self.learns, self.spec = self.learner["spec"], self.system.envs.spec
        self.device = enter_device(self.crew.placement.devices[0])

    def context(self, compile: str = "off") -> WorkerContext:  # noqa: A002
        """The context of its one learner, outside any run. compile: as RunControl has it."""
        counters = Counters(4, (*self.system.metrics, "grad_norm", "learning_rate"))
        how: Row = {"precision": self.options.precision, "device": self.crew.placement.devices[0], "patience": 0.0}
        control = RunControl(compile=compile)
        return WorkerContext("learn", 0, 1, 0, seed=0, all_counters=counters, control=control, **how)

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
    the same by CUDA graphs and how far off they are, and what `busy` finds of each without graphs. extras: for learners
    of windows without a last row.
    """
    device, spec, passes = wired.device, wired.learns, wired.learns.passes
    policy = build_network(spec.policy, 0, wired.options.precision, device)
    vector = FlatParams(policy)
    optimizer, run = spec.update.optim.make(vector.parameter), Runner(policy, None, spec.loss, vector)
    run.hyper = spec.hyperparameters.all()
    step = wired.rows(policy, (lanes,)) | {"noise": torch.rand(lanes, policy.noise, device=device)}
    batch, before = wired.rows(policy, (T + (extras is None), B)), policy.initial(B)
    if passes is not None:
        batch |= spec.loss.prepare(batch) if spec.loss.whole else {}
    if extras is not None:
        batch = extras(batch)
    state = policy.initial(lanes)

    def act() -> None:
        with torch.no_grad():
            policy.act(step, state)

    def rows_of() -> Any:
        if passes is None or spec.loss.whole:
            return batch
        return {k: tree.map(lambda x: x[:-1], v) for k, v in batch.items()} | spec.loss.prepare(batch)

    def update(score: Callable[[Any], object] = lambda rows: run(rows, before, 0)) -> None:
        score(rows_of())
        clip_gradient(vector.grad, spec.update.optim.clip)
        optimizer.step()

    policy.cache_weights()
    half = seconds / 2.0  # as long as both take, with and without graphs
    found = {"infer": rate(act, lanes, half, device), "learn": rate(update, T * B, half, device)}
    for name, turn, rows in (("infer", act, lanes), ("learn", update, T * B)):
        found |= {f"{name} {k}": v for k, v in busy(turn, rows / found[name], device).items()}
    try:
        acts, found["infer differs"] = captured_act(policy, step, state)
        found["infer graph"] = rate(acts, lanes, half, device)
        score, found["learn differs"] = captured_update(wired, run, rows_of(), before)
        found["learn graph"] = rate(lambda: update(score), T * B, half, device)
    except RuntimeError as e:
        found["graphs"] = f"none: {(str(e).strip().splitlines() or [''])[0]}"
    return found


def captured_act(policy: Any, step: Any, state: Any) -> tuple[Callable[[], object], float]:
    """Acting by a CUDA graph (on a CPU its rehearsal), and how far its outputs are from those without."""
    kind, leaves = signature_of({"step": step, "state": state})
    like: Any = {}

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = tree.nest(dict(zip(kind[0], given, strict=True)))
        like["out"], like["after"] = policy.act(whole["step"], whole.get("state", {}))
        return (join_bytes(like),)

    call = StaticCall(function, leaves)
    found = split_bytes(call(leaves)[0], like)
    with torch.no_grad():
        out, after = policy.act(step, state)
    return lambda: call(call.static), differs(found, {"out": out, "after": after})


def captured_update(wired: Wired, run: Runner, rows: Any, state: Any) -> tuple[Callable[[Any], object], float]:
    """The gradient of such rows by a CUDA graph (on a CPU its rehearsal), and how far it is from that without."""
    kind, leaves = signature_of({"batch": rows, "state": state})
    where = "bfloat16" if run.policy.bf16 else "float32", str(wired.device)
    function = UpdateFunction(wired.learns.policy, run.loss, False, tuple(run.hyper), kind[0], False, False, *where)()
    flat, at = run.vector.flat.detach(), run.vector.weights
    hyper = torch.tensor(list(run.hyper.values()), dtype=torch.float32)
    own = [flat[:at], flat[at:], flat.new_zeros(0), run.vector.grad, hyper]
    call = StaticCall(function, [*own, *leaves], VECTORS)

    def score(rows: Any) -> None:
        call([*own, *signature_of({"batch": rows, "state": state})[1]])

    return score, gradients_differ(run, lambda: run(rows, state, 0), lambda: score(rows))


def gradients_differ(run: Runner, one: Callable[[], object], other: Callable[[], object]) -> float:
    """How far apart the gradients are that both leave in the vector."""
    one()
    wanted = run.vector.grad.clone()
    other()
    return differs({"gradient": run.vector.grad}, {"gradient": wanted})


def differs(found: Any, wanted: Any) -> float:
    """The largest difference of numbers, over the largest of these numbers; of all leaves the worst."""
    pairs = zip(tree.leaves(found), tree.leaves(wanted), strict=True)
    both = [(x.double(), y.double()) for (_, x), (_, y) in pairs if x.is_floating_point()]
    return max(float((x - y).abs().max() / y.abs().max().clamp_min(1e-12)) for x, y in both)


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


def recorded(wired: Wired, seconds: float, compile: str = "off") -> float:  # noqa: A002
    """Rows/s of the library's own learner from slots that are always full: copies, updates, counts, publishing."""
    source, queue, ctx = wired.learner["source"], wired.learner["source"].queue, wired.context(compile)
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

    turns = learn(ctx, **{k: v for k, v in wired.learner.items() if k in ("source", "spec", "publish")})

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
    while not buffer.due():
        buffer.add(rows, lanes, state)
    return buffer


def learner_alone(wired: Wired, seconds: float, episode: int) -> Row:
    """Updates of a learner that draws from a replay: from a sample in the machine's memory (updates/s), the same by a
    CUDA graph, and with drawing it and returning priorities on the same thread (with_replay/s).
    """
    given = wired.learner["source"].replay
    buffer, learner = filled(given, episode), Learner(wired.context(), wired.learns)
    item, device = tree.map(np.copy, buffer.sample()), wired.device
    rows = given.batch * max(1, given.sequence)

    def update(item: Any) -> Iterator[None]:
        priority = yield from learner.step_on_sample(item)
        if priority is not None:
            buffer.update_priorities(item["id"], priority)

    def step() -> None:
        deque(learner.step_on_sample(item), 0)

    def whole() -> None:
        deque(update(buffer.sample()), 0)

    updates = rate(step, 1, seconds / 2.0, device)
    found: Row = {"rows": rows, "updates": updates, "transitions": updates * rows}
    found |= busy(step, 1.0 / updates, device)
    eager, learner.ctx.control.compile = learner.run, "on"
    learner.run = graph = CompiledRunner(learner)
    graph.captures = True  # on a CPU a rehearsal
    found["transitions graph"] = rows * rate(step, 1, seconds / 2.0, device)
    batch = to_device(item, device)
    given = batch, batch.get("state", {}), learner.version
    found["differs"] = gradients_differ(eager, lambda: eager(*given), lambda: graph(*given))
    if graph.over:
        found["graphs"] = "none"
    return found | {"with_replay": rate(whole, rows, seconds, device)}


# Whole runs on a machine with a GPU: GA3C beside A3C, the on-policy systems, Pong to a score


BASE: Row = {"trace": False, "tensorboard": False, "checkpoint_every": 1e9, "steps": 1_000_000_000, "precision": "auto"}
BASE |= {"env": "ALE/Pong-v5"}
ROOM = 25.0  # seconds that a run takes with its start, at most
EMULATORS, LEAST = "of_emulators", "of_least"  # a run's rate over the emulators' alone; over min(emulators, its limit)
TARGETS = {
    "impala, nature": (0.85, EMULATORS),
    "appo, nature": (0.85, EMULATORS),
    "a2c, nature": (0.70, EMULATORS),
    "ppo, nature": (0.85, LEAST),
    "impala, deep": (0.85, LEAST),
}
CLEANRL = "ppo, nature, CleanRL's settings"
PUBLISHED = {CLEANRL: 6_809}  # agent steps/s on an H100 with CUDA graphs (LeanRL)
AIMS = {"ppo, nature": 20_000}  # agent steps/s, with settings for the machine


class Day:
    """Where a part runs, and until when."""

    def __init__(self, device: str, short: bool, seconds: float):
        self.device, self.short, self.cores = device, short, cores()
        self.end = time.monotonic() + seconds
        self.gpu = device == "cuda"
        self.fixed = {**BASE, "device": device}

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def seconds(self, wanted: float) -> float:
        """Of a measurement."""
        return 0.2 if self.short else wanted


# ------------------------------------------------------------------------------------------------------ GA3C's figure


def ga3c_figure(day: Day) -> Iterator[Row]:
    """Predictions/s of a3c on the cores and of ga3c with the GPU, by network, beside the talk's ratios."""
    n = 2 if day.short else day.cores
    a3c: Row = {"workers": n, "unroll": 5}
    ga3c: Row = {"agents": min(8 * n, 128), "predictors": 2, "trainers": 2, "schedule": "off", "unroll": 5}
    ga3c |= {"min_batch": 160, "queue": 320}
    for network in [*NETWORKS][:1] if day.short else NETWORKS:
        row: Row = {"network": f"{NETWORKS[network]} ({network})"}
        for system, keywords in (("a3c", {**a3c, "device": "cpu"}), ("ga3c", ga3c)):
            seen = run_of(day, system, {**day.fixed, "network": network, **keywords}, 4.0)
            row |= {
                f"{system} {k}": seen.get(k) for k in ("sps", "cores", "gpu_use", "note") if seen.get(k) is not None
            }
        if row.get("a3c sps") and row.get("ga3c sps"):
            row["ratio"] = row["ga3c sps"] / row["a3c sps"]
        yield {**row, "talk": TALK[network]}


def run_of(day: Day, system: str, keywords: Row, seconds: float) -> Row:
    """A run in a process of its own, watched: agent steps/s, cores, GPU; or a note."""
    if day.left < (6.0 if day.short else ROOM):
        return {"note": "left out: no time"}
    try:
        with watched_gpu(day.gpu, seconds) as gpu:
            seen = watch_run(system, keywords, day.seconds(seconds))
    except (EnvFailure, UserError, WorkerLost, RuntimeError) as e:
        return {"note": str(e).strip().splitlines()[-1]}
    return {"sps": seen["sps"], "cores": seen["own_cores"], **gpu, "time": seen["time"]}


@contextmanager
def watched_gpu(there: bool, seconds: float) -> Iterator[Row]:
    """gpu_mb: the most that the GPU's memory grew by meanwhile, all processes together; gpu_use: how much of the last
    seconds it computed.
    """
    found: Row = {}
    if not there:
        yield found
        return
    import pynvml

    pynvml.nvmlInit()
    gpu, stop, use = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event(), list[float]()
    begin = pynvml.nvmlDeviceGetMemoryInfo(gpu).used

    def watch() -> None:
        while not stop.wait(0.2):
            found["gpu_mb"] = max(found.get("gpu_mb", 0.0), (pynvml.nvmlDeviceGetMemoryInfo(gpu).used - begin) / 2**20)
            use.append(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100.0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        last = use[-max(1, round(seconds / 0.2)) :]
        found["gpu_use"] = sum(last) / len(last) if last else None


# -------------------------------------------------------------------------------------------------- on-policy systems


def contests(n: int) -> list[tuple[str, str, str, Row]]:
    """(name, system, network, keywords) for n cores, the most important first."""
    act: Row = {"actors": max(2, n // 2), "lanes": 128, "unroll": 20, "batch": 256, "actors_on": "device"}
    a2c: Row = {"lanes": 32 * n, "groups": 2, "unroll": 5, "replicas": 1}
    ppo: Row = {"lanes": 16 * n, "groups": 2, "unroll": 128, "replicas": 1, "epochs": 4, "minibatches": 4}
    appo: Row = {**act, "epochs": 1, "minibatches": 2}
    cleanrl: Row = {**ppo, "preset": "baselines", "lanes": 8, "groups": 1}
    return [
        ("impala, nature", "impala", "nature", act),
        ("ppo, nature", "ppo", "nature", ppo),
        (CLEANRL, "ppo", "nature", cleanrl),
        ("a2c, nature", "a2c", "nature", a2c),
        ("appo, nature", "appo", "nature", appo),
        ("impala, deep", "impala", "impala", act),
        ("ppo, deep", "ppo", "impala", ppo),
        ("a2c, deep", "a2c", "impala", a2c),
        ("appo, deep", "appo", "impala", appo),
    ]


SHORT = [("impala, nature", "impala", "a3c", {"actors": 2, "lanes": 4, "batch": 8, "unroll": 4})]


def on_policy(day: Day) -> Iterator[Row]:
    """Runs of every on-policy system as a share of the emulators' rate and of the device's limit."""
    rate = emulators(day)
    yield {"table": "Emulators alone", "agent steps/s": rate}
    for name, system, network, keywords in SHORT if day.short else contests(day.cores):
        given, head = {**day.fixed, "network": network, **keywords}, {"name": name}
        if day.left < (0.0 if day.short else ROOM):
            yield {"table": "Systems", **head, "note": "left out: no time"}
            continue
        found = limits(system, given, day.seconds(1.0))
        seen = run_of(day, system, given, 4.0)
        times = seen.pop("time", {})
        row: Row = {"table": "Systems", **head, **seen, "limit": found["limit"]}
        if "sps" in seen:
            row |= {EMULATORS: seen["sps"] / rate, LEAST: seen["sps"] / min(rate, found["limit"])}
            row |= judged(name, row)
        yield row
        yield {"table": "The device alone", **head, **found}
        yield {"table": "Workers' time", **head, **times, "settings": " ".join(f"{k}={v}" for k, v in keywords.items())}
        if name == CLEANRL and day.left > 2 * ROOM:
            seen = run_of(day, system, {**given, "compile": "off"}, 4.0)
            yield {"table": "Without CUDA graphs", **head, "sps": seen.get("sps"), "note": seen.get("note")}


def judged(name: str, row: Row) -> Row:
    """How a run compares with its target, its aim, and what is published."""
    found: Row = {}
    if name in TARGETS:
        least, of = TARGETS[name]
        found["target"] = f"{of} ≥ {least:.2f}: {'met' if row[of] >= least else 'NOT met'}"
    if name in PUBLISHED:
        found["published"] = PUBLISHED[name]
    return found | ({"aim": AIMS[name]} if name in AIMS else {})


def emulators(day: Day) -> float:
    """Agent steps/s of all cores together, random actions, pictures prepared."""
    request = MeasureRequest("a2c", {**day.fixed, "device": "cpu", "network": "a3c"}, day.seconds(3.0), lanes=16)
    n = 1 if day.short else day.cores
    with MeasureProcesses(n) as processes:
        return n * 1e6 / processes.measure(request)["env"]


def limits(system: str, keywords: Row, seconds: float) -> Row:
    """Samples/s of the device alone with this system's loss and batch sizes, and what of a turn is launch cost."""
    wired = Wired(system, keywords)
    source = wired.learner["source"]
    (T, B), passes = source.shape, wired.learns.passes
    lanes = wired.system.envs.lanes // wired.system.envs.groups
    taken = B // passes.minibatches if passes else B
    found: Row = {"lanes": lanes, "rows": T * taken, **alone(wired, lanes, T, taken, seconds)}
    infer, learn = (max(found[k], found.get(f"{k} graph", 0.0)) for k in ("infer", "learn"))
    found["limit"] = 1.0 / (1.0 / infer + (passes.epochs if passes else 1) / learn)
    if system == "impala":
        found["recorded"] = recorded(wired, seconds)
        found["of_alone"] = found["recorded"] / found["learn"]
        if wired.device.type == "cuda":
            found["recorded graph"] = recorded(wired, seconds, "on")
    if wired.device.type == "cuda":
        torch.cuda.empty_cache()
    return found


# ------------------------------------------------------------------------------------------------------ time to score

GOAL = 18.0
PONG = (
    f"--env ALE/Pong-v5 --preset quick --precision auto --replicas 1 --until-return {GOAL:g} --no-tensorboard --quiet"
)
FULL = "--lanes 64 --groups 2 --learning-rate 1e-3 --frames 12000000"  # for 16 cores and a GPU
SHORT_PONG = "--lanes 4 --unroll 8 --steps 64"


def pong(day: Day) -> Iterator[Row]:
    """`polyplay train ppo` on Pong, from the start of its process to a mean return of 18 over 100 games."""
    words = ["train", "ppo", *shlex.split(f"{PONG} {SHORT_PONG if day.short else FULL}"), "--device", day.device]
    limit = min(150.0, day.left - 15.0)
    words += ["--minutes", f"{limit / 60.0:.3f}", "--report-every", "1"]
    with tempfile.TemporaryDirectory() as place:
        run, begun = Path(place) / "run", time.monotonic()
        command = [sys.executable, "-m", "polyplay", *words, "--run", str(run)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit + 60.0)
        seconds = time.monotonic() - begun
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        yield {"command": f"polyplay {' '.join(words)}", **score(run, seconds)}
        reports: list[Any] = list(read_lines(run / "metrics.jsonl", "steps", "wall_seconds"))
        for row in reports[:: max(1, len(reports) // 15)]:
            yield {
                "table": "Curve",
                **{k: row.get(k) for k in ("wall_seconds", "steps", "sps", "episodic_return_mean")},
            }


def score(run: Path, seconds: float) -> Row:
    """Whether a run reached the goal, and when."""
    summary = read_object(run / "summary.json")
    best = summary["episodic_return_mean_best"]
    reached = best is not None and best >= GOAL
    found = {
        "reached": f"yes, after {seconds:.0f} s" if reached else f"no, in {seconds:.0f} s",
        "best mean of 100": best,
    }
    return {**found, "agent steps": summary["steps"], "steps/s": summary["steps"] / summary["wall_seconds"]}


# Learners and searches on a device, without emulators: replay learners, self-play, Five and FTW


LEARNERS: dict[str, tuple[str, Row]] = {
    "DQN, batch 32": ("dqn", {"batch": 32}),
    "DQN, batch 512": ("dqn", {"batch": 512}),
    "Ape-X, batch 512": ("apex", {"batch": 512, "actors": 1, "lanes": 16}),
    "R2D2, 64 sequences of 80": ("r2d2", {"batch": 64, "actors": 1, "lanes": 16}),
    "CatDQN, batch 2,048": ("accel_dqn", {"batch": 2048, "replicas": 1}),
    "Rainbow, batch 2,048": ("rainbow", {"batch": 2048, "lanes": 16}),
}
GPU_LEARNERS_PUBLISHED = {
    "Ape-X, batch 512": "9.7 K transitions/s (Horgan et al. 2018)",
    "CatDQN, batch 2,048": "30 K frames/s a GPU: 240 K on 8 (Stooke & Abbeel 2018)",
}
CASES = {  # env, blocks, filters, positions in a batch, of the network alone and of each player
    "connect four, 5×64": ("game:connect_four", 5, 64, 512),
    "Go 9×9, 10×128": ("game:go+size=9", 10, 128, 256),
    "Go 19×19, 20×256": ("game:go", 20, 256, 128),
}
SIMULATIONS = 1600  # of a move (Silver et al. 2017)


def learners(day: Day) -> Iterator[Row]:
    """Updates of learners that draw from a replay, which noise has filled."""
    for name in (*LEARNERS,)[2:4] if day.short else LEARNERS:
        system, keywords = LEARNERS[name]
        keywords = {"capacity": 40_000, "learning_starts": 4_000, **keywords}
        if day.short:
            keywords = {**keywords, "batch": 4, "capacity": 1_000, "learning_starts": 100, "lanes": 2, "network": "a3c"}
            keywords |= (
                {"sequence": 8, "burn_in": 4, "unroll": 8, "pull": 8, "core_size": 16} if system == "r2d2" else {}
            )
        wired = Wired(system, {**day.fixed, **keywords})
        found = learner_alone(wired, day.seconds(1.5), 20 if day.short else 200)
        ratio = getattr(wired.settings, "ratio", 0.0)
        frames = 4 * found["transitions"] / ratio if ratio else None
        yield {"learner": name, **found, "frames/s at its ratio": frames, "published": GPU_LEARNERS_PUBLISHED.get(name)}
        if day.gpu:
            torch.cuda.empty_cache()


def search(day: Day) -> Iterator[Row]:
    """Evaluations/s of the network alone and as a search asks it; self-play by a few players that share the device."""
    precision = "bfloat16" if is_half("auto", day.device) else "float32"
    for name, (env, blocks, filters, batch) in list(CASES.items())[: 1 if day.short else None]:
        if day.short:
            blocks, filters, batch = 1, 8, 4
        evaluator = NetworkEvaluator(
            BoardNetworkFactory(Envs(env, 1).spec, blocks, filters), batch, "torch", precision, day.device
        )
        evaluator.take(0)
        row: Row = {"network": name, "precision": precision, "batch": batch, **evaluations(evaluator, batch, day)}
        yield row | plays(day, env, blocks, filters, batch, precision)


def evaluations(evaluator: NetworkEvaluator, batch: int, day: Day) -> Row:
    """Of positions that lie on the device, and of NumPy arrays there and back."""
    rng, device, seconds = np.random.default_rng(0), torch.device(day.device), day.seconds(1.5)
    planes = rng.integers(0, 2, (batch, *evaluator.network.planes)).astype(np.float32)
    near, backend = torch.from_numpy(planes).to(device, memory_format=torch.channels_last), evaluator._backend
    with torch.inference_mode():
        alone_ = rate(lambda: backend.folded(near), batch, seconds, device)
    return {
        "network alone/s": alone_,
        "evaluations/s": rate(lambda: evaluator.evaluate(planes), batch, seconds, device),
    }


def plays(day: Day, env: str, blocks: int, filters: int, games: int, precision: str) -> Row:
    """Simulations/s of the page's own self-play, each move searched anew."""
    asked = argparse.Namespace(env=env, games=games, blocks=blocks, filters=filters, device=day.device)
    asked.players, asked.simulations = (1, 8) if day.short else (min(8, day.cores), 100)
    asked.window, asked.turn, asked.spread = (0.3, 0.3, 0.2) if day.short else (4.0, 4.0, 1.0)
    found = ours("torch", precision, False, asked)
    answer = {"players": asked.players, "simulations/s": found["simulations/s"], "of its evaluators": found["share"]}
    return answer | {"moves/hour at 1,600 simulations": 3600.0 * found["simulations/s"] / SIMULATIONS}


# ------------------------------------------------------------------------------------------------------- Five and FTW

FIVE: Row = {"actors": 1, "learners": 1, "inputs": "raw"}
FTW: Row = {"actors": 1}
GAMES: dict[str, tuple[str, Row, int, int]] = {  # system, settings, rows and columns of an update
    "Five, LSTM 1,024": ("five", {**FIVE, "core_size": 1024}, 16, 120),
    "Five, LSTM 4,096": ("five", {**FIVE, "core_size": 4096}, 16, 120),
    "FTW": ("ftw", FTW, 100, 32),
}


def games(day: Day) -> Iterator[Row]:
    """Acting and learning of one agent on the device, with data that is already there."""
    for name in (*GAMES,)[1:] if day.short else GAMES:
        system, keywords, T, B = GAMES[name]
        if day.short:
            keywords, T, B = {**keywords, "preset": "quick", "core_size": 16}, 8, 2
        given = {k: v for k, v in {**BASE, "device": day.device}.items() if k != "env"}
        wired = Wired(system, {**given, **keywords})
        extras = windows if system == "five" else examples
        lanes = 4 if day.short else 128
        found = alone(wired, lanes, T, B, day.seconds(1.5), extras)
        yield {"learner": name, "lanes": lanes, "rows": T * B, **found}
        if day.gpu:
            torch.cuda.empty_cache()


def windows(rows: Batch) -> Any:
    """Rows as Five's optimizer has them: with targets, made when they came."""
    first = rows["first"]
    made = {k: torch.zeros_like(first, dtype=torch.float32) for k in ("advantage", "target", "logp", "value")}
    return {**rows, **made, "valid": torch.ones_like(first)}


def examples(rows: Batch) -> Any:
    """Rows as FTW's learner has them: with as many examples for reward prediction as it draws."""
    recent = {k: v[:3] for k, v in rows["obs"].items()}
    reward = torch.zeros(rows["first"].shape[1], device=rows["first"].device)
    return {**rows, "recent": recent, "recent_reward": reward, "recent_weight": reward.new_ones(())}
