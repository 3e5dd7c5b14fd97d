"""Draws docs/pictures/curve_NAME.png, a learning curve for each system's page, by `polyplay plot` from committed runs.
Returns say nothing in games of two players: alphago_zero has Elo from a table of results, league its agents' Elo, five
and ftw the pictures of their benchmarks. pbt has the scores of its members.

    python docs/curves.py [NAME …]

docs/pictures/made.json keeps the digest of each run that a curve was drawn from; a test compares them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "bench"))
from polyplay.cli import main, plot  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MADE = PICTURES / "made.json"
PONG, REPLAY, SMALL = "bench/results/pong", "bench/results/pong_replay", "bench/results/first_runs"
RUNS = {
    **{name: f"{PONG}/{name}-s*" for name in ("a2c", "a3c", "accel", "ga3c", "impala", "ppo")},
    **{name: f"{REPLAY}/{name}-s*" for name in ("accel_dqn", "apex", "dqn", "gorila", "r2d2", "rainbow")},
    **{name: f"{SMALL}/{name}" for name in ("appo", "sac", "td3", "apex_sac", "apex_dpg", "league")},
    "alphago_zero": "bench/results/connect_four_elo.md",
    **{name: f"bench/results/{name}.json" for name in ("five", "ftw")},
    "pbt": "bench/results/population.json",
}
ELO = re.compile(r"^\| [\d,]+ \| (\d+) \| (\d+) \| (\S+) to (\S+) \|", re.MULTILINE)


def runs_of(name: str) -> list[Path]:
    """Return the directories of the runs that a system's curve is drawn from."""
    return sorted(ROOT.glob(RUNS[name]))


def digest(name: str) -> str:
    """Return a digest of all files of these runs."""
    found = hashlib.sha256()
    for run in runs_of(name):
        for file in [run] if run.is_file() else sorted(file for file in run.rglob("*") if file.is_file()):
            found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def picture(name: str) -> Path:
    return PICTURES / f"curve_{name}.png"


def draw_elo(table: Path, out: Path) -> None:
    """Draw Elo over minutes, with its interval, from a table of results."""
    rows = [[float(cell.replace("−", "-")) for cell in row] for row in ELO.findall(table.read_text())]
    minutes, elo, low, high = zip(*sorted(rows), strict=True)
    figure = plot.blank_figure("curves.py", 4.2)
    panel = figure.subplots()
    panel.plot(minutes, elo, color="#0072b2", linewidth=1.8, marker="o", label="the agent, 64 simulations a move")
    panel.fill_between(minutes, low, high, color="#0072b2", alpha=0.18, linewidth=0)
    panel.axhline(0, color="#d55e00", linewidth=1.6, label="tree search, 1,000 random games a move")
    plot.dress(panel, "minutes of wall time", "connect four", "Elo")
    panel.legend(frameon=False)
    plot.write_figure(figure, out)


def draw_five(results: Path, out: Path) -> None:
    """Draw TrueSkill of versions as bench/five.py does."""
    import five

    from polyplay.population.ratings import RatedVersion

    found = json.loads(results.read_text())
    rated = {run: [RatedVersion(**row) for row in of["versions"]] for run, of in found["runs"].items()}
    five.draw(rated, found["references"], out)


def draw_ftw(results: Path, out: Path) -> None:
    """Draw Elo of checkpoints as bench/ftw.py does."""
    import ftw

    found = json.loads(results.read_text())
    ftw.draw({run: of["line"] for run, of in found["runs"].items()}, found["tournament"], out)


def draw_pbt(results: Path, out: Path) -> None:
    """Draw the best and the median score of the members of each population, with copies and without."""
    rows = json.loads(results.read_text())["rows"]
    seeds = sorted({row["seed"] for row in rows})
    figure = plot.blank_figure("curves.py", 4.2)
    panels = figure.subplots(1, len(seeds))
    for panel, seed in zip(panels, seeds, strict=True):
        for arm, color in {"PBT": "#0072b2", "random search": "#d55e00"}.items():
            own = [row for row in rows if (row["arm"], row["seed"]) == (arm, seed)]
            steps = [row["agent steps of each"] for row in own]
            for which, line in (("best", "-"), ("median", "--")):
                scores = [row[which] for row in own]
                panel.plot(steps, scores, line, color=color, linewidth=1.8, label=f"{arm}: {which} of 8 members")
        up = "mean return of 100 games" if panel is panels[0] else ""
        plot.dress(panel, "agent steps of each member", f"ALE/Breakout-v5, seed {seed}", up, counts=True)
    panels[0].legend(frameon=False)
    plot.write_figure(figure, out)


OTHERS = {"alphago_zero": draw_elo, "five": draw_five, "ftw": draw_ftw, "pbt": draw_pbt}


def draw(name: str) -> None:
    """Draw one curve. Raises SystemExit: there is no run, or the command failed."""
    runs, out = runs_of(name), picture(name)
    if name in OTHERS:
        return OTHERS[name](runs[0], out)
    games = ["--games", "20"] if SMALL in RUNS[name] else []
    words = ["plot", *(str(run.relative_to(ROOT)) for run in runs), "--out", str(out), "--pool", "none", *games]
    if name == "league":
        words = ["population", *map(str, runs), "--picture", str(out)]
    if not runs or main.main(words):
        raise SystemExit(f"{name}: no curve from {RUNS[name]}")


if __name__ == "__main__":
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    for name in sys.argv[1:] or RUNS:
        draw(name)
        made[name] = digest(name)
    MADE.write_text(json.dumps(dict(sorted(made.items())), indent=1) + "\n")
