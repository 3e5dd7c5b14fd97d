"""Every system as it starts on an environment that is no Atari game: no option but --env and --seed.

    python bench/zoo.py CartPole-v1 --least 450 --seeds 0 1 2 3 4
    python bench/zoo.py CartPole-v1 --systems ppo dqn --peers PEERS     # beside Stable-Baselines3's defaults
    python bench/zoo.py CartPole-v1 --systems ppo --peers PEERS --zoo   # and its PPO with RL Baselines3 Zoo's settings

Each run is `polyplay train SYSTEM --env ENV --seed S` in a process of its own, then 100 games by `polyplay evaluate`.
Peers get as many steps. Rows are kept in bench/results/zoo/ENV.json; what is there of the present settings is not run
again. A second zoo.py in another checkout may run other seeds beside it: `--merge FILE.json` takes over its rows.
`reached` is when the mean return of the last 100 games first passed --least, in seconds of training. ENV.png has these
means over agent steps, a line per system or peer and its seeds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, table
from matplotlib import pyplot

from polyplay import systems
from polyplay.core.files import read_lines
from polyplay.core.numbers import mean_interval
from polyplay.runs import options

LIMIT = 900.0  # seconds of one run
PEERS = {"a2c": "a2c", "ppo": "ppo", "dqn": "dqn"}  # system: what Stable-Baselines3 calls it
SETTLED = 20  # games before a mean return counts
POINTS = 100  # of a curve


def ours(name: str, env: str, seed: int, least: float, place: Path) -> Row:
    run = place / f"{name}-{seed}"
    begun, used = time.monotonic(), cpu_seconds()
    train = ["train", name, "--env", env, "--seed", str(seed), "--run", str(run), "--no-tensorboard"]
    done = polyplay(*train)
    seconds, used = time.monotonic() - begun, cpu_seconds() - used
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:]}
    polyplay("evaluate", str(run), "--episodes", "100")
    (file,) = run.glob("evaluation-*.json")
    score = json.loads(file.read_text())
    games = list(read_lines(run / "episodes.jsonl", "wall_seconds", "steps", "episodic_return"))
    summary = json.loads((run / "summary.json").read_text())
    learnt = {
        "steps": summary["steps"],
        "seconds": seconds,
        "cpu": used,
        "reached": first(games, least),
        "curve": curve(games),
    }
    return {**learnt, "returns": score["returns"]}


def cpu_seconds() -> float:
    """Of all children that have ended, and theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def curve(games: list[Row]) -> list[list[float]]:
    """Mean returns of the last 100 games while it learnt: [agent steps, return], at most POINTS."""
    means = [(game["steps"], mean) for game, mean in zip(games, moving(games), strict=True)]
    return [list(point) for point in means[SETTLED :: len(means) // POINTS + 1]]


def moving(games: list[Row]) -> list[float]:
    """After every game the mean return of the last 100."""
    sums = np.cumsum([0.0, *(game["episodic_return"] for game in games)])
    ends = np.arange(1, len(sums))
    begins = np.maximum(ends - 100, 0)
    return ((sums[ends] - sums[begins]) / (ends - begins)).tolist()


def first(games: list[Row], least: float) -> float | None:
    """When the mean of the last 100 games first reached `least`."""
    passed = (game for game, mean in list(zip(games, moving(games), strict=True))[SETTLED - 1 :] if mean >= least)
    return next((float(game["wall_seconds"]) for game in passed), None)


def polyplay(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polyplay", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)


def peer(name: str, env: str, seed: int, steps: int, least: float, python: Path, how: str) -> Row:
    words = [
        "--algo",
        PEERS[name],
        "--env",
        env,
        "--steps",
        str(steps),
        "--seed",
        str(seed),
        "--target-update",
        str(least),
    ]
    words += ["--settings", how]
    script, used = ROOT / "bench" / "peers" / "sb3_gymnasium.py", cpu_seconds()
    done = subprocess.run([str(python), str(script), *words], capture_output=True, text=True, timeout=2 * LIMIT)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:]}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return {**found, "cpu": cpu_seconds() - used}


def settings_of(name: str, env: str) -> Row:
    settings, chosen, _ = options.resolve(systems.load(name), env=env)
    return {"preset": chosen.preset, **options.to_json(settings)}


def summary(rows: list[Row], least: float) -> list[Row]:
    """A row per system or peer: pooled over seeds."""
    found = []
    for who in dict.fromkeys(row["who"] for row in rows):
        mine = [row for row in rows if row["who"] == who and "returns" in row]
        means = [sum(row["returns"]) / len(row["returns"]) for row in mine]
        if not mine:
            continue
        low, high = mean_interval(means) or (means[0], means[0])
        passed = [row["reached"] for row in mine if row["reached"] is not None]
        found.append(
            {
                "who": who,
                "seeds": len(mine),
                "steps": mine[0]["steps"],
                "score": round(sum(means) / len(means), 1),
                "95 % interval": f"{low:.1f} to {high:.1f}",
                "worst seed": round(min(means), 1),
                f"seeds ≥ {least:g}": sum(mean >= least for mean in means),
                "seconds": round(sum(row["seconds"] for row in mine) / len(mine)),
                "of a core": round(sum(row["cpu"] for row in mine) / len(mine)),
                "reached after": f"{sum(passed) / len(passed):.0f} s ({len(passed)} of {len(mine)})" if passed else "–",
            }
        )
    return found


def write(out: Path, rows: list[Row], env: str, least: float) -> None:
    what = about()
    out.parent.mkdir(parents=True, exist_ok=True)
    text = [f"# {env}: every system as it starts", "", *lines_about(what), ""]
    text += [
        "Score: 100 games by `polyplay evaluate` after the whole run, a mean per seed; interval over seeds. "
        "Seconds are of training, with what else ran on the machine; *of a core* is the time that it computed. "
        "*Reached after* is when the mean of the last 100 games first passed the bound.",
        "",
    ]
    text += [f"![Mean return while learning]({out.name}.png)", ""] if draw(out.with_suffix(".png"), rows, env) else []
    publish(out, {**what, "rows": rows}, [*text, *table(summary(rows, least))])


def draw(out: Path, rows: list[Row], env: str) -> bool:
    """Every curve there is; whether there is one."""
    known = [row for row in rows if row.get("curve")]
    if not known:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for i, who in enumerate(dict.fromkeys(row["who"] for row in known)):
        curves = [np.array(row["curve"]) for row in known if row["who"] == who]
        grid = np.linspace(max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves), POINTS)
        values = np.stack([np.interp(grid, *c.T) for c in curves])
        color, dashes = f"C{i % 10}", ("-", "--")[i // 10 % 2]
        axes.plot(grid, values.mean(0), label=f"{who} ({len(curves)})", color=color, linestyle=dashes)
        axes.fill_between(grid, values.min(0), values.max(0), color=color, alpha=0.12, linewidth=0)
    axes.set(title=f"{env}: mean, least and best of the seeds", xlabel="agent steps", ylabel="return, last 100 games")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
    return True


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("env")
    parser.add_argument("--systems", nargs="*", default=systems.ordinary())
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--least", type=float, default=450.0)
    parser.add_argument("--peers", type=Path, help="the folder with the environment sb3 (bench/peers/README.md)")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="rows of other runs of this script")
    parser.add_argument("--zoo", action="store_true", help="the peer's PPO with RL Baselines3 Zoo's settings too")
    asked = parser.parse_args()
    out = RESULTS / "zoo" / asked.env
    rows: list[Any] = (
        json.loads(out.with_suffix(".json").read_text())["rows"] if out.with_suffix(".json").exists() else []
    )
    for file in asked.merge:
        known = {(row["who"], row["seed"]) for row in rows}
        there = json.loads(file.read_text())["rows"]
        rows += [row for row in there if (row["who"], row["seed"]) not in known and of_today(row, asked.env)]
        write(out, rows, asked.env, asked.least)
    for seed in asked.seeds:
        for name in asked.systems:
            go(asked, out, rows, name, seed)


