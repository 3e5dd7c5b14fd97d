"""What larger batches, older data and more reuse do to OpenAI Five's learning: steps, versions and time to a skill.

    python bench/five_scaling.py batch --steps 3M --seeds 1 2
    python bench/five_scaling.py staleness --steps 3M
    python bench/five_scaling.py reuse --steps 3M

Each arm is a run of `five --preset duel` that differs in one option, for as many heroes' steps. Its rater measures
TrueSkill beside training; thresholds are what the baseline had after half of its steps and after all of them.
Published (Berner et al. 2019, figures 5 and 6): 8 times the batch takes about 2.5 times fewer versions; a staleness of
8 versions, or a reuse of 2 to 3, makes learning about twice as slow.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.population.ratings import RatedVersion, read_rated

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


def main() -> None:
    parser = command_line(__doc__)
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
    main()
