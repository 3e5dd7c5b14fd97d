"""The first command of the systems' pages whose curve is of no other benchmark: trained, evaluated, and kept.

    python docs/first_runs.py [NAME …]     # seven runs, about ten minutes on two quiet cores

Runs lie in bench/results/first_runs without checkpoints; `python docs/curves.py` draws their curves.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "bench")]
from common import RESULTS, Row, table  # noqa: E402

RUNS = {
    "appo": "--env CartPole-v1",
    "sac": "--env Pendulum-v1",
    "td3": "--env Pendulum-v1",
    "apex_sac": "--preset quick",
    "apex_dpg": "--env Pendulum-v1",
    "league": "--env toy:skirmish --opponents past:0.5 --steps 300k",
    "alphago_zero": "--env game:tic_tac_toe",
}
OUT = RESULTS / "first_runs"
FILES = ("config.json", "metrics.jsonl", "summary.json", "league.json", "matches.jsonl", "episodes.jsonl")
LARGEST = 400_000  # bytes of a file that is kept


def polyplay(*words: str) -> None:
    command = [sys.executable, "-m", "polyplay", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def train(name: str, place: Path) -> None:
    """Train one system, evaluate it, and keep its files."""
    run, kept = place / name, OUT / name
    polyplay("train", name, *RUNS[name].split(), "--run", str(run), "--no-tensorboard", "--quiet")
    if name != "league":  # mean returns do not measure its agents
        polyplay("evaluate", str(run), "--episodes", "100")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    found = [run / file for file in FILES if (run / file).exists() and (run / file).stat().st_size <= LARGEST]
    for file in [*found, *run.glob("evaluation-*.json")]:
        to = kept / ("evaluation.json" if file.stem.startswith("evaluation-") else file.name)
        to.write_text(file.read_text().replace(f"{place}/", "runs/"))


def row(name: str) -> Row:
    read = {file.stem: json.loads(file.read_text()) for file in (OUT / name).glob("*.json")}
    config, summary, score = read["config"], read["summary"], read.get("evaluation")
    shown = (
        f"{score['episodic_return_mean']:.1f} ({score['interval'][0]:.1f} to {score['interval'][1]:.1f})"
        if score
        else ""
    )
    return {
        "command": f"`polyplay train {name} {RUNS[name]}`", "steps": f"{summary['steps']:,}",
        "seconds": round(summary["wall_seconds"]), "score of 100 games (95 % interval)": shown,
        "machine": f"{config['machine']['cpu']}, {config['machine']['cores']} cores", "commit": config["commit"][:12],
    }  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        for name in sys.argv[1:] or RUNS:
            train(name, Path(place))
    rows = [row(name) for name in RUNS if (OUT / name).exists()]
    said = "One run each, seed 0, float32, on a quiet machine: `python docs/first_runs.py`."
    (RESULTS / "first_runs.md").write_text("\n".join(["# First runs", "", said, "", *table(rows), ""]))


if __name__ == "__main__":
    main()