def go(asked: argparse.Namespace, out: Path, rows: list[Row], name: str, seed: int) -> None:
    """One system with one seed, and its peer."""
    settings = settings_of(name, asked.env)
    there = {(row["who"], row["seed"]) for row in rows if row["settings"] == settings}
    rows[:] = [row for row in rows if row["who"] != name or row["settings"] == settings]
    head = {"seed": seed, "settings": settings}
    if (name, seed) not in there:
        with tempfile.TemporaryDirectory() as place:
            rows.append({"who": name, **head, **ours(name, asked.env, seed, asked.least, Path(place))})
        write(out, rows, asked.env, asked.least)
    for who, how in peers_of(name, asked):
        if (who, seed) in there:
            continue
        python, steps = asked.peers / "sb3" / "bin" / "python", settings["budget"]
        rows.append({"who": who, **head, **peer(name, asked.env, seed, steps, asked.least, python, how)})
        write(out, rows, asked.env, asked.least)


def of_today(row: Row, env: str) -> bool:
    """Whether a row is of the present settings; a peer has its own."""
    return row["who"] not in systems.ordinary() or row["settings"] == settings_of(row["who"], env)


def peers_of(name: str, asked: argparse.Namespace) -> list[tuple[str, str]]:
    """What they are called in the table, and their settings."""
    if not asked.peers or name not in PEERS:
        return []
    with_defaults = f"Stable-Baselines3 {PEERS[name]}", "defaults"
    return [with_defaults, (f"{with_defaults[0]}, RL Zoo", "zoo")] if asked.zoo and name == "ppo" else [with_defaults]


if __name__ == "__main__":
    main()
