"""Draws docs/pictures/curve_NAME.png, a learning curve for each system's page, by `polyplay plot` from committed runs.

    python docs/curves.py [NAME …]

docs/pictures/made.json keeps the digest of each run that a curve was drawn from; a test compares them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from polyplay.cli import main  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MADE = PICTURES / "made.json"
PONG, REPLAY, SMALL = "bench/results/pong", "bench/results/pong_replay", "bench/results/first_runs"
RUNS = {
    **{name: f"{PONG}/{name}-s*" for name in ("a2c", "a3c", "accel", "ga3c", "impala", "ppo")},
    **{name: f"{REPLAY}/{name}-s*" for name in ("accel_dqn", "apex", "dqn", "gorila", "r2d2", "rainbow")},
    **{name: f"{SMALL}/{name}" for name in ("appo", "sac", "td3", "apex_sac", "apex_dpg", "league", "alphago_zero")},
}


def runs_of(name: str) -> list[Path]:
    """Return the directories of the runs that a system's curve is drawn from."""
    return sorted(ROOT.glob(RUNS[name]))


def digest(name: str) -> str:
    """Return a digest of all files of these runs."""
    found = hashlib.sha256()
    for file in sorted(file for run in runs_of(name) for file in run.rglob("*") if file.is_file()):
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def picture(name: str) -> Path:
    return PICTURES / f"curve_{name}.png"


def draw(name: str) -> None:
    """Draw one curve. Raises SystemExit: there is no run, or `polyplay plot` failed."""
    runs = [str(run.relative_to(ROOT)) for run in runs_of(name)]
    if not runs or main.main(["plot", *runs, "--out", str(picture(name)), "--pool", "none"]):
        raise SystemExit(f"{name}: no curve from {RUNS[name]}")


if __name__ == "__main__":
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    for name in sys.argv[1:] or RUNS:
        draw(name)
        made[name] = digest(name)
    MADE.write_text(json.dumps(dict(sorted(made.items())), indent=1) + "\n")
