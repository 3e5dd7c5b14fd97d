"""Every system's losses, to the last bit, before and after a change that should change none.

    python bench/digests.py --write build/digests.json     # on the parent commit
    python bench/digests.py --check build/digests.json     # after the change, on the same machine

Each case is a short run (`--trace`); its digest is the SHA-256 of `updates.jsonl`, which holds loss, gradient norm and
lag of every update, of all agents or members one after another. Runs are `--serial`, in one thread, but for those on
local machines: these are in step (`--lag 0`, or replicas that average their gradients), so that their order is
fixed too. A file of digests holds for one machine: another set of instructions adds in another order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

QUIET: dict[str, Any] = {"serial": True, "trace": True, "seed": 3, "tensorboard": False, "report_every": 60.0}
ADAM: dict[str, Any] = {"network": "mlp", "optimizer": "adam", "learning_rate": 3e-3, "optimizer_eps": 1e-5}
CATCH: dict[str, Any] = {**ADAM, "env": "toy:catch", "lanes": 8, "unroll": 8}
TASKS: dict[str, Any] = {"env": "toy:catch,toy:catch+rows=6", "value": "popart"}
GAMES: dict[str, Any] = {"env": "ALE/Pong-v5,ALE/Freeway-v5", "lanes": 4}
DRAWN: dict[str, Any] = {**ADAM, "env": "toy:catch", "lanes": 8, "unroll": 1, "batch": 32, "ratio": 8.0}
DRAWN |= {"capacity": 10_000, "learning_starts": 300, "target_update": 50}
FREE: dict[str, Any] = {**DRAWN, "unroll": 10, "lanes": 4, "actors": 2, "replay_workers": 2, "prefetch": 2}
PONG: dict[str, Any] = {"env": "ALE/Pong-v5", "network": "a3c"}
TEAMS: dict[str, Any] = {"env": "toy:skirmish", "network": "mlp", "lanes": 16, "batch": 8, "games_per_matchup": 10}
HOSTS: dict[str, Any] = {**CATCH, "serial": False, "hosts": "local:2"}


def less(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in given.items() if k not in names}


CRITICS: dict[str, Any] = {"env": "Pendulum-v1", "network": "mlp(16,16)", "lanes": 2, "batch": 32, "ratio": 32.0}
CRITICS |= {"capacity": 400, "learning_starts": 100, "steps": 700}
CASES: dict[str, dict[str, Any]] = {
    "a2c": {**CATCH, "replicas": 1, "groups": 2, "steps": 4_000},
    "a2c lstm": {**CATCH, "env": "toy:memory", "replicas": 1, "core": "lstm", "core_size": 16, "steps": 3_000},
    "a2c pong": {**PONG, "replicas": 1, "lanes": 4, "steps": 400},
    "a2c two replicas": {**CATCH, "replicas": 2, "groups": 2, "on": "thread", "serial": False, "steps": 4_000},
    "a3c": {**less(CATCH, "lanes"), "workers": 2, "steps": 3_000},
    "accel": {**CATCH, "replicas": 1, "steps": 4_000},
    "appo": {**less(CATCH, "optimizer"), "actors": 2, "batch": 16, "epochs": 2, "minibatches": 2, "steps": 4_000},
    "ga3c": {**less(CATCH, "lanes"), "agents": 8, "schedule": "off", "min_batch": 16, "steps": 3_000},
    "impala": {**CATCH, "actors": 2, "batch": 16, "steps": 4_000},
    "impala gru": {**CATCH, "env": "toy:memory", "core": "gru", "actors": 1, "batch": 8, "lag": 0, "steps": 3_000},
    "impala pong": {**PONG, "actors": 1, "lanes": 4, "batch": 4, "steps": 1_600},
    "impala two tasks": {**CATCH, **TASKS, "actors": 2, "batch": 16, "steps": 4_000},
    "impala two games": {**GAMES, "network": "a3c", "value": "popart", "actors": 1, "batch": 4, "steps": 1_600},
    "ppo": {**less(CATCH, "optimizer"), "replicas": 1, "epochs": 2, "minibatches": 2, "steps": 4_000},
    "ppo two tasks": {**less(CATCH, "optimizer"), **TASKS, "replicas": 1, "minibatches": 2, "steps": 4_000},
    "dqn": {**DRAWN, "replicas": 1, "n_step": 3, "alpha": 0.6, "steps": 1_500},
    "dqn pong": {
        **PONG,
        "lanes": 4,
        "batch": 8,
        "learning_starts": 100,
        "capacity": 2_000,
        "replicas": 1,
        "steps": 400,
    },
    "rainbow": {**less(DRAWN, "optimizer"), "v_max": 2.0, "replicas": 1, "steps": 1_200},
    "r2d2": {
        **{**less(DRAWN, "optimizer"), "env": "toy:memory", "unroll": 8, "sequence": 8, "burn_in": 4, "n_step": 2},
        **{"core_size": 16, "actors": 1, "pull": 8, "ratio": 2.0, "batch": 8, "steps": 2_000},
    },
    "sac": {**CRITICS, "critic_rate": 2.0},
    "sac discrete": {**CRITICS, "env": "toy:catch"},
    "td3": CRITICS,
    "apex_sac": {**CRITICS, "actors": 2, "replay_workers": 2, "prefetch": 2, "unroll": 10},
    "apex": {**FREE, "epsilon": 0.2, "steps": 1_200},
    "apex_dpg": {
        **less(FREE, "network", "optimizer", "optimizer_eps"),
        "env": "Pendulum-v1",
        "width": 32,
        "steps": 1_200,
    },
    "gorila": {**less(DRAWN, "lanes"), "lanes": 4, "learners": 2, "shards": 3, "steps": 1_000},
    "gorila free": {**less(FREE, "prefetch"), "learners": 2, "shards": 2, "steps": 1_000},
    "accel_dqn": {**less(DRAWN, "optimizer"), "unroll": 2, "batch": 64, "replicas": 1, "steps": 1_200},
    "alphago_zero": {
        **{
            "env": "game:tic_tac_toe",
            "players": 2,
            "games": 16,
            "simulations": 12,
            "temperature_plies": 6,
            "noise_alpha": 1.0,
        },
        **{
            "blocks": 1,
            "filters": 8,
            "batch": 64,
            "ratio": 2.0,
            "capacity": 4_000,
            "learning_starts": 400,
            "learners": 1,
        },
        **{"leaves": 1, "evaluator": "torch", "precision": "float32", "learning_rate": 0.02, "steps": 1_500},
    },
    "league": {
        **TEAMS,
        "agents": 4,
        "core": "gru",
        "opponents": "past:0.3",
        "snapshot_every": 5,
        "actors": 2,
        "steps": 3_000,
    },
    "ftw": {
        **{**TEAMS, "event_rewards": ("kill=1", "death=-0.5"), "agents": 2, "core_size": 16, "unroll": 20, "memory": 0},
        **{"batch": 4, "auxiliary": "reward", "optimizer": "adam", "exploit_every": 20, "steps": 6_000},
    },
    "five": {
        **{"env": "arena:moba+team=1+lanes=1+length=300", "preset": "quick", "core_size": 16, "lanes": 16},
        **{"unroll": 20, "window": 5, "batch": 32, "capacity": 64, "publish": 1, "opponents": "past:0.3"},
        **{"snapshot_every": 5, "games_per_matchup": 4, "rate_every": 0, "steps": 4_000},
    },
    "pbt": {
        **{**less(CATCH, "learning_rate"), "over": "a2c", "replicas": 1, "at_once": 1, "population": 3, "every": 500},
        **{"vary": ("learning_rate=log:1e-4:1e-2",), "steps": 2_000},
    },
    "impala on two machines": {**HOSTS, "actors": 2, "batch": 16, "lag": 0, "steps": 4_000},
    "a2c on two machines": {**HOSTS, "replicas": 2, "groups": 2, "steps": 4_000},
}


def digest(name: str, directory: Path) -> dict[str, Any]:
    import polyplay

    run = polyplay.train(name.split()[0], run=str(directory / "run"), **{**QUIET, **CASES[name]})
    text = b"".join(path.read_bytes() for path in sorted(run.directory.rglob("updates*.jsonl")))
    updates = text.count(b"\n")
    assert updates >= 10, f"{name}: {updates} updates say nothing"
    return {"updates": updates, "sha256": hashlib.sha256(text).hexdigest()}


def measure(names: list[str]) -> dict[str, Any]:
    """Each case in a process of its own, so that one cannot change another's."""
    found = {}
    for name in names:
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {"error": done.stderr[-800:]}
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def machine() -> dict[str, str]:
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    kinds = {"processor": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__.split("+")[0]}
    return {"commit": commit, "python": platform.python_version(), **kinds}


def main() -> int:
    parser = argparse.ArgumentParser(description="Every system's losses, to the last bit.")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--one")
    asked = parser.parse_args()
    if asked.one:
        os.environ["OMP_NUM_THREADS"] = "1"
        with tempfile.TemporaryDirectory() as directory:
            print("\n" + json.dumps(digest(asked.one, Path(directory))))
        return 0
    found = measure(asked.only)
    if asked.write:
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text(json.dumps({"machine": machine(), "digests": found}, indent=1) + "\n")
    if not asked.check:
        return int(any("error" in digest for digest in found.values()))
    recorded = json.loads(asked.check.read_text())
    known = recorded["digests"]
    wrong = [name for name in asked.only if "error" in found[name] or found[name] != known.get(name)]
    print(f"{len(found) - len(wrong)} of {len(found)} as at commit {recorded['machine']['commit']}; changed: {wrong}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
