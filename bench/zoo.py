"""Every system as it starts on an environment that is no Atari game: no option but --env and --seed.

    python bench/zoo.py CartPole-v1 --least 450 --seeds 0 1 2 3 4
    python bench/zoo.py CartPole-v1 --systems ppo dqn --peers PEERS     # beside Stable-Baselines3's defaults
    python bench/zoo.py CartPole-v1 --systems ppo --peers PEERS --zoo   # and its PPO with RL Baselines3 Zoo's settings

Each run is `polyplay train SYSTEM --env ENV --seed S` in a process of its own, then 100 games by `polyplay evaluate`.
Peers get as many steps. Rows are kept in bench/results/zoo/ENV.json; what is there of the present settings is not run
again. A second zoo.py in another checkout may run other seeds beside it: `--merge FILE.json` takes over its rows.
`reached` is when the mean return of the last 100 games first passed --least, in seconds of training. ENV.png has these
means over agent steps, a line per system or peer and its seeds.

twelve: on each environment the system of TWELVE by its default settings, then Stable-Baselines3 with the Zoo's, as many
steps of the environment as the Zoo gives it. Scores are of the same 100 games for both, by their likeliest actions. The
bound, for the mean of the last 20 games while learning, is the Zoo's published score less its deviation, or less 2 % if
that is more. Rows are kept, and none is made again.

    python bench/zoo.py sooner --peers PEERS                            # ppo against the seconds in bench/results/zoo

    python bench/zoo.py twelve --peers PEERS --envs Pendulum-v1 --seeds 0   # twelve environments, in turn

sooner: on six environments `ppo` with its preset, then Stable-Baselines3's PPO with the Zoo's settings, each until it
reaches the bound. Before that a short run leaves compiled updates in the cache (--cold: it does not). The peer gives up
after --patience times the seconds that ours took.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib

matplotlib.use("Agg")
import numpy as np
from common import RESULTS, ROOT, Row, about, command_line, commands, lines_about, publish, table, verdict
from matplotlib import pyplot

from polyplay import api, systems
from polyplay.core.files import read_lines
from polyplay.core.numbers import interval_name, mean_interval
from polyplay.runs import options

LIMIT = 900.0  # seconds of one run that shall reach a bound
LONGEST = 40_000.0  # seconds of any
PEERS = {name: name for name in ("a2c", "ppo", "dqn", "sac", "td3")}  # system: what Stable-Baselines3 calls it
SETTLED = 20  # games before a mean return counts
WINDOW, STARTS, SLACK = 20, 10_000, 0.02  # twelve: games of a mean, the seed of the first game, of a published score
POINTS = 100  # of a curve


def ours(name: str, env: str, seed: int, least: float, place: Path, *more: str, window: int = 100) -> Row:
    """more: options of the run. window: games of a mean; below 100, the score is of the twelve's games."""
    run = place / f"{name}-{seed}"
    begun, used = time.monotonic(), cpu_seconds()
    train = ["train", name, "--env", env, "--seed", str(seed), "--run", str(run), "--no-tensorboard", *more]
    done = polyplay(*train)
    seconds, used = time.monotonic() - begun, cpu_seconds() - used
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:]}
    if window < 100:
        returns = play_games(run, env)
    else:
        greedy = ["--greedy"] if name in ("sac", "td3") else []  # as their peers are scored
        polyplay("evaluate", str(run), "--episodes", "100", *greedy)
        (file,) = run.glob("evaluation-*.json")
        returns = json.loads(file.read_text())["returns"]
    games = list(read_lines(run / "episodes.jsonl", "wall_seconds", "steps", "episodic_return"))
    summary = json.loads((run / "summary.json").read_text())
    learnt = {
        "steps": summary["steps"],
        "seconds": seconds,
        "cpu": used,
        "reached": first(games, least, window),
        "curve": curve(games, window),
    }
    return {**learnt, "returns": returns}


def play_games(run: Path, env: str) -> list[float]:
    """The returns of 100 games by the likeliest actions, game i from seed STARTS + i, as the peer's script has them."""
    agent, world, returns = api.load(run), gymnasium.make(env), []
    for i in range(100):
        (seen, _), state, total, over = world.reset(seed=STARTS + i), None, 0.0, False
        while not over:
            action, state = agent.act(seen, state, greedy=True)
            for _ in range(agent.spec.frames_per_step):
                seen, reward, ended, out_of_time, _ = world.step(action)
                total, over = total + float(reward), ended or out_of_time
                if over:
                    break
        returns.append(total)
    return returns


