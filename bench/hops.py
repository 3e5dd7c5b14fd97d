"""How many functions of ours lie between `env.step` and the loss: `python bench/hops.py [impala dqn …]`.

A short run in one thread (`--serial`, toy:catch) is watched with `sys.setprofile` after its first updates. Counted is
every function of ours that runs on the way of a row: from the pool that hands it over, through the acting loop, the
queue or the replay and the learner, to the loss. Each is counted once, and each file. Not counted: helpers on any data
(`tree`, `as_tensors`, copies to a device, semaphores, lambdas, compiled kernels), the game, the network, the loss and
what comes after it, and what runs beside the row: actions on their way back, exploration, counters, weights, logs,
checkpoints, the replay's index and its pacing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "impala": {"lanes": 4, "unroll": 5, "batch": 8, "actors": 2, "steps": 1_200},
    "dqn": {"lanes": 4, "unroll": 1, "batch": 16, "capacity": 2_000, "start": 100, "steps": 600},
}
COMMON: dict[str, Any] = {"env": "toy:catch", "network": "mlp", "serial": True, "tensorboard": False, "seed": 1}
WINDOW = range(8, 25)  # updates that are watched
ROOMS = ("acting/", "buffers/", "learning/", "games/toys", "envs/base_pool", "core/shared_memory")
# the same places before the package had rooms
ROOMS += ("acting", "rolling", "stepping", "stream", "feeding", "learning", "rehearsing", "replay/")
ROOMS += ("envs/toy", "envs/turns", "shared")
BESIDE = {
    "Catch",
    "MemoryGame",
    "Toy",
    "game_rng",
    "draws",
    "ToyPool._draw",
    "ToyPool._begin",
    "ToyPool._step",
    "ToyPool._write",
    "learning/losses/",
    "Learner._count",
    "Learner._heed",
    "Learner._sums",
    "Learner.rate",
    "Learner.judged",
    "Learner.priorities",
    "Learner._report",
    "Learner.left",
    "Learner.remaining",
    "ReplayBuffer.update_priorities",
    "Memory.feedback",
    "as_tensors",
    "Collator.done",
    "Learner.apply_gradient",
    "Learner._copies_due",
    "Joiner.done",
    "torches",
    "copy_kernels",
    "copying",
    "row_kernels",
    "ToyPool.send",
    "Turns.count",
    "Turns.sent",
    "Turns.back",
    "ReadyLanes.count",
    "ReadyLanes.sent",
    "ReadyLanes.back",
    "Actor._send",
    "Actor._noise",
    "exploration",
    "_hold",
    "_hold_weights",
    "_pull",
    "pull",
    "publish",
    "EpisodeCounter",
    "Games",
    "tell",
    "count_depth",
    "ToyPool._play",
    "report",
    "_tell_faults",
    "report_faults",
    "report_replay",
    "actor_checkpoint",
    "delivery_log",
    "asked",
    "depth",
    "committed",
    "folder",
    "answer",
    "answer_save",
    "made",
    "ItemIndex",
    "Ledger",
    "UniformSampler",
    "Equal",
    "_forget",
    "_judge",
    "_prioritize",
    "rate_limiter",
    "pacing",
    "due",
    "ready",
    "sampled",
    "size",
    "credit",
    "room",
    "SharedQueue.check",
    "Stream.check",
    "importance_exponent",
    "beta",
    "patience",
    "Knobs",
    "Hyperparameters",
    "Control",
    "RunControl",
    "Semaphore",
    "Semaphores",
    "Block",
    "SharedBlock",
    "Layout",
    "replay/rows",
}
SKIP = ("<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>")


def beside(file: str, name: str) -> bool:
    """Whether a function is on the list of what is not counted: by its name, its class, its file or its folder."""
    parts = {name, name.split(".")[-1], name.split(".")[0], file, file.split("/")[-1] if "/" in file else ""}
    return bool(parts & BESIDE) or file.startswith("learning/losses/")


class Watch:
    """Functions of the package that ran while a row was on its way, in the order in which they did."""

    def __init__(self, package: Path):
        self.package, self.updates, self.found = str(package) + os.sep, 0, dict[tuple[str, str], None]()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.package):
            return
        file = code.co_filename.removeprefix(self.package).removesuffix(".py")
        self.updates += code.co_qualname == "Learner._count"
        if self.updates in WINDOW and file.startswith(ROOMS) and not any(s in code.co_qualname for s in SKIP):
            name = code.co_qualname.replace(".<locals>", "")
            if not beside(file, name):
                self.found[file, name] = None


def measure(system: str) -> list[tuple[str, str]]:
    import polyplay

    watch = Watch(Path(polyplay.__file__).parent)
    with tempfile.TemporaryDirectory() as directory:
        sys.setprofile(watch)
        polyplay.train(system, run=f"{directory}/run", **{**COMMON, **SETTINGS[system]})
        sys.setprofile(None)
    return list(watch.found)


def main() -> int:
    parser = argparse.ArgumentParser(description="Functions and files between env.step and the loss.")
    parser.add_argument("systems", nargs="*", default=list(SETTINGS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for system in asked.systems:
        rows = measure(system)
        if asked.json:
            print(json.dumps({system: [":".join(f) for f in rows]}))
            continue
        print(f"{system}: {len(rows)} functions in {len({file for file, _ in rows})} files")
        for file, name in rows:
            print(f"  {file}:{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
