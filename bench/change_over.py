"""What compiling costs a run, and when it is over: a first run, whose code is in no cache, and a second one.

    python bench/change_over.py                                  # ppo on HalfCheetah-v5, as in compare.py's contest
    python bench/change_over.py --contest ppo-cartpole --seconds 60

Each row is a real run of that contest's settings with --compile auto: seconds from its first steps to the change-over,
and the update from which it is compiled; steps/s before a compiler works, beside it, and afterwards, each from the end
of one rollout's updates to the end of another's; the compiler's CPU seconds and largest memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table
from contests import CONTESTS, words
from measure import turn_of

from polyplay.core.files import read_lines

TITLE = "polyplay: compiler"
SAID = re.compile(r"updates are compiled from update ([\d,]+) on")


def compiler_of(run: psutil.Process) -> psutil.Process | None:
    for child in run.children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if TITLE in line or "polyplay.learning.packages" in line:
            return child
    return None


def tree_of(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds and MB of a process and what it started."""
    cpu = memory = 0.0
    try:
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            memory += one.memory_info().rss / 1e6
    except psutil.Error:
        pass
    return cpu, memory


def follow(train: list[str], log: Path, env: dict[str, str], seconds: float, turn: int) -> Row:
    """A run for so many seconds after its change-over. turn: updates of a rollout."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(train, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=env)
        watched, began, over, origin = psutil.Process(child.pid), time.time(), 0.0, 0.0
        compiling, cpu, most = [0.0, 0.0], 0.0, 0.0
        try:
            while not over or time.time() < over + seconds:
                time.sleep(0.25)
                if child.poll() is not None or time.time() > began + 600:
                    raise SystemExit("the run ended before it was compiled")
                if (compiler := compiler_of(watched)) is not None:
                    compiling = [compiling[0] or time.time(), time.time()]
                    now, memory = tree_of(compiler)
                    cpu, most = max(cpu, now), max(most, memory)
                if not origin and log.exists() and (rows := list(read_lines(log))):
                    origin = time.time() - rows[-1]["wall_seconds"]
                out.seek(0)
                found = SAID.search(out.read())
                over = over or (time.time() if found else 0.0)
        finally:
            child.terminate()
            child.wait()
    rows = list(read_lines(log))
    first = origin + next(row["wall_seconds"] for row in rows if row["steps"] > 0)

    def rate(begin: float, end: float) -> float | None:
        moved = [
            b
            for a, b in pairwise(rows)
            if b["updates"] // turn > a["updates"] // turn and begin <= origin + b["wall_seconds"] <= end
        ]
        if len(moved) < 2:
            return None
        return (moved[-1]["steps"] - moved[0]["steps"]) / (moved[-1]["wall_seconds"] - moved[0]["wall_seconds"])

    return {
        "change-over, s": over - first,
        "compiled from update": found[1] if found else "",
        "steps/s before": rate(first, compiling[0]) if compiling[0] else None,
        "beside the compiler": rate(compiling[0] + 1.0, compiling[1]) if compiling[0] else None,
        "afterwards": rate(over + 1.0, over + seconds),
        "compiler, CPU s": cpu or None,
        "compiler, MB": most or None,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--contest", choices=[name for name in CONTESTS if name.startswith("ppo-")], default="ppo-cheetah"
    )
    parser.add_argument("--seconds", type=float, default=25.0, help="after the change-over")
    parser.add_argument("--out", type=Path, default=RESULTS / "change_over")
    asked = parser.parse_args()
    who: Any = next(c for c in CONTESTS[asked.contest].contenders if c.ours)
    what, rows = about(), list[Row]()
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": f"{place}/cache"}
        for k, name in enumerate(("first run", "second run")):
            folder = Path(place) / str(k)
            folder.mkdir()
            train, log = words(who, who.settings[0], folder, 0, folder, 1.0)
            rows.append({"run": name, **follow(train, log, env, asked.seconds, turn_of(who, who.settings[0]))})
            print(rows[-1], flush=True)
    text = [
        "# What compiling costs a run",
        "",
        *lines_about(what),
        "",
        *table(rows),
        "",
        f"Contest: `{asked.contest}`.",
    ]
    publish(asked.out, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
