"""Evaluation during training: a separate worker plays full games with the current weights every N frames.

The learner copies its weights for the evaluator after an update (weights.Params), so a score belongs to exactly one
version of the weights. The games run in separate environments, with the same seed each time. Training continues during
an evaluation. An evaluation that is due during another one is skipped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator

from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.core.files import Row, refusal_text
from polyplay.core.numbers import mean_interval
from polyplay.core.worker import WorkerContext
from polyplay.envs.pool import Envs
from polyplay.envs.tasks import TaskReturns
from polyplay.nets.factory import build_network
from polyplay.nets.policy import Policy, PolicyFactory
from polyplay.weights.params import FlatParams

REST = 0.1  # seconds between two reads of the counters


def evaluator(
    ctx: WorkerContext,
    *,
    games: Envs,
    policy: PolicyFactory,
    asked: play.PlayOptions,
    protocol: str,
    every: int,
    steps: int,
) -> Iterator[None]:
    """Play games with the current weights, and log the score, whenever the run passes a multiple of `every` frames."""
    net = build_network(policy, ctx.seed)
    vector, show, skip = FlatParams(net), ctx.control.show, games.spec.frames_per_step
    due = _next(steps * skip, every)
    while True:
        while _steps(ctx, steps) * skip < due:
            time.sleep(min(ctx.patience, REST))
            yield
        show.ask()
        while show.asked:
            time.sleep(min(ctx.patience, REST))
            yield
        version, now = show.pull(vector), _steps(ctx, steps)
        played: list[play.PlayedGame] = []
        for found in play.play_steps(games, net, asked):
            played += found
            yield
        row = _row(games, played, asked, protocol, {"frames": now * skip, "steps": now, "updates": version})
        row["best"] = _best(ctx, net, row)
        ctx.log("evaluation", json.dumps(row))
        due = _next(_steps(ctx, steps) * skip, every)


def _next(frames: int, every: int) -> int:
    return (frames // every + 1) * every


def _steps(ctx: WorkerContext, before: int) -> int:
    """Return the run's agent steps so far. `before`: agent steps of the run's earlier sessions."""
    return before + int(ctx.all_counters.column("steps").sum())


def _row(envs: Envs, played: list[play.PlayedGame], asked: play.PlayOptions, protocol: str, at: dict[str, int]) -> Row:
    games = sorted(played, key=lambda game: game.number)
    found = play.summarize_games([(game.ret, game.length) for game in games], 1)
    how = {"protocol": protocol, "seed": asked.seed, "epsilon": asked.epsilon}
    row = {**found, **at, **how, "interval": mean_interval(found["returns"])}
    return row | (_by_task(envs, games, asked) if envs.spec.tasks else {})


def _by_task(envs: Envs, games: list[play.PlayedGame], asked: play.PlayOptions) -> Row:
    """Return the mean return of each task. The score is the mean of these means."""
    lanes, found = play.lanes_of(envs, asked.episodes), TaskReturns(envs.spec.tasks, fewest=1, window=None)
    for game in games:
        found.add(str(envs.spec.task_of(game.number % lanes)), game.ret)
    return {**found.row(), "episodic_return_mean": found.score(), "interval": None}


def _best(ctx: WorkerContext, net: Policy, row: Row) -> bool:
    """Save the weights if they score higher than the saved best weights. Return whether they were saved."""
    if ctx.directory is None:
        return False
    where = checkpoint.best_weights(ctx.directory)
    old = {} if where is None else checkpoint.manifest(where)["counters"]
    same = old.get("protocol") == row["protocol"]  # scores of different protocols are not comparable
    if same and old.get("episodic_return_mean", -math.inf) >= row["episodic_return_mean"]:
        return False
    counters = {k: v for k, v in row.items() if k not in ("returns", "interval")}
    try:
        checkpoint.save_weights(ctx.directory, checkpoint.BEST, net, counters)
    except OSError as e:
        ctx.log("warning", f"the best weights were not saved: {refusal_text(e)}")
        return False
    return True
