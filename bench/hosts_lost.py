"""Pong learnt on a Ray cluster of three that loses a machine every two minutes.

    python bench/hosts_lost.py --until-return 19.0 --minutes 60

A cluster of three raylets on this machine; impala's learner is with the first, its two actors with the others, which
have a core each. Every --every seconds one of these, in turn, gets SIGKILL, and a new one joins. The run, its
evaluation by 30 games, its curve and its hosts.jsonl go to results/hosts_lost*. A run that was stopped goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from common import RESULTS, ROOT, Row, about, command_line, lines_about, table
from runs import evaluation, reached, thin

from polyplay.core.files import read_lines, read_object, write_json

CURVE = ("wall_seconds", "frames", "updates", "episodes", "episodic_return_mean", "lag_mean")
FEW = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(), "RAY_worker_niceness": "0"}


def words_of(*given: str) -> list[str]:
    print(f"$ polyplay {shlex.join(given)}", flush=True)
    return [sys.executable, "-m", "polyplay", *given]


def main() -> None:
    p = command_line(__doc__)
    p.add_argument("--until-return", type=float, default=19.0)
    p.add_argument("--minutes", type=float, default=60.0, help="the longest run")
    p.add_argument("--every", type=float, default=120.0, help="seconds between two losses")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--run", type=Path, default=ROOT / "runs/hosts-lost")
    asked = p.parse_args()
    os.environ.update(TOKEN)
    from ray.cluster_utils import Cluster

    head = {**FEW, "node_name": "first", "include_dashboard": False}
    cluster, names = Cluster(initialize_head=True, head_node_args=head), (f"machine-{i}" for i in itertools.count(2))
    nodes = [cluster.add_node(**FEW, node_name=next(names)) for _ in range(2)]
    limits = ["--until-return", str(asked.until_return), "--minutes", str(asked.minutes)]
    limits += ["--hosts", f"ray:{cluster.address}"]
    words = ["train", "impala", "--env", "ALE/Pong-v5", "--preset", "quick", "--run", str(asked.run)]
    words += ["--seed", str(asked.seed), "--checkpoint-every", "60"]
    words = ["resume", str(asked.run)] if asked.run.exists() else words
    run = subprocess.Popen(words_of(*words, *limits), cwd=ROOT)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(asked.every)
            break
        nodes.append(cluster.add_node(**FEW, node_name=next(names)))
        os.kill(nodes.pop(0).all_processes["raylet"][0].process.pid, signal.SIGKILL)
    if run.returncode:
        raise SystemExit(run.returncode)
    subprocess.run(words_of("evaluate", str(asked.run), "--episodes", "30"), cwd=ROOT, check=True)
    report(asked.run)
    with contextlib.suppress(Exception):  # raylets that were killed
        cluster.shutdown()


def report(run: Path) -> None:
    rows, events = list(read_lines(run / "metrics.jsonl")), list(read_lines(run / "hosts.jsonl"))
    (RESULTS / "hosts_lost_hosts.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    good, score, what = reached(run), evaluation(run), about()
    found: Row = {"begun and resumed": 1 + len(read_object(run / "config.json")["resumed"])}
    found |= Counter(f"machines {e['event']}" for e in events)
    found["minutes to 18"] = good["wall_seconds"] / 60 if good else None
    found |= {"agent steps": rows[-1]["steps"], "minutes": rows[-1]["wall_seconds"] / 60}
    if score:
        found["30 games"] = f"{score['episodic_return_mean']:.2f} ± {score['episodic_return_std']:.2f}"
    curve = thin([{k: row[k] for k in CURVE} for row in rows])
    write_json(RESULTS / "hosts_lost.json", {**what, **found, "evaluation": score, "curve": curve})
    head = ["# Pong on a Ray cluster that loses a machine every two minutes", "", *lines_about(what), ""]
    (RESULTS / "hosts_lost.md").write_text("\n".join([*head, *table([found])]) + "\n")


if __name__ == "__main__":
    main()