def cpu_seconds() -> float:
    """Of all children that have ended, and theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def curve(games: list[Row], window: int = 100) -> list[list[float]]:
    """Mean returns of the last games while it learnt: [agent steps, return], at most POINTS."""
    means = [(game["steps"], mean) for game, mean in zip(games, moving(games, window), strict=True)]
    return [list(point) for point in means[SETTLED :: len(means) // POINTS + 1]]


def moving(games: list[Row], window: int = 100) -> list[float]:
    """After every game the mean return of the last `window`."""
    sums = np.cumsum([0.0, *(game["episodic_return"] for game in games)])
    ends = np.arange(1, len(sums))
    begins = np.maximum(ends - window, 0)
    return ((sums[ends] - sums[begins]) / (ends - begins)).tolist()


def first(games: list[Row], least: float, window: int = 100) -> float | None:
    """When the mean of the last `window` games first reached `least`."""
    passed = (
        game for game, mean in list(zip(games, moving(games, window), strict=True))[SETTLED - 1 :] if mean >= least
    )
    return next((float(game["wall_seconds"]) for game in passed), None)


def polyplay(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", "polyplay", *words], {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=LONGEST)


def peer(
    name: str,
    env: str,
    seed: int,
    steps: int,
    least: float,
    python: Path,
    how: str,
    *more: str,
    cap: float | None = None,
) -> Row:
    """cap: seconds; it then ends as soon as it has reached the bound, and is not evaluated."""
    words = [
        "--algo",
        PEERS[name],
        "--env",
        env,
        "--steps",
        str(steps),
        "--seed",
        str(seed),
        "--target",
        str(least),
    ]
    words += ["--settings", how, *more, *([] if cap is None else ["--cap", str(cap)])]
    script, used = ROOT / "bench" / "peers" / "sb3_gymnasium.py", cpu_seconds()
    done = subprocess.run([str(python), str(script), *words], capture_output=True, text=True, timeout=2 * LONGEST)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:]}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return {**found, "cpu": cpu_seconds() - used}


# environment: our system, Stable-Baselines3's, agent steps, the Zoo's published score and its deviation over games
TWELVE: dict[str, tuple[str, str, int, float, float]] = {
    "CartPole-v1": ("ppo", "ppo", 100_000, 500.0, 0.0),
    "Acrobot-v1": ("ppo", "ppo", 1_000_000, -73.5, 18.2),
    "MountainCar-v0": ("dqn", "dqn", 120_000, -100.8, 9.9),
    "LunarLander-v3": ("ppo", "ppo", 1_000_000, 242.1, 31.8),
    "LunarLanderContinuous-v3": ("sac", "sac", 500_000, 260.4, 65.5),
    "Pendulum-v1": ("sac", "sac", 20_000, -157.0, 88.7),
    "BipedalWalker-v3": ("sac", "sac", 500_000, 297.7, 33.1),
    "HalfCheetah-v5": ("td3", "td3", 1_000_000, 9655.7, 969.9),
    "Hopper-v5": ("td3", "td3", 1_000_000, 3606.4, 4.0),
    "Walker2d-v5": ("td3", "td3", 1_000_000, 4717.8, 46.3),
    "Ant-v5": ("td3", "td3", 1_000_000, 5813.3, 589.8),
    "MountainCarContinuous-v0": ("sac", "sac", 50_000, 94.7, 1.1),
}
BOUNDS = {
    "CartPole-v1": 450.0,
    "Acrobot-v1": -100.0,
    "Pendulum-v1": -300.0,
    "LunarLander-v3": 150.0,
    "BipedalWalker-v3": 200.0,
    "Hopper-v5": 1500.0,
}
FASTER, SAME = 0.5, "Pendulum-v1"  # of the seconds before; where nothing is asked for


def ours_until(env: str, seed: int, least: float, cold: bool, root: Path = ROOT) -> Row:
    """A run that ends at the bound, or with its preset's steps. root: the checkout."""
    train = ["train", "ppo", "--env", env, "--seed", str(seed), "--no-tensorboard", "--quiet"]
    with tempfile.TemporaryDirectory() as place:
        if not cold:
            polyplay(*train, "--run", f"{place}/first", "--compile", "on", "--steps", "10k")
        run, used = Path(place) / "run", cpu_seconds()
        done = polyplay(*train, "--run", str(run), "--until-return", str(least), "--report-every", "1", root=root)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1:]}
        games = list(read_lines(run / "episodes.jsonl", "wall_seconds", "steps", "episodic_return"))
    return {"reached": first(games, least), "steps": games[-1]["steps"], "cpu": cpu_seconds() - used}


