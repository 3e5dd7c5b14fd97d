"""The talk's plots of GA3C on this machine, from runs of `polyplay train ga3c`.

    python bench/talk.py schedule           # the scheduler at work on Pong and Boxing
    python bench/talk.py batches            # convergence against the minimum training batch
    python bench/talk.py schedule --draw    # only draw and tabulate what is there

Reports and decisions of every run are kept in results/talk/.
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

from common import RESULTS, ROOT, Row, about, command_line, lines_about, table
from runs import thin

from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.common.files import read_lines, write_json

KEPT = RESULTS / "talk"
RUNS = {
    "schedule": {
        "pong": shlex.split("--env ALE/Pong-v5 --schedule climb --agents 1 --predictors 1 --trainers 1"),
        "boxing": shlex.split("--env ALE/Boxing-v5 --schedule climb --agents 48 --predictors 6 --trainers 6"),
    },
    "batches": {f"min-batch-{n}-s{k}": ["--min-batch", str(n), "--seed", str(k)] for n in (0, 20, 40) for k in (0, 1)},
}
CARTPOLE = (
    "--env CartPole-v1 --network mlp --gamma 0.98 --reward scale --reduction mean --optimizer adam --optimizer-eps 1e-5"
)
CARTPOLE += (
    " --learning-rate 1e-3 --max-grad-norm 0.5 --entropy-cost 0 --agents 8 --predictors 1 --trainers 1 --schedule off"
)
EACH = {
    "schedule": ["--min-batch", "40", "--report-every", "2"],
    "batches": ["--report-every", "1", *shlex.split(CARTPOLE)],
}


def run(what: str, name: str, asked: argparse.Namespace) -> None:
    words = [*RUNS[what][name], *EACH[what], "--minutes", f"{asked.minutes:g}", "--no-tensorboard"]
    print(f"$ polyplay train ga3c {shlex.join(words)}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        at = Path(place) / "run"
        started = about()
        subprocess.run(
            [sys.executable, "-m", "polyplay", "train", "ga3c", *words, "--run", str(at)], cwd=ROOT, check=True
        )
        kept = KEPT / f"{what}-{name}"
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("metrics.jsonl", "decisions.jsonl"):
            rows = list(read_lines(at / file))
            rows = rows if file == "decisions.jsonl" else thin(rows)
            (kept / file).write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        write_json(kept / "about.json", {**started, "words": words})


def read(what: str, name: str) -> tuple[list[Row], list[Row]]:
    kept = KEPT / f"{what}-{name}"
    return list(read_lines(kept / "metrics.jsonl")), list(read_lines(kept / "decisions.jsonl"))


def figure(rows: int, columns: int) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(5 * columns, 2.1 * rows), dpi=140, layout="constrained", facecolor="white")


def draw(panel: Any, x: list[float], lines: dict[str, list[Any]], label: str) -> None:
    for colour, (name, values) in zip(COLOURS, lines.items(), strict=False):
        panel.plot(x, [v if v is not None else float("nan") for v in values], color=colour, label=name, lw=1.2)
    panel.set_ylabel(label, color=INK)
    panel.grid(color=FAINT)
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize=8, loc="upper left")


def schedule() -> None:
    """Four panels a game: rates, queues and batches, the three numbers, CPU."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = [n for n in RUNS["schedule"] if (KEPT / f"schedule-{n}").exists()]
    picture = figure(4, len(names))
    panels = picture.subplots(4, len(names), squeeze=False, sharex="col")
    for j, name in enumerate(names):
        rows, _ = read("schedule", name)
        x = [r["wall_seconds"] for r in rows]

        def of(key: str, rows: list[Row] = rows) -> list[Any]:
            return [r.get(key) for r in rows]

        panels[0, j].set_title(name, color=INK)
        draw(panels[0, j], x, {"PPS": of("pps"), "TPS × 10": [10 * v if v else v for v in of("tps")]}, "per second")
        queues = {
            "prediction queue": of("prediction_queue"),
            "training queue": of("queue_depth"),
            "lag": of("lag_mean"),
        }
        draw(panels[1, j], x, queues, "waiting; updates")
        draw(panels[2, j], x, {k: of(k) for k in ("agents", "predictors", "trainers")}, "how many")
        draw(panels[3, j], x, {"of all cores": of("cpu")}, "CPU")
        panels[3, j].set_xlabel("seconds", color=INK)
    FigureCanvasAgg(picture).print_png(str(RESULTS / "talk_schedule.png"))
    found = [{"game": n, **outcome(*read("schedule", n))} for n in names]
    page("talk_schedule", "The scheduler at work", "schedule", names, table(found))


def outcome(rows: list[Row], decisions: list[Row]) -> Row:
    """The beginning against the last third."""
    third = rows[-len(rows) // 3 :]
    first = [r["pps"] for r in rows if r.get("pps")][:5]

    def mean(key: str) -> float:
        values = [r[key] for r in third if r.get(key) is not None]
        return sum(values) / max(1, len(values))

    numbers = {k: rows[-1].get(k) for k in ("agents", "predictors", "trainers")}
    kept = sum(d["kept"] for d in decisions)
    counts = {"decisions": len(decisions), "kept": kept, "PPS at first": sum(first) / max(1, len(first))}
    return {
        **counts,
        "PPS, last third": mean("pps"),
        "TPS": mean("tps"),
        "lag": mean("lag_mean"),
        "CPU": mean("cpu"),
        **numbers,
    }


def batches() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = [n for n in RUNS["batches"] if (KEPT / f"batches-{n}").exists()]
    picture = figure(2, 2)
    panels = picture.subplots(1, 2, sharey=True)
    colours, found = dict(zip((0, 20, 40), COLOURS, strict=False)), []
    for name in names:
        n, seed = (int(word.strip("s")) for word in name.split("-")[2:])
        rows, _ = read("batches", name)
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
    page("talk_batches", "Convergence against the minimum training batch", "batches", names, table(found))


def page(file: str, title: str, what: str, names: list[str], rows: list[str]) -> None:
    texts = [f"# {title}", "", f"![{title}]({file}.png)", "", *rows, ""]
    for name in names:
        told = json.loads((KEPT / f"{what}-{name}" / "about.json").read_text())
        texts += [f"## {name}", "", f"`polyplay train ga3c {shlex.join(told['words'])}`", "", *lines_about(told), ""]
    (RESULTS / f"{file}.md").write_text("\n".join(texts), encoding="utf-8")
    print("\n".join(texts))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("what", choices=list(RUNS))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="+", default=None, help="names of runs")
    parser.add_argument("--draw", action="store_true")
    asked = parser.parse_args()
    for name in [] if asked.draw else asked.only or RUNS[asked.what]:
        run(asked.what, name, asked)
    schedule() if asked.what == "schedule" else batches()


if __name__ == "__main__":
    main()
