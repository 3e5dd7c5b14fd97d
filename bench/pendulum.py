"""Ape-X DPG learns Pendulum-v1: trains, evaluates, and collects runs into bench/results/pendulum.{md,json,png}.

Without --collect it runs `polyplay train` and `polyplay evaluate` for every seed, one after the other. With --collect
it takes runs that exist already, with their evaluations.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table
from runs import command, commit, evaluation, thin, whole

from polyplay.cli.plot import curves
from polyplay.core.files import read_lines
from polyplay.runs.directory import read_config

GOAL = -250.0  # mean return without noise; 0 is the most there is, torque at random has about -1,200
GAMES = 20  # that a point of the picture is the mean of
KEPT = ("frames", "wall_seconds", "episodic_return_mean", "q_mean", "td_abs", "slope_clipped", "updates")


def train(seed: int, asked: argparse.Namespace) -> Path:
    """One run and its evaluation, by the command line. Raises CalledProcessError."""
    run = asked.runs / f"apex_dpg-s{seed}"
    given = ["--preset", "quick", "--seed", str(seed), "--run", str(run), *asked.more]
    for words in (["train", "apex_dpg", *given], ["evaluate", str(run), "--episodes", str(asked.episodes)]):
        print(f"$ polyplay {shlex.join(words)}", flush=True)
        subprocess.run([sys.executable, "-m", "polyplay", *words], cwd=ROOT, check=True)
    return run


def result(run: Path) -> Row:
    """A run as a row of the table. SystemExit where it was not evaluated yet."""
    config, judged, rows = read_config(run), evaluation(run), whole(read_lines(run / "metrics.jsonl"))
    if judged is None or not rows:
        raise SystemExit(f"pendulum: {run} is not evaluated yet: polyplay evaluate {run} --episodes 30")
    machine, last = config["machine"], rows[-1]
    return {
        "seed": config["seed"],
        "evaluation": round(judged["episodic_return_mean"], 1),
        "deviation": round(judged["episodic_return_std"], 1),
        "episodes": judged["episodes"],
        "agent steps": last["frames"],
        "updates": int(judged["checkpoint"].lstrip("0")),
        "minutes": round(last["wall_seconds"] / 60, 1),
        "resumed": len(config["resumed"]),
        "machine": f"{machine['cpu']}, {machine['cores']} cores",
        "commit": commit(config),
        "command": command(config, run.name).replace("--serial true", "--serial"),
        "curve": [{k: row.get(k) for k in KEPT} for row in thin(rows, 60)],
    }


def page(rows: list[Row], what: Row) -> list[str]:
    good = [r["evaluation"] >= GOAL for r in rows]
    return [
        "# Ape-X DPG on Pendulum-v1", "", "![learning curves](pendulum.png)", "",
        f"A mean return ≥ {GOAL:g} without noise, by the run's last weights: {sum(good)} of {len(rows)} runs. The",
        f"picture's curves are of {GAMES} training games, with noise. Minutes are of wall time, on cores that did",
        "other work beside.", "",
        *table([{k: v for k, v in r.items() if k not in ("curve", "command")} for r in rows]), "",
        "Commands (`polyplay evaluate RUN --episodes 30` followed each):", "", "```",
        *(r["command"] for r in rows), "```", "", *lines_about(what),
    ]  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--collect", nargs="+", type=Path, metavar="RUN", help="runs that exist, instead of training")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=30, help="games of an evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/pendulum"), help="where runs go")
    parser.add_argument("--out", type=Path, default=RESULTS / "pendulum", help="results, without an ending")
    parser.add_argument("more", nargs="*", help="after --: more words for polyplay train")
    asked = parser.parse_args()
    runs = asked.collect or [train(seed, asked) for seed in asked.seeds]
    rows, what = sorted(map(result, runs), key=lambda row: row["seed"]), about()
    if asked.collect:
        what["command"] = "python bench/pendulum.py --collect RUN …"
    curves(runs, asked.out.with_suffix(".png"), games=GAMES)
    publish(asked.out, {**what, "goal": GOAL, "rows": rows}, page(rows, what))


if __name__ == "__main__":
    main()
