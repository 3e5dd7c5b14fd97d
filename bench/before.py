"""Whether a change made anything slower: this checkout and another one, in turn.

    git worktree add /tmp/before COMMIT
    python bench/before.py /tmp/before --seconds 12 --rounds 5 --name hosts_before

Each round trains each system in one checkout and then in the other, the order changing from round to round, and counts
agent steps a second and a CPU-second of the last seconds of the run. `import polyplay` is timed the same way.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table

ENOUGH = 0.99  # of the other checkout's
SYSTEMS: dict[str, str] = {
    "impala": "impala --preset quick",
    "a2c": "a2c --preset quick",
    "apex": "apex --preset quick --start 500 --capacity 20_000",
    "gorila": "gorila --env toy:catch --network mlp --learners 2 --start 500",
}
IMPORTS = 5  # of each checkout in a round


def run(checkout: Path, *words: str) -> float:
    """Do it with that checkout's package; CPU seconds of all its processes."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, cwd=checkout, env=env, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def train(checkout: Path, system: str, seconds: float, begin: float = 8.0) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as where:
        words = [*SYSTEMS[system].split(), "--minutes", str(round((seconds + begin) / 60, 3)), "--report-every", "1"]
        cpu = run(checkout, "-m", "polyplay", "train", *words, "--no-tensorboard", "--quiet", "--run", f"{where}/run")
        rows = [json.loads(line) for line in Path(f"{where}/run/metrics.jsonl").read_text().splitlines()]
    late = [row for row in rows if row["updates"]][-int(seconds) :]
    rate = (late[-1]["steps"] - late[0]["steps"]) / (late[-1]["wall_seconds"] - late[0]["wall_seconds"])
    return {"steps/s": rate, "steps per CPU-second": rows[-1]["steps"] / cpu}


def imports(checkout: Path) -> dict[str, float]:
    """How many a second; the quickest counts, since nothing makes one quicker than it is."""
    took = []
    for _ in range(IMPORTS):
        began = time.perf_counter()
        run(checkout, "-c", "import polyplay")
        took.append(time.perf_counter() - began)
    return {"imports/s": 1 / min(took)}


def measured(what: str, checkouts: tuple[Path, Path], seconds: float, rounds: int) -> list[Row]:
    """A row for each figure."""
    found: list[list[dict[str, float]]] = []
    for i in range(rounds):
        order = checkouts if i % 2 else checkouts[::-1]
        each = {at: imports(at) if what == "import" else train(at, what, seconds) for at in order}
        found.append([each[at] for at in checkouts])
        print(what, *found[-1], flush=True)
    rows = []
    for name in found[0][0]:
        ratios = [now[name] / before[name] for now, before in found]
        row: Row = {"what": what, "figure": name}
        row |= {"before": statistics.median(b[name] for _, b in found), "now": statistics.median(n[name] for n, _ in found)}
        ratio = statistics.median(ratios)
        rows.append({**row, "ratio": round(ratio, 3), "each": ", ".join(f"{r:.3f}" for r in ratios)})
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("other", type=Path, help="a checkout")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run, once it learns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="before", help="of the result")
    asked = parser.parse_args()
    commit = subprocess.run(["git", "-C", str(asked.other), "rev-parse", "HEAD"], capture_output=True, text=True)
    what: dict[str, Any] = {**about(), "other": commit.stdout.strip()}
    what["command"] = what["command"].replace(str(asked.other), "OTHER")
    rows = []
    for name in ("import", *SYSTEMS):
        rows += measured(name, (ROOT, asked.other.resolve()), asked.seconds, asked.rounds)
    text = ["# Before and now", "", *lines_about(what), f"- before: {what['other']}", "", *table(rows), ""]
    text.append(f"Medians of {asked.rounds} rounds in turn, float32. At least {ENOUGH:g} is asked for.")
    publish(RESULTS / asked.name, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
