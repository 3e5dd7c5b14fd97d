"""Whole runs on a machine with a GPU: GA3C beside A3C, the on-policy systems, Pong to a score.

Per agent step, with I and L the device's rates of acting and learning and k passes over the data, a system's limit is
1/(1/I + k/L). TARGETS hold a run against its emulators alone, or against the lesser of both.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import ROOT, Row
from crowd import MeasureProcesses, MeasureRequest
from gpu_alone import Wired, alone, recorded
from pps import NETWORKS, TALK

from polyplay.cli.bench import updates_per_turn
from polyplay.cli.bench_measure import watched
from polyplay.core.errors import EnvFailure, UserError, WorkerLost
from polyplay.core.files import read_lines, read_object
from polyplay.core.machine import cores

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


def run_of(day: Day, system: str, keywords: Row, seconds: float, turn: int = 1) -> Row:
    """A run in a process of its own, watched: agent steps/s, cores, GPU; or a note."""
    if day.left < (6.0 if day.short else ROOM):
        return {"note": "left out: no time"}
    try:
        with watched_gpu(day.gpu, seconds) as gpu:
            seen = watched(system, keywords, day.seconds(seconds), turn)
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
        seen = run_of(day, system, given, 4.0, found.pop("turn"))
        times = seen.pop("time", {})
        row: Row = {"table": "Systems", **head, **seen, "limit": found["limit"]}
        if "sps" in seen:
            row |= {EMULATORS: seen["sps"] / rate, LEAST: seen["sps"] / min(rate, found["limit"])}
            row |= judged(name, row)
        yield row
        yield {"table": "The device alone", **head, **found}
        yield {"table": "Workers' time", **head, **times, "settings": " ".join(f"{k}={v}" for k, v in keywords.items())}


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
    given, passes = wired.learner, wired.learns.passes
    T = given["source"].queue.T if "source" in given else given["T"]
    B = given["source"].n * given["source"].queue.lanes if "source" in given else given["envs"].lanes
    lanes = wired.system.envs.lanes // wired.system.envs.groups
    taken = B // passes.minibatches if passes else B
    found: Row = {"lanes": lanes, "rows": T * taken, **alone(wired, lanes, T, taken, seconds)}
    found["limit"] = 1.0 / (1.0 / found["infer"] + (passes.epochs if passes else 1) / found["learn"])
    found["turn"] = updates_per_turn(wired.crew)
    if system == "impala":
        found["recorded"] = recorded(wired, 2 * seconds)
        found["of_alone"] = found["recorded"] / found["learn"]
    if wired.device.type == "cuda":
        torch.cuda.empty_cache()
    return found


# ------------------------------------------------------------------------------------------------------ time to score

GOAL = 18.0
PONG = (
    f"--env ALE/Pong-v5 --preset quick --precision auto --replicas 1 --until-return {GOAL:g} --no-tensorboard --quiet"
)
FULL = "--lanes 64 --groups 2 --learning-rate 1e-3 --budget 12000000"  # for 16 cores and a GPU
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
