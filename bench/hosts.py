"""What other machines cost and survive: runs whose workers are on raylets of this machine.

    python bench/hosts.py --seconds 10 --rounds 3

impala with two actors here and on two raylets in turn (A B A B): on Pong with Nature's network, and
on CartPole, in twice as many rounds, as its speed depends on how well it plays. What is compiled is so before.

Expected: 92 % of the agent steps a second with Nature's network, since a step of 28 KB costs 17 µs of a core at 0.6
core-seconds a GB; 70 % on CartPole, where a step is a hundred times cheaper.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import (
    RESULTS,
    Row,
    about,
    command_line,
    commands,
    lines_about,
    publish,
    table,
)
from host_faults import run_faults, run_soak

from polyplay.core.files import read_lines

BEGIN = 20.0  # seconds until a run learns
WORKLOADS = {
    "Pong, Nature": "impala --preset quick --network nature --actors 2",
    "CartPole": "impala --env CartPole-v1 --actors 2 --steps 20m",
}
Arms = Mapping[str, tuple[str, Sequence[str]]]  # by name: --hosts, and other words of `polyplay train`


def train(*words: str) -> list[Row]:
    """Train; return the run's reports."""
    with tempfile.TemporaryDirectory() as where:
        given = [*words, "--report-every", "2", "--no-tensorboard", "--quiet", "--run", f"{where}/run"]
        subprocess.run([sys.executable, "-m", "polyplay", "train", *given], check=True, stdout=subprocess.DEVNULL)
        return list(read_lines(Path(where) / "run/metrics.jsonl"))


def rates(hosts: str, words: Sequence[str], seconds: float) -> Row:
    """A second of a run's last seconds: agent steps, updates and bytes; and its lag."""
    minutes = str(round((seconds + BEGIN + (4 * int(hosts[6:]) if hosts != "none" else 0)) / 60, 3))
    rows = [row for row in train(*words, "--hosts", hosts, "--minutes", minutes) if row["updates"]][-int(seconds / 2) :]
    passed = rows[-1]["wall_seconds"] - rows[0]["wall_seconds"]
    found = {what: (rows[-1][what] - rows[0][what]) / passed for what in ("steps", "updates")}
    lags = [row["lag_mean"] for row in rows if row["lag_mean"] is not None]
    mb = statistics.fmean(sum(host["mb_in"] for host in row.get("hosts", {}).values()) for row in rows)
    return {**found, "lag": statistics.fmean(lags) if lags else None, "KB a step": 1e3 * mb / found["steps"]}


def in_turn(title: str, arms: Arms, rounds: int, seconds: float) -> list[Row]:
    """A row for each arm: medians over rounds in turn, and the steps as a part of the first arm's."""
    found: dict[str, list[Row]] = {name: [] for name in arms}
    for hosts, words in arms.values():
        train(*words, "--hosts", hosts, "--compile", "on", "--steps", "2000")
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
        rows += in_turn(f"impala, {title}", arms, asked.rounds * (1 + (title == "CartPole")), asked.seconds)
    page(asked, "Other machines", "hosts", rows, what)


PONG = "--env ALE/Pong-v5"
GORILA = f"gorila {PONG} --learners 2 --learning-starts 1000 --capacity 20000"
APEX = f"apex {PONG} --actors 2 --lanes 8 --learning-starts 1000 --capacity 20000 --prefetch 4"
SHARDS, MEMORY = "serve_parameters=others,bundle=here", "serve_replay=others,act=here"
SYSTEMS = {  # words, and the places of the arm elsewhere
    "a2c, a replica there": (f"a2c {PONG} --replicas 2 --network nature", ""),
    "ppo, a replica there": (f"ppo {PONG} --replicas 2", ""),
    "gorila, 2 shards there": (f"{GORILA} --shards 2", SHARDS),
    "apex, replay worker there": (APEX, MEMORY),
    "impala, learner there": ("impala --preset quick --actors 2", "learn=others,act=here"),
}


def run_learners() -> None:
    """Cost of learners, shards and replay workers on another machine.

        python bench/hosts.py learners --seconds 12 --rounds 2

    Whole systems on Pong, all here, or one part on a raylet, in turn (A B A B).
    """
    asked, what, rows = arguments(run_learners.__doc__, 12.0, 2), about(), list[Row]()
    for name, (words, place) in SYSTEMS.items():
        there = [*words.split(), *(["--place", place] if place else [])]
        arms = {"here": ("none", words.split()), "local:1": ("local:1", there)}
        rows += in_turn(name, arms, asked.rounds, asked.seconds)
    page(asked, "Learners on other machines", "hosts_learners", rows, what)


if __name__ == "__main__":
    parts = {"learners": run_learners, "faults": run_faults, "soak": run_soak}
    sys.exit(commands({"": main, **parts}))