def before(env: str, seed: int) -> float | None:
    """The seconds of ppo in bench/results/zoo: with this seed, or else the mean of those there are."""
    rows = json.loads((RESULTS / "zoo" / f"{env}.json").read_text())["rows"]
    found = {row["seed"]: row["reached"] for row in rows if row["who"] == "ppo" and row.get("reached")}
    return found.get(seed) or (sum(found.values()) / len(found) if found else None)


def sooner() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--envs", nargs="+", choices=BOUNDS, default=list(BOUNDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--peers", type=Path, help="the folder with the environment sb3 (bench/peers/README.md)")
    parser.add_argument("--before", type=Path, help="a checkout of another commit, which runs too, in turn")
    parser.add_argument("--patience", type=float, default=2.0, help="of the peer: times our seconds, and 20 s at least")
    parser.add_argument("--cold", action="store_true", help="with whatever the cache has")
    parser.add_argument("--out", type=Path, default=RESULTS / "zoo" / "sooner")
    asked = parser.parse_args()
    what, rows = about(), list[Row]()
    what["command"] = what["command"].replace(str(asked.peers), "PEERS")
    what["patience"], what["cold"] = asked.patience, asked.cold
    if asked.before:
        what["command"] = what["command"].replace(str(asked.before), "BEFORE")
        what["before"] = subprocess.check_output(["git", "-C", asked.before, "rev-parse", "HEAD"], text=True).strip()
    for env in asked.envs:
        for seed in asked.seeds:
            least = BOUNDS[env]
            if asked.before:
                old = ours_until(env, seed, least, True, asked.before.resolve())
                row: Row = {"env": env, "seed": seed, "before": old.get("reached"), "old": old}
            else:
                row = {"env": env, "seed": seed, "before": before(env, seed)}
            row["ours"] = ours_until(env, seed, least, asked.cold)
            if asked.peers:
                cap = max(20.0, asked.patience * (row["ours"].get("reached") or row["before"] or LIMIT))
                python, steps = asked.peers / "sb3" / "bin" / "python", settings_of("ppo", env)["frames"]
                row["peer"] = peer("ppo", env, seed, steps, least, python, "zoo", cap=cap)
                row["peer"].pop("curve", None)
            print(json.dumps(row), flush=True)
            rows.append(row)
            publish(asked.out, {**what, "rows": rows}, sooner_page(what, rows))


def sooner_page(what: Row, rows: list[Row]) -> list[str]:
    text = ["# Seconds until the score, before and now", "", *lines_about(what), ""]
    shown = []
    for row in rows:
        mine, theirs = row["ours"].get("reached"), row.get("peer", {})
        late = f"> {theirs['seconds']:.0f}" if theirs.get("seconds") else theirs.get("error", ["–"])[-1]
        shown.append(
            {
                "environment": row["env"],
                "bound": BOUNDS[row["env"]],
                "seed": row["seed"],
                "before, s": row["before"],
                "now, s": mine or row["ours"].get("error", ["–"])[-1],
                "now / before": mine / row["before"] if mine and row["before"] else None,
                "Stable-Baselines3, RL Zoo, s": f"{theirs['reached']:.1f}" if theirs.get("reached") else late,
                "steps": row["ours"].get("steps"),
            }
        )
    text += [*table(shown), ""]
    then = f"commit {what['before']}, in turn" if "before" in what else "as in ENV.md of this folder, another machine's"
    text += [
        "Seconds of training until the mean return of the last 100 games first passed the bound.",
        "Ours with what the cache has." if what["cold"] else "Ours with its updates compiled in an earlier run.",
        f"*> N*: not reached within N s, which is {what['patience']} times our seconds (at least 20 s), or as many",
        f"steps as ours has. *Before*: {then}.",
        "",
    ]
    for env in dict.fromkeys(row["env"] for row in rows):
        of = [row for row in rows if row["env"] == env]
        shares = [row["ours"].get("reached", 1e9) / row["before"] for row in of if row["before"]]
        if env != SAME and shares:
            text.append(verdict(f"{env}, now / before", sum(shares) / len(shares), most=FASTER))
        if all("peer" in row for row in of):
            won = [ahead(row) for row in of]
            text.append(f"- {env}: sooner than Stable-Baselines3 with {sum(won)} of {len(won)} seeds")
    return text


def ahead(row: Row) -> bool:
    """Whether ours reached the bound before the peer did."""
    mine, theirs = row["ours"].get("reached"), row["peer"].get("reached")
    return mine is not None and "error" not in row["peer"] and (theirs is None or mine < theirs)


