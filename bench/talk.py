"""The talk's plot of convergence against the minimum training batch, on this machine, from runs of GA3C.

    python bench/talk.py
    python bench/talk.py --draw    # only draw and tabulate what is there

Reports of every run are kept in results/talk/.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, about, command_line, lines_about, table
from runs import thin

from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.core.files import read_lines, write_json

KEPT = RESULTS / "talk"
RUNS = {f"min-batch-{n}-s{k}": ["--min-batch", str(n), "--seed", str(k)] for n in (0, 20, 40) for k in (0, 1)}
CARTPOLE = (
    "--env CartPole-v1 --network mlp --gamma 0.98 --reward scale --reduction mean --optimizer adam --optimizer-eps 1e-5"
)
CARTPOLE += (
    " --learning-rate 1e-3 --max-grad-norm 0.5 --entropy-cost 0 --agents 8 --predictors 1 --trainers 1 --schedule off"
)
EACH = ["--report-every", "1", *shlex.split(CARTPOLE)]


def run(name: str, asked: argparse.Namespace) -> None:
    words = [*RUNS[name], *EACH, "--minutes", f"{asked.minutes:g}", "--no-tensorboard"]
    print(f"$ polyplay train ga3c {shlex.join(words)}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        at = Path(place) / "run"
        started = about()
        subprocess.run(
            [sys.executable, "-m", "polyplay", "train", "ga3c", *words, "--run", str(at)], cwd=ROOT, check=True
        )
        kept = KEPT / f"batches-{name}"
        kept.mkdir(parents=True, exist_ok=True)
        rows = thin(list(read_lines(at / "metrics.jsonl")))
        (kept / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        write_json(kept / "about.json", {**started, "words": words})


def figure(rows: int, columns: int) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(5 * columns, 2.1 * rows), dpi=140, layout="constrained", facecolor="white")


def batches() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = [n for n in RUNS if (KEPT / f"batches-{n}").exists()]
    picture = figure(2, 2)
    panels = picture.subplots(1, 2, sharey=True)
    colours, found = dict(zip((0, 20, 40), COLOURS, strict=False)), []
    for name in names:
        n, seed = (int(word.strip("s")) for word in name.split("-")[2:])
        rows = list(read_lines(KEPT / f"batches-{name}" / "metrics.jsonl"))
        judged = [r for r in rows if r.get("episodic_return_mean") is not None]
        y = [r["episodic_return_mean"] for r in judged]
        label = f"at least {n}" if n else "one chunk"
        for panel, key, scale in zip(panels, ("steps", "wall_seconds"), (1e3, 1.0), strict=True):
            panel.plot([r[key] / scale for r in judged], y, color=colours[n], label="" if seed else label)
        last = rows[-1]
        found.append(
            {
                "transitions an update": label,
                "seed": seed,
                "seconds": last["wall_seconds"],
                "agent steps": last["steps"],
                "updates": last["updates"],
                "lag": last["lag_mean"],
                "mean of 100 games": last["episodic_return_mean"],
            }
        )
    for panel, label in zip(panels, ("thousand agent steps", "seconds"), strict=True):
        panel.set_xlabel(label, color=INK)
        panel.grid(color=FAINT)
    panels[0].set_ylabel("CartPole, mean of 100 games", color=INK)
    panels[0].legend(frameon=False)
    FigureCanvasAgg(picture).print_png(str(RESULTS / "talk_batches.png"))
    page(names, table(found))


def page(names: list[str], rows: list[str]) -> None:
    title = "Convergence against the minimum training batch"
    texts = [f"# {title}", "", f"![{title}](talk_batches.png)", "", *rows, ""]
    for name in names:
        told = json.loads((KEPT / f"batches-{name}" / "about.json").read_text())
        texts += [f"## {name}", "", f"`polyplay train ga3c {shlex.join(told['words'])}`", "", *lines_about(told), ""]
    (RESULTS / "talk_batches.md").write_text("\n".join(texts), encoding="utf-8")
    print("\n".join(texts))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="+", default=None, help="names of runs")
    parser.add_argument("--draw", action="store_true")
    asked = parser.parse_args()
    for name in [] if asked.draw else asked.only or RUNS:
        run(name, asked)
    batches()


if __name__ == "__main__":
    main()
