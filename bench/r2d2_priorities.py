"""Which sequences R2D2 learns from: priorities in its replay, and how many sequences are never drawn.

    python bench/r2d2_priorities.py --name NAME

`r2d2` with its preset `paper` on Pong, made small: sequences of 20 after 10 instead of 80 after 40, a replay of 10,000
agent steps, a small network, 60,000 agent steps in one thread. Five sequences arrive for each that is drawn, as in the
preset. No timing: what it prints does not depend on the machine's speed. The run's last checkpoint is opened and its
replay read. Rows of earlier measurements stay in the file; one of the same name is replaced.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, table

import polyplay
from polyplay.buffers import replay_kernels
from polyplay.core import checkpoint
from polyplay.core.files import write_json
from polyplay.runs.load import crew_of, load_run

SMALL = {"network": "a3c", "core_size": 64, "unroll": 10, "sequence": 20, "burn_in": 10, "batch": 8}
SMALL |= {"capacity": 10_000, "start": 1_250, "target": 50, "learning_rate": 1e-3}
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "greatest": 1.0}


def measure(steps: int, seed: int, directory: Path) -> Row:
    run = polyplay.train(
        "r2d2", run=str(directory / "run"), steps=steps, seed=seed, serial=True, tensorboard=False, **SMALL
    ).directory
    page, settings, options, _ = load_run(run)
    crew = crew_of(options)
    page.build(settings, crew)
    replay = next(role.held_replay for role in crew.roles if role.held_replay)
    buffer = replay.open(0)
    buffer.load(checkpoint.everything(run)[-1] / "replay" / "learn-0")

    metrics, flags = buffer.metrics(), buffer.index.flags
    live = np.flatnonzero(flags & replay_kernels.LIVE)
    drawn = flags[live] & replay_kernels.DRAWN > 0
    priority = buffer.sampler.priorities(live)
    mass = priority**replay.sampler.alpha
    return {
        "drawn / arrived": round(buffer.sampled / buffer.inserted, 3),
        "never sampled": round(metrics["never_sampled"], 3),
        **{name: float(f"{np.quantile(priority, q):.3g}") for name, q in QUANTILES.items()},
        "median if drawn": float(f"{np.median(priority[drawn]):.3g}"),
        "median if not": float(f"{np.median(priority[~drawn]):.3g}"),
        "not drawn yet": round(float(1 - drawn.mean()), 3),
        "their chance": round(float(mass[~drawn].sum() / mass.sum()), 3),
    }


HEAD = """# Priorities of R2D2

`r2d2 paper` made small (bench/r2d2_priorities.py), Pong, one thread. "never sampled" is the share of sequences that
left the replay without having been drawn; p10 to greatest are priorities in the replay at the end of the run. "not
drawn yet" is the share of sequences in it that were not drawn so far, "their chance" the share of all chance that
they have.
""".splitlines()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--name", default="now", help="what the row is called")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "r2d2_priorities", help="results, without an ending")
    asked = parser.parse_args()
    file = asked.out.with_suffix(".json")
    rows = json.loads(file.read_text()) if file.exists() else []
    with tempfile.TemporaryDirectory() as directory:
        found = {"name": asked.name, **measure(asked.steps, asked.seed, Path(directory)), "about": about()}
    rows = [row for row in rows if row["name"] != asked.name] + [found]
    write_json(file, rows)
    text = [*HEAD, "", *table([{k: v for k, v in row.items() if k != "about"} for row in rows])]
    for row in rows:
        text += ["", f"{row['name']}:", "", *lines_about(row["about"])]
    asked.out.with_suffix(".md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
