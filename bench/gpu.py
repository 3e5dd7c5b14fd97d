"""Every on-policy system on a machine with a CUDA GPU, against what its emulators and the GPU allow: < 8 minutes.

    python bench/gpu.py                      # the whole of it, into results/gpu.{json,md}
    python bench/gpu.py --device cpu --short # the same path on a CPU: a check, no result

First the emulators alone: as many processes as cores step Pong at random. Then for each system the GPU alone, acting
and learning with data that lies there, for impala also the library's learner, fed with rollouts that are always there;
and its own run, in a process of its own, watched for some seconds once it is warm. Per agent step, with I and L the
GPU's rates and k passes over the data, its limit is 1/(1/I + k/L).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table
from gpu_parts import Wired, alone, recorded, watched_memory

from polyplay.cli.bench.crowd import MeasureProcesses, MeasureRequest
from polyplay.cli.bench.settings import updates_per_turn
from polyplay.cli.bench.watched_run import watched
from polyplay.common.errors import EnvFailure, UserError, WorkerLost
from polyplay.common.machine import cores

BASE: Row = {"trace": False, "tensorboard": False, "checkpoint_every": 1e9, "steps": 1_000_000_000, "precision": "auto"}
ROOM = 40.0  # seconds that a run takes with its start, at most
TARGETS = {
    "impala": 0.85,
    "appo": 0.85,
    "a2c": 0.70,
    "ga3c": 0.60,
    "ppo": 0.85,
    "deep": 0.85,
}  # of E; the last two: of min


def contests(n: int, small: bool) -> list[tuple[str, str, str, Row]]:
    """(name, system, network, keywords) for n cores, what matters most first."""
    lanes = 4 if small else 128
    act: Row = {"actors": max(2, n // 2), "lanes": lanes, "unroll": 20, "batch": 2 * lanes, "actors_on": "device"}
    a2c: Row = {"lanes": 32 * n if not small else 8, "groups": 2, "unroll": 5, "replicas": 1}
    ppo: Row = {"lanes": 16 * n if not small else 8, "groups": 2, "unroll": 128 if not small else 8, "replicas": 1}
    ppo |= {"epochs": 4, "minibatches": 4}
    ga3c: Row = {"agents": min(8 * n, 128), "predictors": 2, "trainers": 2, "schedule": "off", "min_batch": 160}
    ga3c |= {"queue": 320}
    found = [
        ("impala", "impala", "nature", act),
        ("appo", "appo", "nature", {**act, "epochs": 1, "minibatches": 2}),
        ("a2c", "a2c", "nature", a2c),
        ("ppo", "ppo", "nature", ppo),
        ("ga3c", "ga3c", "nature", ga3c),
        ("deep", "impala", "impala", act),
        *((f"ga3c_large{k}", "ga3c", f"ga3c_large{k}", ga3c) for k in (4, 3, 2, 1)),
        ("a2c, 2 replicas", "a2c", "nature", {**a2c, "replicas": 2}),
    ]
    return [x for x in found if x[0] in ("impala", "a2c")] if small else found


class Bench:
    def __init__(self, asked: argparse.Namespace):
        self.asked, self.begun, self.cores = asked, time.monotonic(), cores()
        self.seconds = 1.0 if asked.short else asked.seconds
        self.fixed = {**BASE, "env": "ALE/Pong-v5", "device": asked.device}
        self.gpu = asked.device == "cuda"

    def say(self, text: str) -> None:
        print(f"gpu: {time.monotonic() - self.begun:4.0f} s: {text}", file=sys.stderr, flush=True)

    def emulators(self) -> float:
        """Agent steps/s of all cores together, random actions, pictures prepared."""
        self.say("the emulators alone")
        order = MeasureRequest("a2c", {**self.fixed, "device": "cpu", "network": "a3c"}, self.seconds, lanes=16)
        with MeasureProcesses(self.cores) as crowd:
            return self.cores * 1e6 / crowd.measure(order)["env"]

    def limits(self, name: str, system: str, network: str, keywords: Row) -> Row:
        """Samples/s of the device alone with this system's loss and batch sizes."""
        wired = Wired(system, {**self.fixed, "network": network, **keywords})
        kw, seconds = wired.learner, self.seconds / 3
        T = kw["source"].queue.T if "source" in kw else kw["T"]
        B = kw["source"].n * kw["source"].queue.lanes if "source" in kw else kw["envs"].lanes
        passes = wired.spec.passes
        lanes = {"ga3c": keywords.get("agents", 0) // 2}.get(
            system
        ) or wired.system.envs.lanes // wired.system.envs.groups
        taken = B // passes.minibatches if passes else B
        found: Row = {"lanes": lanes, "rows": T * taken, **alone(wired, lanes, T, taken, seconds)}
        found["turn"] = updates_per_turn(wired.crew)
        found["limit"] = 1.0 / (1.0 / found["infer"] + (passes.epochs if passes else 1) / found["learn"])
        if system == "impala":
            found["recorded"] = recorded(wired, 2 * seconds)
            found["of_alone"] = found["recorded"] / found["learn"]
        return found

    def run(self, name: str, system: str, network: str, keywords: Row, emulators: float) -> Row:
        row: Row = {"name": name, "network": network, "settings": _words(keywords)}
        if time.monotonic() - self.begun > self.asked.minutes * 60.0 - ROOM:
            return {**row, "note": "left out: no time"}
        try:
            self.say(f"{name}: the device alone")
            row |= self.limits(name, system, network, keywords)
            if self.gpu:
                torch.cuda.empty_cache()
            self.say(f"{name}: a run of it")
            with watched_memory(self.gpu) as memory:
                given = {**self.fixed, "network": network, **keywords}
                seen = watched(system, given, self.seconds, row["turn"])
        except (EnvFailure, UserError, WorkerLost, RuntimeError) as e:
            return {**row, "note": str(e).strip().splitlines()[-1]}
        row |= {
            "sps": seen["sps"],
            "cores": seen["own_cores"],
            **memory,
            **{f"t_{k}": v for k, v in seen["time"].items()},
        }
        row["of_emulators"] = row["sps"] / emulators
        row["of_least"] = row["sps"] / min(emulators, row["limit"])
        return row


