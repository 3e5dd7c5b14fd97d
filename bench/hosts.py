"""What other machines cost and survive: runs whose workers are on raylets of this machine.

    python bench/hosts.py --seconds 10 --rounds 3

impala with two actors here and on two raylets in turn (A B A B): on Pong with Nature's network and a smaller one, and
on CartPole.

Expected: 92 % of the agent steps a second with Nature's network, since a step of 28 KB costs 17 µs of a core at 0.6
core-seconds a GB; 70 % on CartPole, where a step is a hundred times cheaper.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import (
    RESULTS,
    ROOT,
    Row,
    about,
    command_line,
    commands,
    evaluation,
    lines_about,
    publish,
    reached,
    table,
    thin,
)
from host_faults import run_faults, run_soak
from raylets import Raylets

from polyplay.core.files import read_lines, read_object, write_json

BEGIN = 20.0  # seconds until a run learns
WORKLOADS = {
    "Pong, Nature": "impala --preset quick --network nature --actors 2",
    "Pong, a3c": "impala --preset quick --network a3c --actors 2",
    "Pong, a3c, 3 slots": "impala --preset quick --network a3c --actors 2 --slots 3",
    "CartPole": "impala --env CartPole-v1 --actors 2",
}
Arms = Mapping[str, tuple[str, Sequence[str]]]  # by name: --hosts, and other words of `polyplay train`


def rates(hosts: str, words: Sequence[str], seconds: float) -> Row:
    """A second of a run's last seconds: agent steps, updates and bytes; and its lag."""
    with tempfile.TemporaryDirectory() as where:
        minutes = str(round((seconds + BEGIN + (4 * int(hosts[6:]) if hosts != "none" else 0)) / 60, 3))
        given = ["train", *words, "--hosts", hosts, "--minutes", minutes, "--report-every", "1", "--no-tensorboard"]
        command = [sys.executable, "-m", "polyplay", *given, "--quiet", "--run", f"{where}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [row for row in read_lines(Path(where) / "run/metrics.jsonl") if row["updates"]][-int(seconds) :]
    passed = rows[-1]["wall_seconds"] - rows[0]["wall_seconds"]
    found = {what: (rows[-1][what] - rows[0][what]) / passed for what in ("steps", "updates")}
    lags = [row["lag_mean"] for row in rows if row["lag_mean"] is not None]
    mb = statistics.fmean(sum(host["mb_in"] for host in row.get("hosts", {}).values()) for row in rows)
    return {**found, "lag": statistics.fmean(lags) if lags else None, "KB a step": 1e3 * mb / found["steps"]}


def in_turn(title: str, arms: Arms, rounds: int, seconds: float) -> list[Row]:
    """A row for each arm: medians over rounds in turn, and the steps as a part of the first arm's."""
    found: dict[str, list[Row]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, (hosts, words) in arms.items():
            found[name].append(rates(hosts, words, seconds))
            print(title, name, found[name][-1], flush=True)
    first, rows = next(iter(found.values())), []
    for name, each in found.items():
        ratios = [round(one["steps"] / other["steps"], 3) for one, other in zip(each, first, strict=True)]
        row: Row = {"what": title, "where": name}
        row |= {f"{of}/s": round(statistics.median(one[of] for one in each), 1) for of in ("steps", "updates")}
        lags = [one["lag"] for one in each if one["lag"] is not None]
        row |= {"lag": round(statistics.median(lags), 2) if lags else None}
        row |= {"KB a step": round(statistics.median(one["KB a step"] for one in each), 2)}
        rows.append({**row, "of the first": statistics.median(ratios), "each": ", ".join(map(str, ratios))})
    return rows


def arguments(text: str | None, seconds: float, rounds: int) -> Any:
    parser = command_line(text)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser.parse_args()


def page(asked: Any, title: str, name: str, rows: list[Row], what: Row) -> None:
    text = [f"# {title}", "", *lines_about(what), ""]
    text += [
        f"float32; medians of {asked.rounds} rounds of {asked.seconds:g} s in turn. All machines are this one",
        "and share its cores:",
        "",
    ]
    publish(RESULTS / name, {**what, "rows": rows}, [*text, *table(rows)])


def main() -> None:
    asked, what, rows = arguments(__doc__, 10.0, 3), about(), list[Row]()
    for title, words in WORKLOADS.items():
        arms = {"here": ("none", words.split()), "two raylets": ("local:2", words.split())}
        rows += in_turn(f"impala, {title}", arms, asked.rounds, asked.seconds)
    page(asked, "Other machines", "hosts", rows, what)


MACHINES, ACTORS = (1, 2, 4, 8), 8


def run_many() -> None:
    """More machines: impala on Pong, its actors on raylets.

        python bench/hosts.py many --seconds 12 --rounds 2

    Eight actors here and on 1, 2, 4 and 8 raylets, in turn. What is measured is what more lines cost, not what more
    machines bring.
    """
    asked, what = arguments(run_many.__doc__, 12.0, 2), about()
    words = f"impala --preset quick --network a3c --actors {ACTORS}".split()
    arms = {"here": ("none", words)} | {f"{n} raylets": (f"local:{n}", words) for n in MACHINES}
    page(asked, "More machines", "hosts_many", in_turn("impala", arms, asked.rounds, asked.seconds), what)


PONG = "--env ALE/Pong-v5"
GORILA = f"gorila {PONG} --learners 2 --learning-starts 1000 --capacity 20000"
APEX = f"apex {PONG} --actors 2 --lanes 8 --learning-starts 1000 --capacity 20000 --prefetch 4"
SHARDS, MEMORY = "serve_parameters=others,bundle=here", "serve_replay=others,act=here"
SYSTEMS = {  # words, and the places of the arm elsewhere
    "a2c, a replica there": (f"a2c {PONG} --replicas 2 --network a3c", ""),
    "a2c, Nature's network": (f"a2c {PONG} --replicas 2 --network nature", ""),
    "ppo, a replica there": (f"ppo {PONG} --replicas 2", ""),
    "gorila, a learner there": (GORILA, ""),
    **{f"gorila, {n} shards there": (f"{GORILA} --shards {n}", SHARDS) for n in (1, 2, 4)},
    "apex, memory there": (APEX, MEMORY),
    "impala, learner there": ("impala --preset quick --actors 2", "learn=others,act=here"),
}


def run_learners() -> None:
    """What learners, shards and memories on another machine cost.

        python bench/hosts.py learners --seconds 12 --rounds 2

    Whole systems on Pong, all here, or one part on a raylet, in turn (A B A B).
    """
    asked, what, rows = arguments(run_learners.__doc__, 12.0, 2), about(), list[Row]()
    for name, (words, place) in SYSTEMS.items():
        there = [*words.split(), *(["--place", place] if place else [])]
        arms = {"here": ("none", words.split()), "local:1": ("local:1", there)}
        rows += in_turn(name, arms, asked.rounds, asked.seconds)
    page(asked, "Learners on other machines", "hosts_learners", rows, what)


# Pong learnt on a Ray cluster of three that loses a machine every two minutes


CURVE = ("wall_seconds", "frames", "updates", "episodes", "episodic_return_mean", "lag_mean")


def words_of(*given: str) -> list[str]:
    print(f"$ polyplay {shlex.join(given)}", flush=True)
    return [sys.executable, "-m", "polyplay", *given]


def run_lost() -> None:
    """Pong learnt on a Ray cluster of three that loses a machine every two minutes.

        python bench/hosts.py lost --until-return 19.0 --minutes 60

    impala's learner is with the head, its two actors on two raylets, which have a core each. Every --every seconds one
    of these, in turn, gets SIGKILL, and a new one joins. The run, its evaluation by 30 games, its curve and its
    hosts.jsonl go to results/hosts_lost*. A run that was stopped goes on.
    """
    p = command_line(run_lost.__doc__)
    p.add_argument("--until-return", type=float, default=19.0)
    p.add_argument("--minutes", type=float, default=60.0, help="the longest run")
    p.add_argument("--every", type=float, default=120.0, help="seconds between two losses")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--run", type=Path, default=ROOT / "runs/hosts-lost")
    asked = p.parse_args()
    cluster, i = Raylets(2, cores=1), 0
    limits = ["--until-return", str(asked.until_return), "--minutes", str(asked.minutes)]
    limits += ["--hosts", f"ray:{cluster.address}"]
    words = ["train", "impala", "--env", "ALE/Pong-v5", "--preset", "quick", "--run", str(asked.run)]
    words += ["--seed", str(asked.seed), "--checkpoint-every", "60"]
    words = ["resume", str(asked.run)] if asked.run.exists() else words
    run = subprocess.Popen(words_of(*words, *limits), cwd=ROOT, env=cluster.env)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(asked.every)
            break
        cluster.add(f"m-{i + 3}")
        os.kill(cluster.raylet(f"m-{i + 1}"), signal.SIGKILL)
        i += 1
    cluster.close()
    if run.returncode:
        raise SystemExit(run.returncode)
    subprocess.run(words_of("evaluate", str(asked.run), "--episodes", "30"), cwd=ROOT, check=True)
    report(asked.run)


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
    parts = {"many": run_many, "learners": run_learners, "lost": run_lost, "faults": run_faults, "soak": run_soak}
    sys.exit(commands({"": main, **parts}))
