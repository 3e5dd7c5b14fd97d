"""Learning results on Pong: trains, evaluates, collects runs into bench/results/pong/, draws and tabulates.

Without --collect it runs `polyplay train` and `polyplay evaluate` for every system and seed, one after the
other. With --collect it takes runs that exist already. The page (pong.md, or pong_replay.md of systems that play
few games) and its picture always cover all runs collected.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import (
    GAMES,
    GOAL,
    RESULTS,
    ROOT,
    Row,
    about,
    command,
    command_line,
    commands,
    commit,
    evaluation,
    lines_about,
    publish,
    reached,
    table,
    thin,
    whole,
)

from polyplay.cli.plot import curves
from polyplay.core.errors import UserError
from polyplay.core.files import read_lines, to_plain, write_json
from polyplay.runs.directory import read_config


def train(system: str, seed: int, asked: argparse.Namespace) -> Path:
    """One run and its evaluation, by the command line. Raises CalledProcessError."""
    run = asked.runs / f"{system}-s{seed}"
    limits = ["--until-return", str(asked.until_return), "--minutes", str(asked.minutes)]
    given = ["--preset", asked.preset, "--seed", str(seed), *limits, "--run", str(run)]
    how = ["--protocol", "null-op"] if asked.page == "pong_replay" else []
    tail = [str(run), "--episodes", str(asked.episodes), *how]
    for words in (["train", system, *given, *asked.more], ["evaluate", *tail]):
        print(f"$ polyplay {shlex.join(words)}", flush=True)
        subprocess.run([sys.executable, "-m", "polyplay", *words], cwd=ROOT, check=True)
    return run


def collect(run: Path, results: Path, page: str) -> None:
    """Copy what a run left, without its place on this machine, and what was computed from its games."""
    config = read_config(run)
    name = f"{config['system']}-s{config['seed']}"
    to = results / page / name
    to.mkdir(parents=True, exist_ok=True)
    places = {str(run), str(run.resolve()), str(config["options"]["run"] or run)}

    def copy(value: Any, into: str) -> None:
        text = json.dumps(to_plain(value))
        for place in sorted(places, key=len, reverse=True):
            text = text.replace(json.dumps(place)[1:-1], f"runs/{name}")
        write_json(to / into, json.loads(text))

    copy(config, "config.json")
    metrics = whole(read_lines(run / "metrics.jsonl"))
    if not metrics:
        raise UserError(f"{run}/metrics.jsonl has no report yet: let the run go on")
    lines = [json.dumps(row) for row in thin(metrics)]
    (to / "metrics.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if page == "pong_replay":  # 100 games are most of what it played
        (to / "episodes.jsonl").write_text((run / "episodes.jsonl").read_text(), encoding="utf-8")
    if (run / "summary.json").exists():
        copy(json.loads((run / "summary.json").read_text()), "summary.json")
    judged = evaluation(run)
    if judged:
        copy(judged, "evaluation.json")
    else:
        print(f"pong: {run} has no evaluation yet: polyplay evaluate {run} --episodes 30", file=sys.stderr)
    copy(result(config, name, reached(run), metrics[-1], judged), "result.json")


def result(config: Row, name: str, goal: Row | None, last: Row, judged: Row | None) -> Row:
    """A run as a row of the table."""
    machine = config["machine"]
    row = {
        "system": config["system"],
        "seed": config["seed"],
        "minutes until 18": goal["wall_seconds"] / 60 if goal else None,
        "frames until 18": goal["frames"] if goal else None,
        "minutes": last["wall_seconds"] / 60,
        "frames": last["frames"],
        "resumed": len(config["resumed"]),
        "final mean of 100": last["episodic_return_mean"],
    }
    seen = f"{judged['episodic_return_mean']:.2f} ± {judged['episodic_return_std']:.2f}" if judged else None
    row |= {"evaluation": seen, "games": judged["episodes"] if judged else None}
    row |= {"checkpoint": judged["checkpoint"].lstrip("0") if judged else None}
    row |= {"machine": f"{machine['cpu']}, {machine['cores']} cores", "commit": commit(config)}
    return row | {"command": command(config, name)}


def tabulate(results: Path, page: str) -> None:
    """The page and its picture from everything collected for it."""
    found = sorted((results / page).glob("*/result.json"))
    rows = [json.loads(p.read_text()) for p in found]
    replay = page == "pong_replay"
    curves([p.parent for p in found], results / f"{page}.png", games=20 if replay else 100)
    text = ["# Pong, learnt from a replay" if replay else "# Pong", "", f"![learning curves]({page}.png)", ""]
    text += [*(_said_of_replay if replay else _said)(rows), ""]
    unseen = {"command", "minutes until 18", "frames until 18", "final mean of 100"} if replay else {"command"}
    text += table([{k: v for k, v in r.items() if k not in unseen} for r in rows])
    how = " --protocol null-op" if replay else ""
    text += ["", f"Commands (`polyplay evaluate RUN --episodes 30{how}` followed each; a run that was resumed went on"]
    text += ["with the last options shown):", "", "```"]
    text += [*(r["command"] for r in rows), "```"]
    (results / f"{page}.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def _said(rows: list[Row]) -> list[str]:
    good = [r["minutes until 18"] is not None and r["minutes until 18"] <= 60 for r in rows]
    return [
        f"A mean full-game return ≥ {GOAL:g} over {GAMES} training games within 60 minutes of wall time:",
        f"{sum(good)} of {len(rows)} runs. Evaluation: mean ± deviation of the checkpoint named (by its",
        "updates) over full games with no-op starts, actions sampled.",
    ]


def _said_of_replay(rows: list[Row]) -> list[str]:
    return [
        "Runs were ended by hand when their last games looked good: the picture's curves are of 20 games. Evaluation:",
        "mean ± deviation of the checkpoint named (by its updates) over full games from null-op starts (30 no-ops at",
        "most, 18,000 frames), ε as the page has it. Settings beyond the preset are in the commands, by their names of",
        "that commit; today's presets have the same. Each had one core, or those in the table, of a machine that did",
        "other work beside.",
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--collect", nargs="+", type=Path, metavar="RUN", help="runs that exist, instead of training")
    parser.add_argument(
        "--page", choices=("pong", "pong_replay"), default="pong", help="whose games are few: pong_replay"
    )
    parser.add_argument("--systems", nargs="+", default=["a2c", "impala"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--until-return", type=float, default=19.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--episodes", type=int, default=30, help="games of an evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/pong"), help="where runs go")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results go")
    parser.add_argument("more", nargs="*", help="after --: more words for polyplay train")
    asked = parser.parse_args()
    for run in asked.collect or (train(s, k, asked) for s in asked.systems for k in asked.seeds):
        try:
            collect(run, asked.out, asked.page)
            tabulate(asked.out, asked.page)
        except UserError as e:
            parser.exit(2, f"pong: error: {e}\n")


# Ape-X DPG learns Pendulum-v1: trains, evaluates, and collects runs into bench/results/pendulum.{md,json,png}


PENDULUM_GOAL = -250.0  # mean return without noise; 0 is the most there is, torque at random has about -1,200
PENDULUM_GAMES = 20  # that a point of the picture is the mean of
KEPT = ("frames", "wall_seconds", "episodic_return_mean", "q_mean", "td_abs", "dqda_clip_fraction", "updates")


def pendulum_train(seed: int, asked: argparse.Namespace) -> Path:
    """One run and its evaluation, by the command line. Raises CalledProcessError."""
    run = asked.runs / f"apex_dpg-s{seed}"
    given = ["--preset", "quick", "--seed", str(seed), "--run", str(run), *asked.more]
    for words in (["train", "apex_dpg", *given], ["evaluate", str(run), "--episodes", str(asked.episodes)]):
        print(f"$ polyplay {shlex.join(words)}", flush=True)
        subprocess.run([sys.executable, "-m", "polyplay", *words], cwd=ROOT, check=True)
    return run


def pendulum_result(run: Path) -> Row:
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
    good = [r["evaluation"] >= PENDULUM_GOAL for r in rows]
    return [
        "# Ape-X DPG on Pendulum-v1", "", "![learning curves](pendulum.png)", "",
        f"A mean return ≥ {PENDULUM_GOAL:g} without noise, by the run's last weights: {sum(good)} of {len(rows)} runs.",
        f"The picture's curves are of {PENDULUM_GAMES} training games, with noise. Minutes are of wall time, on",
        "cores that did other work beside.", "",
        *table([{k: v for k, v in r.items() if k not in ("curve", "command")} for r in rows]), "",
        "Commands (`polyplay evaluate RUN --episodes 30` followed each):", "", "```",
        *(r["command"] for r in rows), "```", "", *lines_about(what),
    ]  # fmt: skip


def run_pendulum() -> None:
    """Ape-X DPG learns Pendulum-v1: trains, evaluates, and collects runs into bench/results/pendulum.{md,json,png}.

    Without --collect it runs `polyplay train` and `polyplay evaluate` for every seed, one after the other. With
    --collect it takes runs that exist already, with their evaluations.
    """
    parser = command_line(run_pendulum.__doc__)
    parser.add_argument("--collect", nargs="+", type=Path, metavar="RUN", help="runs that exist, instead of training")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=30, help="games of an evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/pendulum"), help="where runs go")
    parser.add_argument("--out", type=Path, default=RESULTS / "pendulum", help="results, without an ending")
    parser.add_argument("more", nargs="*", help="after --: more words for polyplay train")
    asked = parser.parse_args()
    runs = asked.collect or [pendulum_train(seed, asked) for seed in asked.seeds]
    rows, what = sorted(map(pendulum_result, runs), key=lambda row: row["seed"]), about()
    if asked.collect:
        what["command"] = "python bench/pong.py pendulum --collect RUN …"
    curves(runs, asked.out.with_suffix(".png"), games=PENDULUM_GAMES)
    publish(asked.out, {**what, "goal": PENDULUM_GOAL, "rows": rows}, page(rows, what))


if __name__ == "__main__":
    sys.exit(commands({"": main, "pendulum": run_pendulum}))
