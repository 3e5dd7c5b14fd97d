"""Where the CPU time of a learner that acts goes, per agent step, with eager and with compiled updates.

    python bench/agent_step.py                                   # ppo on HalfCheetah-v5 and CartPole-v1
    python bench/agent_step.py --envs CartPole-v1 --seconds 20 --compile on

Each row is a real run, `polyplay train ppo` with the settings of compare.py's contest, whose worker is a thread of its
process (--on thread). What the library times by the clock is CPU time of that thread here. *thread*: all CPU time of
the learner's thread; *learn*, *act* and *env calls* as the run's counters have them; *rest*: what no counter shows.
Environments that other processes step are not in it. *an update* is *learn* by the number of updates. *alone*: before
every 500th update the thread makes that one 50 times in a row, with a learning rate of 0; this is in no other column.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common import QUIET, RESULTS, ROOT, Row, about, command_line, lines_about, publish, table, verdict
from contests import CONTESTS, words
from measure import measure, turn_of

from polyplay.acting import actor
from polyplay.core import worker
from polyplay.learning import learner
from polyplay.weights.update import clip_gradient

CONTEST = {"HalfCheetah-v5": "ppo-cheetah", "CartPole-v1": "ppo-cartpole"}
MEANING = """
µs of CPU time per agent step of `ppo` with 8 lanes, float32, one thread. *thread*: all of the learner's thread;
*learn*, *act*, *env calls*: as the run's counters have them, in CPU time; *rest*: what no counter shows. Environments
that other processes step are not in it. *An update*: *learn* by the number of updates. *Alone*: loss, gradient, norm
and optimizer of one and the same update 50 times in a row, before every 500th update of the same run, counted apart.
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
    learner.Learner.score_part = repeated(learner.Learner.score_part)  # type: ignore[method-assign]
    from polyplay.cli.main import main

    return main(argv)


EVERY, TIMES = 500, 50
ALONE_SO_FAR = {"repeats": 0, "repeated": 0.0}  # updates, seconds


def repeated(score: Any) -> Any:
    """Score a minibatch, and now and then make its update many times before."""

    def again(self: Any, *part: Any) -> Any:
        if (self.version + 1) % EVERY == 0:
            optimizer = self.spec.update.optim.make(self.run.vector.parameter)
            self.rate, began = lambda: 0.0, time.thread_time()
            for _ in range(TIMES):
                score(self, *part)
                if self.run.norm is None:  # else it took the step too
                    clip_gradient(self.run.vector.grad, self.update.clip)
                    optimizer.step()
            ALONE_SO_FAR["repeats"] += TIMES
            ALONE_SO_FAR["repeated"] += time.thread_time() - began
            del self.rate
        return score(self, *part)

    return again


def write(log: str, counters: Any, which: int) -> None:
    """A line now and then: the counters, and the thread's CPU seconds; without those of updates alone."""
    began = time.monotonic()
    with Path(log).open("a", buffering=1) as file:
        while True:
            row = {k: counters.get(k) for k in ("steps", "updates", *PARTS)}
            row |= {"wall_seconds": time.monotonic() - began, "thread": time.clock_gettime(which), **ALONE_SO_FAR}
            for name in ("thread", "learn"):
                row[name] -= row["repeated"]
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
    wall = new["wall_seconds"]
    each = {k: 1e6 * new[k] / new["steps"] for k in ("thread", *PARTS)}
    alone, within = 1e3 * new["repeated"] / new["repeats"], 1e3 * new["learn"] / new["updates"]
    return {
        "environment": env,
        "compile": how,
        "thread": each["thread"],
        **{name: each[k] for k, name in PARTS.items()},
        "rest": each["thread"] - sum(each[k] for k in PARTS),
        "an update, ms": within,
        "alone, ms": alone,
        "alone / in the run": alone / within,
        "steps/s": found["sps"] * wall / (wall - new["repeated"]),
        "others' cores": found["others_cores"],
    }


def main() -> None:
    if sys.argv[1:2] == ["--watched"]:
        raise SystemExit(watched(sys.argv[2], sys.argv[3:]))
    parser = command_line(__doc__)
    parser.add_argument("--envs", nargs="+", choices=CONTEST, default=list(CONTEST))
    parser.add_argument("--compile", nargs="+", choices=("off", "auto", "on"), default=["off", "on"])
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
