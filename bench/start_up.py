"""Seconds from the command `polyplay train a2c` to the first step of a CartPole, of one or more checkouts in turn:
`python bench/start_up.py [--times N] [CHECKOUT …]`. Printed are the least and the median of each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROBE = """
import os, time
from gymnasium.envs.classic_control import CartPoleEnv

class Probe(CartPoleEnv):
    def step(self, action):
        if not os.path.exists(os.environ["FIRST_STEP"]):
            with open(os.environ["FIRST_STEP"] + str(os.getpid()), "w") as file:
                file.write(repr(time.time()))
            os.replace(file.name, os.environ["FIRST_STEP"])
        return super().step(action)
"""
COMMAND = ["-m", "polyplay", "train", "a2c", "--env", "probe:Probe", "--network", "mlp"]
LENGTH = ["--steps", "1_000_000", "--no-tensorboard", "--run"]


def seconds(checkout: Path) -> float:
    """Of one start."""
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / "probe.py").write_text(PROBE)
        first = Path(there) / "first"
        env = {**os.environ, "PYTHONPATH": f"{checkout}:{there}", "FIRST_STEP": str(first)}
        began = time.time()
        run = subprocess.Popen(
            [sys.executable, *COMMAND, *LENGTH, f"{there}/run"], cwd=there, env=env, stdout=subprocess.DEVNULL
        )
        try:
            while not first.exists():
                if run.poll() is not None or time.time() > began + 120:
                    raise SystemExit(f"{checkout}: no step was made; exit status {run.poll()}")
                time.sleep(0.01)
            return float(first.read_text()) - began
        finally:
            run.terminate()
            run.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Seconds from the command to the first environment step.")
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).resolve().parents[1]])
    parser.add_argument("--times", type=int, default=6)
    asked = parser.parse_args()
    found: dict[Path, list[float]] = {c.resolve(): [] for c in asked.checkouts}
    for _ in range(asked.times):
        for checkout, all_of_it in found.items():
            all_of_it.append(seconds(checkout))
    for checkout, all_of_it in found.items():
        print(f"{checkout}: least {min(all_of_it):.2f} s, median {statistics.median(all_of_it):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
