"""Whether a change made anything slower: this checkout and another one, side by side.

    git worktree add /tmp/before COMMIT
    python bench/before.py /tmp/before --rounds 6 --name hosts_before

In each round both checkouts do the same work at the same time, each on a core of its own. The cores change from round
to round: what else the machine does, and a slower core, are the same for both. Systems run in one thread: they do what
several processes do, and nobody waits. What counts is CPU seconds.

    python bench/before.py start --times 10 . /tmp/before    # seconds until the first step of a CartPole, in turn
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table

ENOUGH = 0.99  # of the other checkout's speed
TOY = "--env toy:catch --network mlp --checkpoint-every 1000 --serial --no-tensorboard --quiet"
PONG = "--preset quick --network nature --serial --no-tensorboard --quiet"
WORK: dict[str, str] = {
    "import polyplay, 200 times": "",
    "impala": f"impala {TOY} --actors 4 --lanes 8 --batch 8 --unroll 5 --steps 90k",
    "impala on Pong": f"impala {PONG} --lanes 8 --steps 6k",
    "a2c on Pong": f"a2c {PONG} --steps 8k",
    "ppo on Pong": f"ppo {PONG} --steps 6k",
    "dqn on Pong": f"dqn {PONG} --lanes 8 --steps 7k",
    "a2c of 4 replicas": f"a2c {TOY} --replicas 4 --lanes 16 --steps 40k",
    "apex": f"apex {TOY} --actors 2 --lanes 8 --unroll 10 --batch 32 --learning-starts 500 --ratio 4 "
    "--capacity 10k --steps 25k",
    "gorila": f"gorila {TOY} --learners 2 --shards 2 --lanes 2 --learning-starts 500 --capacity 10k --steps 6k",
}


def begin(checkout: Path, work: str, where: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    words = ["-m", "polyplay", "train", *work.split(), "--run", f"{where}/run"]
    if not work:
        again = (
            "import subprocess, sys; [subprocess.run([sys.executable, '-c', 'import polyplay']) for _ in range(200)]"
        )
        words = ["-c", again]
    return subprocess.Popen([sys.executable, *words], cwd=checkout, env=env, stdout=subprocess.DEVNULL)


def both(checkouts: tuple[Path, Path], work: str, cores: tuple[int, int]) -> list[float]:
    """CPU seconds of each."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        runs = [begin(at, work, where) for at, where in zip(checkouts, (one, two), strict=True)]
        for run, core in zip(runs, cores, strict=True):
            os.sched_setaffinity(run.pid, {core})
        spent = []
        for run in runs:
            _, status, usage = os.wait4(run.pid, 0)
            if status:
                raise SystemExit(f"{run.args} ended with {status}")
            spent.append(usage.ru_utime + usage.ru_stime)
    return spent


def measured(name: str, checkouts: tuple[Path, Path], rounds: int) -> Row:
    cores = sorted(os.sched_getaffinity(0))
    found = []
    for i in range(rounds):
        turned = (cores[0], cores[1]) if i % 2 else (cores[1], cores[0])
        found.append(both(checkouts, WORK[name], turned))
        print(name, *(f"{x:.2f}" for x in found[-1]), flush=True)
    now, before = (statistics.median(each) for each in zip(*found, strict=True))
    ratios = [b / a for a, b in found]
    pairs = [(x * y) ** 0.5 for x, y in zip(ratios[::2], ratios[1::2], strict=True)]  # each on both cores
    row: Row = {"what": name, "before, CPU s": before, "now, CPU s": now, "speed": round(statistics.median(pairs), 3)}
    return {**row, "each": ", ".join(f"{r:.3f}" for r in pairs)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("other", type=Path, help="a checkout")
    parser.add_argument("--rounds", type=int, default=6, help="an even number")
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK), metavar="WORK")
    parser.add_argument("--name", default="before", help="of the result")
    asked = parser.parse_args()
    if asked.rounds % 2:
        raise SystemExit(f"--rounds {asked.rounds}: an even number, since the cores change")
    commit = subprocess.run(["git", "-C", str(asked.other), "rev-parse", "HEAD"], capture_output=True, text=True)
    what: dict[str, Any] = {**about(), "other": commit.stdout.strip()}
    what["command"] = what["command"].replace(str(asked.other), "OTHER")
    rows = [measured(name, (ROOT, asked.other.resolve()), asked.rounds) for name in asked.only]
    text = ["# Before and now", "", *lines_about(what), f"- before: {what['other']}", "", *table(rows), ""]
    text.append(
        f"*speed*: CPU seconds before by those now, float32, of pairs of rounds; at least {ENOUGH:g} is asked for."
    )
    publish(RESULTS / asked.name, {**what, "rows": rows}, text)


# Seconds until the first step.

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
FIRST = ["-m", "polyplay", "train", "a2c", "--env", "probe:Probe", "--network", "mlp"]
LENGTH = ["--steps", "1_000_000", "--no-tensorboard", "--run"]


def seconds(checkout: Path) -> float:
    """From the command `polyplay train a2c` to the first step of a CartPole."""
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / "probe.py").write_text(PROBE)
        first = Path(there) / "first"
        env = {**os.environ, "PYTHONPATH": f"{checkout}:{there}", "FIRST_STEP": str(first)}
        began = time.time()
        run = subprocess.Popen(
            [sys.executable, *FIRST, *LENGTH, f"{there}/run"], cwd=there, env=env, stdout=subprocess.DEVNULL
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


def start() -> None:
    parser = command_line(__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--times", type=int, default=6)
    asked = parser.parse_args()
    found: dict[Path, list[float]] = {c.resolve(): [] for c in asked.checkouts}
    for _ in range(asked.times):
        for checkout, all_of_it in found.items():
            all_of_it.append(seconds(checkout))
    for checkout, all_of_it in found.items():
        print(f"{checkout}: least {min(all_of_it):.2f} s, median {statistics.median(all_of_it):.2f} s")


if __name__ == "__main__":
    sys.exit(commands({"": main, "start": start}))
