"""What a population costs beside its training: a session of a member, eight members on two cores, memory of 32.

    python bench/population_speed.py

1. Sessions: a toy run in 20 sessions and in one, by one trainer; what the difference is for each.
2. Eight members of a2c `quick` on Breakout, agent steps per core-second against one run alone that has all cores.
3. The most memory (PSS, of all processes together) that 32 members of a toy run take.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from common import RESULTS, about, command_line, lines_about, publish, table

from polyplay.core.files import read_object
from polyplay.core.machine import cores

TOY = "--env CartPole-v1 --lanes 8 --network mlp --preset paper --reward none --no-tensorboard"
GAME = "--env ALE/Breakout-v5 --preset quick --no-tensorboard"
VARY = "--vary learning_rate=log:1e-4:1e-3"


def run(words: str, directory: Path) -> tuple[dict[str, Any], float]:
    """summary.json of a command, and the most memory in MB that it and all below it took."""
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "polyplay", "train", *words.split(), "--quiet", "--run", str(directory)]
    most = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, pss(process.pid))
            time.sleep(1.0)
    return read_object(directory / "summary.json"), most


def pss(pid: int) -> float:
    """MB of a process and all below it; what several share is counted once."""
    total = 0.0
    try:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                total += float(line.split()[1]) / 1024 if line.startswith("Pss:") else 0.0
    except (psutil.Error, OSError, ProcessLookupError):
        pass
    return total


def sessions(directory: Path, n: int = 20, steps: int = 200_000) -> dict[str, Any]:
    """The same run in n sessions and in one."""
    words = f"pbt --over a2c {TOY} --replicas 1 --exploit none --population 1 --at-once 1 --steps {steps}"
    one, _ = run(f"{words} --every {steps}", directory)
    many, _ = run(f"{words} --every {steps // n}", directory)
    seconds = (many["wall_seconds"] - one["wall_seconds"]) / (n - 1)
    return {
        "sessions": n,
        "agent steps": steps,
        "one session, s": one["wall_seconds"],
        f"{n}, s": many["wall_seconds"],
    } | {"seconds each": round(seconds, 2)}


def eight(directory: Path, steps: int, every: int) -> list[dict[str, Any]]:
    """Agent steps per core-second: one run, and a population."""
    alone, _ = run(f"a2c {GAME} --steps {4 * steps}", directory)
    together, memory = run(f"pbt --over a2c {GAME} {VARY} --population 8 --every {every} --steps {steps}", directory)
    rows = [
        {"what": "one run", "agent steps": alone["steps"], "seconds": alone["wall_seconds"]},
        {"what": "8 members", "agent steps": together["steps"], "seconds": together["wall_seconds"]},
    ]
    for row in rows:
        row["agent steps per core-second"] = round(row["agent steps"] / row["seconds"] / cores(), 1)
    rows[1]["of one run"] = round(rows[1]["agent steps per core-second"] / rows[0]["agent steps per core-second"], 3)
    rows[1]["PSS, MB"] = round(memory)
    return rows


def many(directory: Path) -> dict[str, Any]:
    """32 members of a toy run."""
    words = f"pbt --over a2c {TOY} {VARY} --population 32 --every 10k --steps 20k"
    summary, memory = run(words, directory)
    return {
        "members": 32,
        "agent steps": summary["steps"],
        "seconds": summary["wall_seconds"],
        "PSS, MB": round(memory),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="of each of the eight members")
    parser.add_argument("--every", type=int, default=50_000)
    asked = parser.parse_args()
    directory = Path("runs/population_speed")
    os.environ.setdefault("COLUMNS", "120")
    one, rows, crowd = sessions(directory), eight(directory, asked.steps, asked.every), many(directory)
    what = about()
    text = ["# What a population costs", "", *lines_about(what), "", "Precision: float32.", ""]
    text += ["A session of a member, beyond its training (limit 1.5 s):", "", *table([one]), ""]
    text += [
        f"a2c `quick` on Breakout, a decision every {asked.every:,} agent steps (limit 0.95):",
        "",
        *table(rows),
        "",
    ]
    text += ["Many members of a toy run (limit 2,048 MB):", "", *table([crowd])]
    publish(RESULTS / "population_speed", {**what, "sessions": one, "eight": rows, "many": crowd}, text)


if __name__ == "__main__":
    main()
