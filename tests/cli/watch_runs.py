"""Run directories as a run writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def report(steps: int, **more: Any) -> dict[str, Any]:
    times = {"time_env": 0.5, "time_infer": 0.2, "time_learn": 0.1, "time_replay": 0.0, "time_wait": 0.2}
    numbers = {"wall_seconds": steps / 10, "frames": steps, "steps": steps, "updates": steps // 5, "sps": 10.0}
    return {**numbers, **times, "cpu": 0.9, "episodic_return_mean": steps / 100, **more}


def write_lines(path: Path, rows: list[dict[str, Any]], how: str = "w") -> None:
    with path.open(how) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def make_run(root: Path, name: str = "run", rows: int = 3) -> Path:
    run = root / name
    run.mkdir()
    config = {"env": "toy:catch", "actors": 2, "lanes": 8}
    contents = {"schema": 1, "system": "impala", "config": config, "sources": {"actors": "command"}}
    (run / "config.json").write_text(json.dumps(contents))
    if rows:
        write_lines(run / "metrics.jsonl", [report(100 * (i + 1)) for i in range(rows)])
    return run
