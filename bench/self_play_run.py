"""A whole run of AlphaGo Zero against what its parts allow: moves per second of players and learner together.

    python bench/self_play_run.py

The run: connect four, 5 blocks of 64 filters, 100 simulations a move, the subtree kept, a learner with the batches and
the ratio of preset `quick`. Its parts, each alone: the players without a learner (self_play.py), and the learner's
updates from a replay that is full, on one core. A move costs the players' cores a time and the learner a share of an
update; the limit is cores / their sum.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import self_play
import torch
from common import RESULTS, ROOT, Row, about, command_line, lines_about, publish, said, spread, table, verdict
from measure import measure

from polyplay.core import tree
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.learning.learner import Learner
from polyplay.learning.loop import ReplayLearner
from polyplay.search.evaluators import BACKENDS, UniformEvaluator
from polyplay.systems import load
from polyplay.workers.crew import Crew

TARGET = 0.85
PAGE = load("alphago_zero")


def settings(asked: argparse.Namespace) -> Row:
    """Of the page: quick's, but for network and search."""
    sizes = {"games": asked.games, "players": asked.players, "simulations": asked.simulations, "start": asked.start}
    return {**sizes, "root": "puct", "blocks": asked.blocks, "filters": asked.filters, "evaluator": asked.evaluator}


def update_seconds(asked: argparse.Namespace) -> float:
    """Of an update of the learner, its replay's draw included, with one thread."""
    torch.set_num_threads(1)
    crew = Crew(0, steps=1_000_000, precision=asked.precision)
    PAGE.build(PAGE.Config(**vars(PAGE.quick()) | settings(asked)), crew)
    role = next(r for r in crew.roles if r.spec)
    spec, replay = role.spec, role.held_replay
    ctx = WorkerContext("learn", 0, 1, 0, 0, Counters(1), RunControl(), precision=asked.precision)
    learner = ReplayLearner(ctx, Learner(ctx, spec), replay)
    fill(learner, asked)
    begun, n = 0.0, -3
    while n < 1 or time.perf_counter() - begun < asked.update_seconds:
        begun = time.perf_counter() if n == 0 else begun
        deque(learner.update(), 0)
        n += 1
    return (time.perf_counter() - begun) / n


def fill(learner: ReplayLearner, asked: argparse.Namespace) -> None:
    """Positions of games that a uniform evaluator plays."""
    player = self_play.Player(0, "torch", "float32", True, asked)
    player.play.search.evaluator = UniformEvaluator(self_play.BOARD.actions)
    while learner.buffer.limiter.steps < 2 * asked.start:
        for slot in player.play.slots(lambda: 0):
            if slot is not None:
                player.play.out.commit(slot)
                rows, state = next(player.taken)
                learner.buffer.limiter.steps += learner.insert(tree.map(lambda x: x.copy(), rows), state)
                next(player.taken)
                break


def whole(asked: argparse.Namespace) -> Row:
    """The run's moves per second in a window."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        words = [sys.executable, "-m", "polyplay", "train", "alphago_zero", "--preset", "quick", "--run", str(run)]
        for name, value in settings(asked).items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        words += ["--precision", asked.precision, "--steps", "100000000", "--report-every", "1", "--seed", "0"]
        return measure(words, run / "metrics.jsonl", asked.warm, asked.window, ROOT, stop=True)


def main() -> None:
    parser = command_line(__doc__)
    for name, value in {"players": 2, "games": 64, "simulations": 100, "blocks": 5, "filters": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--start", type=int, default=2_000, help="moves before the first update")
    parser.add_argument("--evaluator", choices=BACKENDS, default="torch")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds after the first update")
    parser.add_argument("--window", type=float, default=60.0)
    parser.add_argument("--turn", type=float, default=6.0)
    parser.add_argument("--spread", type=float, default=4.0)
    parser.add_argument("--update-seconds", type=float, default=10.0, help="of updates alone")
    parser.add_argument("--out", type=Path, default=RESULTS / "self_play_run")
    asked = parser.parse_args()
    what, quick = about(), PAGE.quick()
    update = update_seconds(asked)
    before = self_play.ours(asked.evaluator, asked.precision, True, asked)
    row = whole(asked)
    after = self_play.ours(asked.evaluator, asked.precision, True, asked)
    alone = spread([before["moves/s"], after["moves/s"]])
    cost = asked.players / alone["median"] + quick.ratio / quick.batch * update
    limit = asked.players / cost
    found = {
        "moves/s": row["sps"],
        "games/hour": 3600 * row["sps"] / after["length"],
        "limit, moves/s": limit,
        "share": row["sps"] / limit,
        "players alone, moves/s": alone["median"],
        "ms/update alone": 1000 * update,
        "own cores": row["own_cores"],
        "others' cores": row["others_cores"],
    }
    text = ["# A whole run of AlphaGo Zero", "", *lines_about(what)]
    text += [f"- {asked.evaluator} {asked.precision}; players alone, before and after: {said(alone, 1)} moves/s", ""]
    text += [*table([found]), "", verdict("share of what the parts allow", found["share"], least=TARGET)]
    publish(asked.out, {**what, "row": found}, text)


if __name__ == "__main__":
    main()
