"""What packing a replay's frames saves and costs: dqn's own memory, filled by real games.

    python bench/packing.py                                   # 3 games, 3 ways: 8 min
    python bench/packing.py --games Pong --steps 3000         # to see it work

Each run is `polyplay train dqn --compress HOW` for so many agent steps, with updates of 32 every 4 steps from the
second half on. Bytes are of the whole memory, by transition; time is that of adding and drawing, by update.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table

WAYS = ("none", "lz4", "zlib")


def one(game: str, how: str, steps: int) -> Row:
    """What the last whole report of a run says, or why there is none."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        own = f"--env ALE/{game}-v5 --screen baselines --lanes 8 --unroll 1 --capacity {steps} --start {steps // 2}"
        words = f"dqn {own} --steps {steps} --compress {how} --report-every 1 --cores 1 --no-tensorboard --run {run}"
        command = [sys.executable, "-m", "polyplay", "train", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            return {"game": game, "packed": how, "failed": done.stderr.strip().splitlines()[-1][:120]}
        told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [row for row in told if row.get("replay_bytes") and row["updates"]]
    begin, end = told[len(told) // 2], told[-1]
    updates = end["updates"] - begin["updates"]
    seconds = sum(row["time_replay"] for row in told[len(told) // 2 + 1 :]) / max(1, len(told) - len(told) // 2 - 1)
    spent = seconds * (end["wall_seconds"] - begin["wall_seconds"]) / max(1, updates)
    return {
        "game": game,
        "packed": how,
        "transitions": int(end["replay_size"]),
        "bytes each": end["replay_bytes"] / end["replay_size"],
        "replay, ms an update": 1000 * spent,
        "steps/s": (end["steps"] - begin["steps"]) / (end["wall_seconds"] - begin["wall_seconds"]),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--games", nargs="+", default=["Pong", "Breakout", "Seaquest"])
    parser.add_argument("--steps", type=int, default=10_000, help="agent steps of each run")
    asked = parser.parse_args()
    rows = []
    for game in asked.games:
        for how in WAYS:
            rows.append(one(game, how, asked.steps))
            print(rows[-1], flush=True)
    what: Row = {**about(), "rows": rows}
    lines = ["# Packed frames", "", *lines_about(what), "", *table(rows), ""]
    publish(RESULTS / "packing", what, lines)


if __name__ == "__main__":
    main()
