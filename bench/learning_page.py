"""What a finished run of the learning queue says, and the page of all of them beside published curves."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path

from common import HERE, ROOT, Row, table
from runs import command, commit, thin, whole

from polyplay.core.files import read_lines, read_object
from polyplay.core.machine import now

PAGE = ROOT / "docs" / "results" / "learning.md"
POINTS = 300  # of a curve
GAMES = 100  # the last, of which a mean is taken
PUBLISHED = HERE / "published_curves.csv"
KINDS = {
    "ppo": ("baselines ppo2", "SB3 ppo"),
    "a2c": ("baselines a2c", "SB3 a2c"),
    "dqn": ("baselines deepq", "SB3 dqn"),
}
BARS = "▁▂▃▄▅▆▇█"


def result_of(settings: Row, group: str, run: Path, core_seconds: float, evaluation: Row) -> Row:
    """A finished run as one small document."""
    config = read_object(run / "config.json")
    games = whole(read_lines(run / "episodes.jsonl", "frames", "episodic_return"))
    lines = whole(read_lines(run / "metrics.jsonl", "frames", "steps"))
    reports = [r for r in lines if r.get("episodic_return_mean") is not None]
    last = [game["episodic_return"] for game in games[-GAMES:]]
    return {
        "name": run.name,
        "settings": settings,
        "group": group,
        "command": command(config, run.name),
        **{k: config[k] for k in ("machine", "versions", "started")},
        "commit": commit(config),
        "finished": now(),
        "steps": lines[-1]["steps"],
        "frames": lines[-1]["frames"],
        "core_seconds": round(core_seconds, 1),
        "training": {"mean": statistics.fmean(last) if last else None, "games": len(last)},
        "evaluation": evaluation,
        "curve": [[r["steps"], round(r["episodic_return_mean"], 2)] for r in thin(reports, POINTS)],
    }


def compact(result: Row) -> str:
    """A result as JSON, a line for each of its parts."""
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in result.items())
    return f"{{\n{lines}\n}}\n"


def published(system: str, env: str, steps: int) -> list[float]:
    """What the field has published of this algorithm at this number of agent steps."""
    game = env.removeprefix("ALE/").removesuffix("-v5")
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["game"] == game and int(r["agent_steps"]) == steps]
    return [float(r["mean"]) for who in KINDS.get(system, ()) for r in rows if r["algorithm"] == who]


def sparkline(values: list[float], width: int = 24) -> str:
    """A curve in one line of text."""
    if not values:
        return "–"
    low, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in thin(values, width))


def shown(result: Row) -> Row:
    """A line of the page."""
    s, e, interval = result["settings"], result["evaluation"], result["evaluation"].get("interval")
    score = f"{e['episodic_return_mean']:,.1f}" + (f" ({interval[0]:,.1f} to {interval[1]:,.1f})" if interval else "")
    known = " / ".join(f"{value:,.0f}" for value in published(s["system"], s["env"], s["steps"]))
    mean = result["training"]["mean"]
    return {
        "game": s["env"].removeprefix("ALE/").removesuffix("-v5"),
        "system": s["system"],
        "seed": s["seed"],
        "agent steps": f"{result['steps']:,}",
        "core-hours": round(result["core_seconds"] / 3600, 2),
        "training": "–" if mean is None else f"{mean:,.1f}",
        "evaluation": score,
        "published": known or "–",
        "curve": sparkline([y for _, y in result["curve"]]),
        "result": f"[{result['commit'][:9]}](../../bench/results/learning/{result['name']}.json)",
    }


def sections(results: Path) -> str:
    """All results, by heading, game and system."""
    found = [read_object(path) for path in sorted(results.glob("*.json"))]
    found.sort(key=lambda r: (r["settings"]["env"], r["settings"]["system"], r["settings"]["seed"]))
    lines = []
    for group in sorted({result["group"] for result in found}):
        rows = [result for result in found if result["group"] == group]
        commands = [f"- `{result['command']}`" for result in rows]
        lines += [f"## {group or 'Runs'}", "", *table([shown(r) for r in rows]), "", "Commands:", "", *commands, ""]
    return "\n".join(lines).rstrip() or "No run has finished yet."


def write_page() -> None:
    """Bring the page of the documentation up to date."""
    sys.path.insert(0, str(ROOT))
    from docs import generate

    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(generate.filled(PAGE, text), encoding="utf-8")
