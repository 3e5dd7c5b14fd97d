"""How near `polyplay train five` comes to what its parts allow: the game, acting and learning.

    python bench/five_speed.py --seconds 2 --rounds 3

Parts are CPU microseconds per hero step on one core, float32, of preset quick: the game with all of an actor's lanes,
acting for a team's half of them, and an update of `--batch` windows. The limit is cores ÷ the sum of the parts. Beside
it a run, whose first third does not count, without matches of the rater.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict
from ftw_speed import trained

from polyplay.core.machine import cores
from polyplay.core.tree import Batch
from polyplay.learning.returns import LossOutput
from polyplay.nets.layers import Tape
from polyplay.systems import five
from polyplay.systems.five import quick
from polyplay.workers.crew import Crew
from polyplay.workers.sizing import CostProfile

LEAST = 0.85  # of what the parts allow
SIZES = (256, 512, 1024)  # of the LSTM


class Profile(CostProfile):
    """Learns from windows, whose targets were made when they came."""

    def score(self, rows: Batch, state: Batch, tape: Tape | None = None) -> LossOutput:
        shape = rows["first"].shape
        made = {k: torch.zeros(shape) for k in ("advantage", "target", "logp", "value")}
        return super().score({**rows, **made, "valid": torch.ones(shape, dtype=torch.bool)}, state, tape)


def parts(profile: Profile, seconds: float) -> Row:
    c = quick()
    found = {"game": profile.env(seconds, c.lanes) / c.lanes, "acting": profile.infer(c.lanes // 2, seconds)}
    found["acting"] /= c.lanes // 2
    return found | {"learning": profile.learn(c.window, c.batch, seconds) / c.window / c.batch}


def profile_of(size: int) -> Profile:
    crew = Crew(0)
    envs = five.build(replace(quick(), core_size=size), crew).envs
    return Profile(envs, next(role.spec for role in crew.roles if role.learner))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600_000, help="hero steps of the run")
    asked = parser.parse_args()
    profiles = {size: profile_of(size) for size in SIZES}
    rounds = [{size: parts(profile, asked.seconds) for size, profile in profiles.items()} for _ in range(asked.rounds)]
    rows, limits = list[Row](), dict[int, float]()
    for size in SIZES:
        found = {part: statistics.median(one[size][part] for one in rounds) for part in rounds[0][size]}
        limits[size] = cores() * 1e6 / sum(found.values())
        row: Row = {"LSTM": size, **{f"{part}, µs": round(cost, 1) for part, cost in found.items()}}
        rows.append(row | {"limit, hero steps/s": round(limits[size])})
    rate = trained("five", asked.steps, "--rated", "0")
    game = quick().step_time
    what = about()
    text = ["# OpenAI Five: what its parts cost", "", *lines_about(what), "", *table(rows), ""]
    text += [
        f"{verdict('of the limit', rate / limits[256], least=LEAST)}; {rate:,.0f} hero steps/s with an LSTM of 256,"
    ]
    text += [f"{rate * game / 365.25:,.2f} years of a hero's time a day (published: 900 on 128,000 cores)."]
    publish(RESULTS / "five_speed", {**what, "rounds": rounds, "limits": limits, "trained": rate}, text)


if __name__ == "__main__":
    main()
