"""What every report of a run has, in this order, and how tests read lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

KEYS = ["wall_seconds", "frames", "steps", "updates", "fps", "sps", "episodes", "episodic_return_mean"]
KEYS += ["episodic_return_mean_best", "episodic_length_mean", "lag_mean", "lag_max"]
KEYS += ["time_env", "time_infer", "time_learn", "time_replay", "time_wait", "queue_depth", "restarts", "memory_mb"]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(text: str) -> str:
    """What a terminal shows, without its escape codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
