"""What the core of two clocks and the auxiliary tasks cost, and how near training comes to what its parts allow.

    python bench/ftw_speed.py --seconds 2 --rounds 3

Parts are CPU microseconds per agent step on one core, float32: the game for 64 lanes, acting for a player's 16 lanes,
and an update of 16 rollouts of 50 steps. Arms take turns; ratios are taken within a round. The limit is cores ÷ the sum
of the parts. Beside it a run of `polyplay train ftw --preset quick`, whose first third does not count.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay.core.files import read_lines
from polyplay.core.machine import cores
from polyplay.core.tree import Batch
from polyplay.learning.returns import LossOutput
from polyplay.nets.layers import Tape
from polyplay.systems import ftw
from polyplay.systems.ftw import quick
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import CostProfile

ARMS = {
    "no core": {"core": "none", "auxiliary": "none"},
    "LSTM": {"core": "lstm", "auxiliary": "none"},
    "two clocks": {"auxiliary": "none"},
    "two clocks, auxiliary tasks": {},
}
MOST = {"two clocks / LSTM": 1.5, "auxiliary tasks / without": 1.4}
LEAST = 0.85  # of what the parts allow


class Profile(CostProfile):
    """Predicts rewards too, from as many examples as a learner draws."""

    def score(self, rows: Batch, state: Batch, tape: Tape | None = None) -> LossOutput:
        obs = {k: v[:3] for k, v in rows["obs"].items()}
        return super().score({**rows, "recent": obs, "recent_reward": torch.zeros(rows["first"].shape[1])}, state, tape)


def profile_of(given: Row) -> Profile:
    crew, config = Crew(0), replace(quick(), **given)
    envs = ftw.build(config, crew).envs
    return Profile(envs, next(role.spec for role in crew.roles if role.learner))


def parts(profile: Profile, seconds: float) -> Row:
    c = quick()
    width = c.lanes // c.players
    found = {"game": profile.env(seconds, c.lanes) / c.lanes, "acting": profile.infer(width, seconds) / width}
    return found | {"learning": profile.learn(c.unroll, c.batch, seconds) / c.unroll / c.batch}


def trained(system: str, steps: int, *words: str) -> float:
    """Agent steps a second of a run of preset quick, after its first third."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        command = ["train", system, "--preset", "quick", "--steps", str(steps), "--run", str(run), "--quiet", *words]
        subprocess.run([sys.executable, "-m", "polyplay", *command, "--no-tensorboard"], check=True)
        rows = [row for row in read_lines(run / "metrics.jsonl") if row["steps"] > steps / 3]
        return (rows[-1]["steps"] - rows[0]["steps"]) / (rows[-1]["wall_seconds"] - rows[0]["wall_seconds"])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300_000, help="agent steps of the run; 0: none")
    asked = parser.parse_args()
    profiles = {name: profile_of(given) for name, given in ARMS.items()}
    rounds = [{name: parts(profile, asked.seconds) for name, profile in profiles.items()} for _ in range(asked.rounds)]
    sums = [{name: sum(found.values()) for name, found in one.items()} for one in rounds]
    rows = []
    for name in ARMS:
        row: Row = {"arm": name}
        row |= {
            f"{part}, µs": round(statistics.median(one[name][part] for one in rounds), 1) for part in rounds[0][name]
        }
        rows.append(row | {"limit, agent steps/s": round(cores() * 1e6 / statistics.median(one[name] for one in sums))})
    ratios = {
        "two clocks / LSTM": spread(one["two clocks"] / one["LSTM"] for one in sums),
        "auxiliary tasks / without": spread(one["two clocks, auxiliary tasks"] / one["two clocks"] for one in sums),
    }
    what = about()
    text = ["# FTW: what its parts cost", "", *lines_about(what), "", *table(rows), ""]
    text += [f"{verdict(name, ratio['median'], most=MOST[name])}; {said(ratio)}" for name, ratio in ratios.items()]
    rate = trained("ftw", asked.steps) if asked.steps else None
    if rate is not None:
        share = rate / rows[-1]["limit, agent steps/s"]
        text += [f"{verdict('of the limit', share, least=LEAST)}; {rate:,.0f} agent steps/s"]
    publish(RESULTS / "ftw_speed", {**what, "rounds": rounds, "ratios": ratios, "trained": rate}, text)


if __name__ == "__main__":
    main()
