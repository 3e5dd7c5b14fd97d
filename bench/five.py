"""How well heroes play that `polyplay train five` trained: TrueSkill over its versions, and matches against bots.

    python bench/five.py runs/five runs/five-seed2 --matches 200

TrueSkill is what each run's rater wrote beside training (ratings.jsonl), on a scale where random play is 0. The newest
checkpoint of each run then plays random play and every bot, half of the matches on each side, in the game without
`randomize`; a match is won by its fallen core, else by the health of towers and core.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, commands, lines_about, publish, table

from polyplay.acting.play import (
    PlayOptions,
    load_player,
    play_both_sides,
    policy_player,
    random_player,
    scripted_player,
)
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core import checkpoint
from polyplay.envs.lane import load_bot
from polyplay.evaluation.agent import find_agents
from polyplay.population.judge import rated_games
from polyplay.population.ratings import RatedVersion, read_rated, read_references

SHOWN = 12  # versions of a run's table


def against_bots(run: Path, matches: int) -> list[Row]:
    """Points with a 95 % interval, and matches won, drawn and lost, against each opponent."""
    (agent,) = find_agents(str(run))
    policy, trained = load_player(agent.wired, agent.weights, agent=agent.agent), agent.wired.envs
    envs = rated_games(trained)
    rows = list[Row]()
    for name in ("random", *envs.spec.bots):
        other = random_player(7) if name == "random" else scripted_player(load_bot(envs.spec, name))
        points = play_both_sides(envs, policy_player(policy, PlayOptions(matches, 3)), other, matches, 1)
        spread = 1.96 * float(np.std(points)) / math.sqrt(matches)
        share = {what: f"{np.mean(points == x):.1%}" for what, x in (("won", 1), ("drawn", 0.5), ("lost", 0))}
        rows.append({"against": name, "points": f"{np.mean(points):.1%} ± {spread:.1%}", **share})
    return rows


def rated_of(run: Path) -> list[RatedVersion]:
    """What its rater rated; of a run that surgery made, since then: before that it may have been another game."""
    surgery = run / "surgery.json"
    since = int(json.loads(surgery.read_text())["checkpoint"].rpartition("-")[2]) if surgery.exists() else 0
    return [version for version in read_rated(run) if version.steps >= since]


def versions(rated: list[RatedVersion]) -> list[Row]:
    """So many of a run's versions, evenly spaced."""
    some = [rated[round(i)] for i in np.linspace(0, len(rated) - 1, min(SHOWN, len(rated)))]
    return [
        {
            "version": f"{v.version:,}",
            "heroes' steps": f"{v.steps:,}",
            "minutes": f"{v.wall_seconds / 60:.1f}",
            "TrueSkill": f"{v.skill[0]:.1f} ± {2 * v.skill[1]:.1f}",
            "matches": v.matches,
        }
        for v in some
    ]


