"""Where the CPU time of a learner that acts goes, per agent step, with eager and with compiled updates.

    python bench/agent_step.py                                   # ppo on HalfCheetah-v5 and CartPole-v1
    python bench/agent_step.py --envs CartPole-v1 --seconds 20 --compile auto

Each row is a real run, `polyplay train ppo` with the settings of compare.py's contest, whose worker is a thread of its
process (--on thread). What the library times by the clock is CPU time of that thread here. *thread*: all CPU time of
the learner's thread; *learn*, *act* and *env calls* as the run's counters have them; *rest*: what no counter shows.
Environments that other processes step are not in it. *an update* is *learn* by the number of updates. *alone*: one and
the same update again and again in the learner's thread (small_limits.py).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common import QUIET, RESULTS, ROOT, Row, about, command_line, lines_about, publish, table, verdict
from contests import CONTESTS, flags, words
from measure import measure, turn_of

from polyplay.acting import actor
from polyplay.core import worker
from polyplay.learning import learner

CONTEST = {"HalfCheetah-v5": "ppo-cheetah", "CartPole-v1": "ppo-cartpole"}
MEANING = """
µs of CPU time per agent step of `ppo` with 8 lanes, float32, one thread. *thread*: all of the learner's thread;
*learn*, *act*, *env calls*: as the run's counters have them, in CPU time; *rest*: what no counter shows. Environments
that other processes step are not in it. *An update*: *learn* by the number of updates. *Alone*: loss,
gradient, norm and optimizer of one and the same update, again and again.
"""
ALONE = 0.8  # of the update's own speed
PARTS = {"learn": "learn", "infer": "act", "env": "env calls"}


def watched(log: str, argv: list[str]) -> int:
    """Run a command line of polyplay's in this process, and write what its learner's thread used to `log`."""
    clock: Any = SimpleNamespace(**vars(time))
    clock.perf_counter = time.thread_time
    worker.time = actor.time = learner.time = clock  # type: ignore[attr-defined]
    begin = learner.Learner.__init__

    def begin_watched(self: Any, ctx: Any, *more: Any) -> None:
        begin(self, ctx, *more)
        which = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=write, args=(log, ctx.counters, which), daemon=True).start()

    learner.Learner.__init__ = begin_watched  # type: ignore[method-assign]
    from polyplay.cli.main import main

    return main(argv)


def write(log: str, counters: Any, which: int) -> None:
    """A line now and then: the counters, and the thread's CPU seconds."""
    began = time.monotonic()
    with Path(log).open("a", buffering=1) as file:
        while True:
            row = {k: counters.get(k) for k in ("steps", "updates", *PARTS)}
            row |= {"wall_seconds": time.monotonic() - began, "thread": time.clock_gettime(which)}
            file.write(json.dumps(row) + "\n")
            time.sleep(0.1)


def row_of(env: str, how: str, asked: Any) -> Row:
    """µs of CPU per agent step."""
    who = next(c for c in CONTESTS[CONTEST[env]].contenders if c.ours)
    setting, fixed = who.settings[0], who.fixed.replace("compile=auto", f"compile={how}")
    with tempfile.TemporaryDirectory() as place:
        train, _ = words(replace(who, fixed=fixed), setting, Path(place), 0, Path(place), 1.0)
        log = Path(place) / "log.jsonl"
        line = [sys.executable, str(Path(__file__).resolve()), "--watched", str(log), *train[3:], "--on", "thread"]
        found = measure(line, log, asked.warm, asked.seconds, ROOT, True, turn_of(who, setting))
    first, last = found["lines"][0], found["lines"][-1]
    new = {k: last[k] - first[k] for k in first}
    each = {k: 1e6 * new[k] / new["steps"] for k in ("thread", *PARTS)}
    alone, within = update_alone(fixed, setting, asked), 1e3 * new["learn"] / new["updates"]
    return {
        "environment": env,
        "compile": how,
        "thread": each["thread"],
        **{name: each[k] for k, name in PARTS.items()},
        "rest": each["thread"] - sum(each[k] for k in PARTS),
        "an update, ms": within,
        "alone, ms": alone,
        "alone / in the run": alone / within,
        "steps/s": found["sps"],
        "others' cores": found["others_cores"],
    }


def update_alone(fixed: str, setting: str, asked: Any) -> float:
    """ms of CPU: the least of many short windows."""
    with tempfile.TemporaryDirectory() as place:
        log, script = Path(place) / "log.jsonl", Path(__file__).resolve().parent / "small_limits.py"
        words = ["--part", "updates", *flags(fixed.replace("compile=auto", "compile=on")), *flags(setting)]
        line = [sys.executable, str(script), *words, "--log", str(log)]
        lines = measure(line, log, 0.5, asked.seconds / 2, ROOT, True)["lines"]
    return min(1e3 * (b["thread"] - a["thread"]) / (b["updates"] - a["updates"]) for a, b in pairwise(lines))


def main() -> None:
    if sys.argv[1:2] == ["--watched"]:
        raise SystemExit(watched(sys.argv[2], sys.argv[3:]))
    parser = command_line(__doc__)
    parser.add_argument("--envs", nargs="+", choices=CONTEST, default=list(CONTEST))
    parser.add_argument("--compile", nargs="+", choices=("off", "auto", "on"), default=["off", "auto"])
    parser.add_argument("--warm", type=float, default=5.0, help="seconds after the first steps")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a window")
    parser.add_argument("--out", type=Path, default=RESULTS / "agent_step")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    what, rows = about(), list[Row]()
    for env in asked.envs:
        for how in asked.compile:
            rows.append(row_of(env, how, asked))
            print(rows[-1], flush=True)
    busy = max(row["others' cores"] for row in rows)
    text = ["# CPU time of a learner, per agent step", "", *lines_about(what), "", *table(rows), ""]
    text += [MEANING]
    text += [f"Everything else on the machine used up to {busy:.2f} cores{' (BUSY)' if busy > QUIET else ''}."]
    for row in rows:
        if row["environment"] == "HalfCheetah-v5" and row["compile"] != "off":
            text.append(verdict("an update alone / in the run", row["alone / in the run"], least=ALONE))
    publish(asked.out, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