def twelve() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--envs", nargs="+", choices=TWELVE, default=list(TWELVE))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--peers", type=Path, required=True, help="the folder with the environment sb3")
    parser.add_argument("--out", type=Path, default=RESULTS / "zoo" / "twelve")
    asked = parser.parse_args()
    file = asked.out.with_suffix(".json")
    rows: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = [row for row in rows if row.get("window") == WINDOW]  # measured so
    python = asked.peers / "sb3" / "bin" / "python"
    for env, seed in ((env, seed) for env in asked.envs for seed in asked.seeds):
        mine, theirs, steps, score, deviation = TWELVE[env]
        for who in ("ours", "sb3"):
            if any((row["who"], row["env"], row["seed"]) == (who, env, seed) for row in rows):
                continue
            what, bound = about(), score - max(deviation, SLACK * abs(score))
            if who == "ours":
                with tempfile.TemporaryDirectory() as place:
                    found = ours(mine, env, seed, bound, Path(place), "--frames", str(steps), window=WINDOW)
            else:
                same = ["--starts", str(STARTS), "--window", str(WINDOW)]
                found = peer(theirs, env, seed, steps, bound, python, "zoo", *same)
            head = {"who": who, "env": env, "seed": seed, "system": mine if who == "ours" else theirs, "window": WINDOW}
            rows.append({**head, "commit": what["commit"], "machine": what["machine"], **found})
            what["command"] = what["command"].replace(str(asked.peers), "PEERS")
            publish(asked.out, {**what, "rows": rows}, twelve_page(what, rows))


def twelve_page(what: Row, rows: list[Row]) -> list[str]:
    """Scores and seconds side by side, environment by environment."""
    text = ["# Twelve environments, beside Stable-Baselines3 with the Zoo's settings", "", *lines_about(what), ""]
    envs = [env for env in TWELVE if {row["who"] for row in rows if row["env"] == env} == {"ours", "sb3"}]
    pairs = [[side(rows, who, env) for who in ("ours", "sb3")] for env in envs]
    better = sum(mine["IQM"] >= theirs["IQM"] for mine, theirs in pairs)
    first = sum(mine["seconds"] < theirs["seconds"] for mine, theirs in pairs)
    text += [
        f"Of {len(envs)} environments measured, ours scores at least as much in {better}, and is sooner in {first}."
    ]
    shown = [
        {"environment": env, "who": who, "steps": TWELVE[env][2], "the Zoo says": TWELVE[env][3], **shown_of(one)}
        for env, pair in zip(envs, pairs, strict=True)
        for who, one in zip(("ours", "sb3"), pair, strict=True)
    ]
    return [*text, "", *table(shown)]


def side(rows: list[Row], who: str, env: str) -> Row:
    """What one of the two has reached: the interquartile mean over seeds, and the mean seconds to the bound."""
    own = [r for r in rows if (r["who"], r["env"]) == (who, env) and "returns" in r]
    scores = sorted(sum(r["returns"]) / len(r["returns"]) for r in own)
    middle = scores[len(scores) // 4 : len(scores) - len(scores) // 4]
    passed = [r["reached"] for r in own if r["reached"] is not None]
    all_passed = bool(passed) and len(passed) == len(own)
    found = {"seeds": len(own), "scores": scores, "passed": len(passed)}
    found["IQM"] = sum(middle) / len(middle) if middle else -math.inf
    found["seconds"] = sum(passed) / len(passed) if all_passed else math.inf
    return {**found, "whole": sum(r["seconds"] for r in own) / max(len(own), 1)}


def shown_of(one: Row) -> Row:
    """Its cells."""
    low, high = one["scores"][:1], one["scores"][-1:]
    return {
        "seeds": one["seeds"],
        "IQM": round(one["IQM"], 1),
        "range": f"{low[0]:.1f} to {high[0]:.1f}" if low else "–",
        "s to the bound": f"{one['seconds']:.0f}"
        if math.isfinite(one["seconds"])
        else f"{one['passed']} seeds reach it",
        "s of the run": round(one["whole"]),
    }


def settings_of(name: str, env: str) -> Row:
    settings, chosen, _ = options.resolve(systems.load(name), env=env)
    return {"preset": chosen.preset, **options.to_json(settings)}


def summary(rows: list[Row], least: float) -> list[Row]:
    """A row per system or peer: pooled over seeds."""
    found, seeds = [], len({row["seed"] for row in rows})
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
                interval_name(seeds): f"{low:.1f} to {high:.1f}",
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
        "Score: 100 games by `polyplay evaluate` after the whole run, a mean per seed; interval or range over seeds. "
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
        python, steps = asked.peers / "sb3" / "bin" / "python", settings["frames"]
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
    sys.exit(commands({"": main, "sooner": sooner, "twelve": twelve}))