def _words(keywords: Row) -> str:
    return " ".join(f"{k}={v}" for k, v in keywords.items())


def verdicts(rows: list[Row]) -> list[str]:
    said = []
    for row in rows:
        least = TARGETS.get(row["name"])
        if least is not None:
            by = "of_least" if row["name"] in ("ppo", "deep") else "of_emulators"
            of = "min(emulators, GPU)" if by == "of_least" else "the emulators"
            value = row.get(by)
            met = "not measured" if value is None else f"**{value:.0%}**, {'met' if value >= least else 'NOT met'}"
            said.append(f"- {row['name']} ({row['network']}): {met}, target ≥ {least:.0%} of {of}")
    return said


def text(data: Row) -> list[str]:
    keep = ("name", "network", "sps", "of_emulators", "limit", "of_least", "gpu_mb", "cores", "note")
    times = ("name", "t_env", "t_infer", "t_learn", "t_wait", "settings")
    alone_ = ("name", "network", "lanes", "infer", "rows", "learn", "limit", "recorded", "of_alone")
    return [
        "# On a GPU",
        "",
        *lines_about(data["about"]),
        f"- device: {data['device']}; took {data['took_seconds']:.0f} s",
        f"- emulators alone, random actions: {data['emulators']:,.0f} agent steps/s on {data['cores']} cores",
        "",
        "## Targets",
        "",
        *verdicts(data["systems"]),
        "",
        "## Systems",
        "",
        "sps: agent steps/s; limit: the device's, 1/(1/infer + passes/learn); gpu_mb: by how much its memory grew.",
        "",
        *table([{k: r.get(k) for k in keep} for r in data["systems"]]),
        "",
        "Where their workers' wall time went, as a fraction:",
        "",
        *table([{k: r.get(k) for k in times} for r in data["systems"]]),
        "",
        "## The device alone",
        "",
        "Samples/s: infer for so many lanes at once, learn from so many rows at once, one pass, data lying there;",
        "recorded: the library's learner fed with rollouts in memory, of_alone: its share of learn.",
        "",
        *table([{k: r.get(k) for k in alone_} for r in data["systems"] if "learn" in r]),
    ]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to see that it works")
    parser.add_argument("--short", action="store_true", help="two small systems, a second each")
    parser.add_argument("--seconds", type=float, default=6.0, help="that each system's run is watched")
    parser.add_argument("--minutes", type=float, default=7.5, help="after which nothing new is begun")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="without suffix")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        print(
            f"gpu: torch {torch.__version__} finds no CUDA GPU here; --device cpu --short is a check", file=sys.stderr
        )
        return 2
    bench = Bench(asked)
    told: Any = {"about": about(), "cores": bench.cores, "device": asked.device}
    if bench.gpu:
        told["device"] = f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    told["emulators"] = bench.emulators()
    rows = told["systems"] = []
    for contest in contests(bench.cores, asked.short):
        rows.append(bench.run(*contest, told["emulators"]))
        told["took_seconds"] = time.monotonic() - bench.begun
        publish(asked.out, told, text(told))  # what there is, should time run out
    return 0


if __name__ == "__main__":
    sys.exit(main())
