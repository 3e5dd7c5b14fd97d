"""Environments that were not written for Polyplay: each is checked, and trained in for some steps, by the command line.

Needs `pip install 'gymnasium[box2d,mujoco,toy-text]' minigrid envpool` beside Polyplay. Writes
bench/results/third_party.md (and .json), which docs/start/your_environment.md shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from common import HERE, RESULTS, Row, about, command_line, lines_about, publish, table

SMALL = ["--lanes", "8", "--replicas", "1", "--network", "mlp", "--no-tensorboard"]
MLP = [*SMALL, "--optimizer", "adam", "--learning-rate", "1e-3", "--reward", "scale"]
ATARI = ["--lanes", "8", "--replicas", "1", "--network", "a3c", "--no-tensorboard"]
# what it is, package, name, options of training
LIST: list[tuple[str, str, str, list[str]]] = [
    ("classic control", "gymnasium", "CartPole-v1", MLP),
    ("classic control, real actions", "gymnasium", "MountainCarContinuous-v0", MLP),
    ("a Tuple observed", "gymnasium", "Blackjack-v1", MLP),
    ("a mask in info", "gymnasium", "Taxi-v4", MLP),
    ("Box2D", "gymnasium", "LunarLander-v3", [*MLP, "--inputs", "normalize"]),
    ("Box2D, real actions, recurrent", "gymnasium", "BipedalWalker-v3", [*MLP, "--core", "gru"]),
    ("MuJoCo", "mujoco", "HalfCheetah-v5", [*MLP, "--inputs", "normalize"]),
    ("MiniGrid's image", "minigrid", "third_party_envs:image", MLP),
    ("a Dict observed, with MultiDiscrete in it", "minigrid", "third_party_envs:mission", [*MLP, "--core", "lstm"]),
    ("MultiDiscrete actions", "gymnasium", "third_party_envs:engines", MLP),
    ("Atari", "ale-py", "ALE/Breakout-v5", ATARI),
    ("Atari, Dopamine's preset", "ale-py", "ALE/SpaceInvaders-v5", [*ATARI, "--atari", "dopamine"]),
    ("Atari, plain emulator", "ale-py", "ALE/Qbert-v5", [*ATARI, "--atari", "dqn2015"]),
    ("a Gymnasium vector environment", "gymnasium", "third_party_envs:vector", MLP),
    ("EnvPool, classic control", "envpool", "envpool:Acrobot-v1", MLP),
    ("EnvPool, Atari", "envpool", "envpool:Seaquest-v5", ATARI),
]


def polyplay(*words: str, seconds: float) -> tuple[int, str, str]:
    """(exit status, standard output, last line of the error)"""
    command = [sys.executable, "-m", "polyplay", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, timeout=seconds)
    except subprocess.TimeoutExpired:
        return 124, "", f"took longer than {seconds:g} s"
    error = [line for line in done.stderr.splitlines() if line.startswith("polyplay")] or done.stderr.splitlines()
    return done.returncode, done.stdout, (error or [""])[-1]


def one(what: str, package: str, name: str, options: list[str], asked: Any) -> Row:
    """An environment as a row of the table."""
    row: Row = {"what": what, "environment": name, "package": f"{package} {metadata.version(package)}"}
    code, out, error = polyplay("check", name, "--steps", str(asked.check_steps), "--json", seconds=300)
    row["check"] = _verdict(json.loads(out)) if out.startswith("{") else error or f"exit status {code}"
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        words = ["train", "a2c", "--env", name, *options, "--steps", str(asked.steps), "--run", str(run)]
        before = time.monotonic()
        code, _, error = polyplay(*words, seconds=600)
        row["a2c"] = "trains" if code == 0 else f"exit status {code}: {error}"
        summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else {}
        row |= {"steps": asked.steps, "games": summary.get("episodes"), "return": summary.get("episodic_return_mean")}
    row["options"] = " ".join(options)
    print(f"{time.monotonic() - before:6.1f} s  {name:<32} {row['check']:<40} {row['a2c']}", flush=True)
    return row


def _verdict(report: dict[str, Any]) -> str:
    bad = [f"{f['level']}: {f['name']}" for f in report["rules"] if f["level"] in ("warning", "failed")]
    return "all well" if not bad else "; ".join(bad)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="agent steps of training")
    parser.add_argument("--check-steps", type=int, default=500)
    parser.add_argument("--only", nargs="*", help="parts of names")
    parser.add_argument("--out", type=Path, default=RESULTS / "third_party")
    asked = parser.parse_args()
    chosen = [r for r in LIST if not asked.only or any(part in r[2] for part in asked.only)]
    rows = [one(*row, asked) for row in chosen]
    where = about()
    good = sum(r["check"] == "all well" and r["a2c"] == "trains" for r in rows)
    text = ["# Environments of others", "", *lines_about(where), ""]
    text += [f"`polyplay check` finds all well, and a2c trains, in {good} of {len(rows)}. Training is short: it shows"]
    text += ["that everything fits, not that it learns.", ""]
    publish(asked.out, {**where, "rows": rows}, [*text, *table(rows)])


if __name__ == "__main__":
    main()