def draw(runs: dict[str, list[RatedVersion]], references: dict[str, float], out: Path) -> None:
    """TrueSkill over heroes' steps and over time, ± 2σ; references are dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for (name, rated), color in zip(runs.items(), COLORS, strict=False):
        mu, sigma = (np.array([v.skill[i] for v in rated]) for i in (0, 1))
        for panel, x in zip(
            panels, ([v.steps / 1e6 for v in rated], [v.wall_seconds / 60 for v in rated]), strict=True
        ):
            panel.fill_between(x, mu - 2 * sigma, mu + 2 * sigma, color=color, alpha=0.15, linewidth=0)
            panel.plot(x, mu, color=color, linewidth=1.8, label=name)
    for panel, name in zip(panels, ("million steps of heroes", "minutes"), strict=True):
        for reference, skill in references.items():
            panel.axhline(skill, color=INK, linewidth=0.6, linestyle="--", alpha=0.5)
            end = (1, skill)
            panel.annotate(reference, end, xycoords=("axes fraction", "data"), ha="right", va="bottom", size=8)
        panel.set_xlabel(name, color=INK)
        panel.grid(color=FAINT)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    panels[0].set_ylabel("TrueSkill, random play at 0", color=INK)
    panels[0].legend(frameon=False, labelcolor=INK, loc="upper left")
    figure.savefig(out)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--matches", type=int, default=200, help="against each opponent, an even number")
    parser.add_argument("--name", default="five", help="of the files in bench/results")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    what, text, data = about(), ["# The lane game: who wins", ""], dict[str, Any]()
    text += [*lines_about(what), ""]
    rated = {run.name: rated_of(run) for run in asked.runs}
    for run in asked.runs:
        rows = against_bots(run, asked.matches)
        counters = checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]
        env, minutes = find_agents(str(run))[0].wired.envs.title, counters["wall_seconds"] / 60
        text += [f"`{run.name}` on `{env}`, {counters['steps']:,} steps of heroes, {minutes:.0f} minutes,"]
        text += [f"{asked.matches} matches against each:", "", *table(rows), ""]
        if rated[run.name]:
            text += ["Versions, by its rater:", "", *table(versions(rated[run.name])), ""]
        data[run.name] = {"against": rows, "versions": [vars(v) for v in rated[run.name]]}
    references = read_references(asked.runs[0])
    if references:
        about_them = ", ".join(f"{name} {skill:.1f}" for name, skill in references.items())
        draw({k: v for k, v in rated.items() if v}, references, RESULTS / f"{asked.name}.png")
        text += [f"References: {about_them}.", "", f"![TrueSkill over steps and over time]({asked.name}.png)", ""]
    publish(RESULTS / asked.name, {**what, "runs": data, "references": references}, text)


# What larger batches, older data and more reuse do to OpenAI Five's learning: steps, versions and time to a ski


BATCH = 64  # windows of the baseline's update
ARMS: dict[str, dict[str, list[str]]] = {
    "batch": {f"{n}×": ["--batch", str(BATCH * n), "--capacity", str(2 * BATCH * n)] for n in (1, 2, 4, 8)},
    "staleness": {str(n): ["--staleness", str(n), "--lag", "1"] for n in (0, 1, 2, 4, 8, 32)},
    "reuse": {str(n): ["--sample-reuse", str(n)] for n in (0.5, 1, 2, 4, 8)},
}
BASELINE = {"batch": "1×", "staleness": "0", "reuse": "1"}


def train(arm: str, words: list[str], steps: str, seed: int, rated: int) -> list[RatedVersion]:
    """A run of its own, if there is none yet, and its rated versions."""
    run = Path("runs") / f"five-{arm}-{seed}".replace("×", "x")
    if not (run / "summary.json").exists():
        command = ["train", "five", "--preset", "duel", "--steps", steps, "--seed", str(seed), "--run", str(run)]
        rest = ["--rated", str(rated), "--no-tensorboard", "--resume", "auto", *words]
        subprocess.run([sys.executable, "-m", "polyplay", *command, *rest], check=True)
    return read_rated(run)


def reached(rated: list[RatedVersion], skill: float) -> RatedVersion | None:
    """The first version that has that skill; None: none has."""
    return next((v for v in rated if v.skill[0] >= skill), None)


def half_way(rated: list[RatedVersion]) -> float:
    """The skill after half of the steps."""
    steps = [v.steps for v in rated]
    return float(np.interp(steps[-1] / 2, steps, [v.skill[0] for v in rated]))


def row_of(arm: str, rated: list[RatedVersion], threshold: float, base: RatedVersion | None) -> Row:
    found, last = reached(rated, threshold), rated[-1]
    row: Row = {"arm": arm, "TrueSkill at the end": f"{last.skill[0]:.1f} ± {2 * last.skill[1]:.1f}"}
    if found is None:
        return row | {"heroes' steps": "not reached", "versions": "", "minutes": "", "versions, baseline ÷ its": ""}
    faster = f"{base.version / found.version:.2f}" if base is not None and found.version else ""
    about_it = {"heroes' steps": f"{found.steps:,}", "versions": f"{found.version:,}"}
    return row | about_it | {"minutes": f"{found.wall_seconds / 60:.1f}", "versions, baseline ÷ its": faster}


def run_five_scaling() -> None:
    """What larger batches, older data and more reuse do to OpenAI Five's learning: steps, versions and time to a skill.

        python bench/five.py scaling batch --steps 3M --seeds 1 2
        python bench/five.py scaling staleness --steps 3M
        python bench/five.py scaling reuse --steps 3M

    Each arm is a run of `five --preset duel` that differs in one option, for as many heroes' steps. Its rater measures
    TrueSkill beside training; thresholds are what the baseline had after half of its steps and after all of them.
    Published (Berner et al. 2019, figures 5 and 6): 8 times the batch takes about 2.5 times fewer versions; a staleness
    of 8 versions, or a reuse of 2 to 3, makes learning about twice as slow.
    """
    parser = command_line(run_five_scaling.__doc__)
    parser.add_argument("what", choices=[*ARMS])
    parser.add_argument("--steps", default="3M")
    parser.add_argument("--rated", type=int, default=200, help="updates from one rated version to the next")
    parser.add_argument("--arms", nargs="+", help="some of them, the baseline among them (none: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    asked = parser.parse_args()
    what, data = about(), dict[str, Any]()
    text = [f"# OpenAI Five's learning and its {asked.what}", "", *lines_about(what), ""]
    for seed in asked.seeds:
        arms = {}
        for arm, words in ((arm, words) for arm, words in ARMS[asked.what].items() if arm in (asked.arms or [arm])):
            every = max(1, asked.rated // (int(arm[0]) if asked.what == "batch" else 1))
            arms[arm] = train(f"{asked.what}-{arm}", words, asked.steps, seed, every)
        base = arms[BASELINE[asked.what]]
        data[str(seed)] = {"rated": {arm: [vars(v) for v in rated] for arm, rated in arms.items()}}
        for when, threshold in (("half of its steps", half_way(base)), ("all of them", base[-1].skill[0])):
            rows = [row_of(arm, rated, threshold, reached(base, threshold)) for arm, rated in arms.items()]
            about_it = f"to a TrueSkill of {threshold:.1f}, which the baseline had after {when}"
            text += [f"Seed {seed}, {about_it}:", "", *table(rows), ""]
            data[str(seed)][when] = {"threshold": threshold, "rows": rows}
    publish(RESULTS / f"five_{asked.what}", {**what, "seeds": data}, text)


if __name__ == "__main__":
    sys.exit(commands({"": main, "scaling": run_five_scaling}))
