"""How many functions of ours a system runs: `python bench/hops.py [--functions] [a2c dqn impala …]`.

`--write before` (or another word) puts the numbers, and the package's size by code_size.py, into results/hops.

**In four updates.** A run on CartPole in one thread (`--serial`) is watched by `sys.setprofile`, from the moment in
which the learner has counted 60 updates until it has counted 64, with the acting between them (of dqn, one step for
each update). Every Python function or generator of `polyplay` that a worker calls or resumes meanwhile is counted
once, and so is each file of them. Lambdas and comprehensions belong to the function around them; compiled kernels are
not seen. Not a worker's is what the main process does between their turns (`runs`, `workers`, and what of `core` only
they call): it looks by the clock, and in other runs in another process.

**Hops.** In the same updates: the functions that a row goes through from the pool that hands it over to the loss.
These are functions of `envs`, `acting`, `buffers` and `learning` that take or give rows (a dict with `obs`), or the
number of a slot, by an argument, a result or something yielded. Left out are the names in BESIDE.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from code_size import by_room
from common import RESULTS, about, publish, table

COMMON: dict[str, Any] = {
    "env": "CartPole-v1",
    "network": "mlp",
    "serial": True,
    "tensorboard": False,
    "seed": 1,
    "report_every": 60.0,
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "a2c": {"replicas": 1, "lanes": 4, "unroll": 5, "steps": 1_500},
    "dqn": {
        "replicas": 1,
        "lanes": 4,
        "capacity": 2_000,
        "learning_starts": 100,
        "batch": 16,
        "ratio": 4.0,
        "steps": 400,
    },
    "impala": {"actors": 2, "lanes": 4, "unroll": 5, "batch": 8, "steps": 3_000},
}
WARM, LAST = 60, 64  # updates that the learner has made when watching begins, and when it ends
MAIN = ("runs/", "workers/")
SHARED = (*MAIN, "core/", "api")  # what calls these alone is the main process
WAY = ("envs/", "acting/", "buffers/", "learning/")
SLOT = ("slot", "slots")  # arguments that are numbers of slots
BESIDE = (
    "EpisodeCounter.count",  # looks
    "log_writer.log",
    "Runner.with_noise",  # a loss that this system has not
    "RolloutQueue.give_back",  # the slot's way back
    "Learner.apply_gradient",  # behind the loss
)
LEARNT = ("learning/losses", "learning/value_losses")  # the loss: the way's end
SHOWN = ("files", "code", "classes", "protocols", "asked", "cross")
DEFINED = ["Counted as in `bench/hops.py` and `bench/code_size.py`: what each column is stands there."]


class Watch:
    """A profile function that knows how many updates were made, by the counters that the run's workers share."""

    def __init__(self, package: Path):
        self.package, self.made = f"{package}/", 0.0
        self.counters: Any = None
        self.found, self.hops = dict[tuple[str, str], None](), dict[tuple[str, str], None]()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if self.made >= LAST:
            sys.setprofile(None)
        if event not in ("call", "return") or not code.co_filename.startswith(self.package):
            return
        if code.co_qualname == "Counters.__init__":
            self.counters = frame.f_locals["self"]
        elif self.counters is not None and "values" in vars(self.counters):
            self.made = self.counters.values[:, self.counters.columns["updates"]].sum()
        if not WARM <= self.made < LAST or code.co_name.startswith("<") or not self.by_worker(frame):
            return
        file = self.file(frame)
        name = file, code.co_qualname.replace(".<locals>", "")
        if event == "call":
            self.found[name] = None
        if file.startswith(WAY) and file not in LEARNT and name[1] not in BESIDE and name not in self.hops:
            values = list(frame.f_locals.items()) if event == "call" else [("", result)]
            if any(carries(value) or (key in SLOT and value is not None) for key, value in values):
                self.hops[name] = None

    def file(self, frame: FrameType) -> str:
        return frame.f_code.co_filename.removeprefix(self.package).removesuffix(".py")

    def by_worker(self, frame: FrameType) -> bool:
        """Whether a worker calls a function of the package, not the main process."""
        at: FrameType | None = frame
        if self.file(frame).startswith(MAIN):
            return False
        while at is not None and (
            not at.f_code.co_filename.startswith(self.package) or self.file(at).startswith(SHARED)
        ):
            at = at.f_back
        return at is not None


def carries(value: Any) -> bool:
    """Whether a value is rows, or a few things that are."""
    if isinstance(value, list | tuple):
        return any(carries(x) for x in value[:4])
    return isinstance(value, dict) and "obs" in value


def measure(system: str) -> Watch:
    import polyplay

    watch = Watch(Path(polyplay.__file__).parent)
    with tempfile.TemporaryDirectory() as directory:
        sys.setprofile(watch)
        polyplay.train(system, run=f"{directory}/run", **COMMON | SYSTEMS[system])
        sys.setprofile(None)
    assert watch.made >= LAST, f"{system}: {watch.made:g} updates were made"
    return watch


def write(word: str, rows: list[dict[str, Any]]) -> None:
    """Beside what earlier commits had, under other words."""
    import polyplay

    file, size = RESULTS / "hops", by_room(Path(polyplay.__file__).parent).values()
    told = json.loads(file.with_suffix(".json").read_text()) if file.with_suffix(".json").exists() else {}
    told[word] = {"about": about(), "rows": rows, "size": sum(size, Counter())}
    text = ["# Functions that a system runs, and the size of the package", ""]
    text += table([{"commit": word, **row} for word, one in told.items() for row in one["rows"]])
    text += ["", *table([{"commit": word, **{k: one["size"][k] for k in SHOWN}} for word, one in told.items()]), ""]
    text += [f"- {word}: {one['about']['commit']}, {one['about']['started']}" for word, one in told.items()]
    publish(file, told, [*text, "", *DEFINED])


def main() -> int:
    parser = argparse.ArgumentParser(description="Functions and files that run in four updates, and on a row's way.")
    parser.add_argument("systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--functions", action="store_true", help="name them")
    parser.add_argument("--write", metavar="WORD", help="put the numbers into results/hops under this word")
    asked = parser.parse_args()
    rows = []
    for system in asked.systems:
        watch = measure(system)
        files = {file for file, _ in watch.found}
        rows.append({"system": system, "functions": len(watch.found), "files": len(files), "hops": len(watch.hops)})
        if asked.functions:
            lines = [f"  {'hop' * (name in watch.hops):<4} {':'.join(name)}" for name in watch.found]
            print("\n".join([system, *lines]))
    print("\n".join(table(rows)))
    if asked.write:
        write(asked.write, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
