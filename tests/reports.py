"""What every report of a run has, in this order, and how tests read lines."""

from __future__ import annotations

import json
from pathlib import Path

KEYS = [
    "wall_seconds",
    "frames",
    "steps",
    "updates",
    "fps",
    "sps",
    "episodes",
    "episodic_return_mean",
    "episodic_length_mean",
    "lag_mean",
    "lag_max",
    "time_env",
    "time_infer",
    "time_learn",
    "time_replay",
    "time_wait",
    "queue_depth",
    "restarts",
    "memory_mb",
]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
