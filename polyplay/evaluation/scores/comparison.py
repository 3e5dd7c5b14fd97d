"""Published scores, or runs beside them: per game, and aggregates. Every row names its protocol and its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from polyplay.common.bounds import Seed
from polyplay.common.files import Row
from polyplay.common.statistics import aggregate
from polyplay.envs.atari.protocols import PROTOCOLS
from polyplay.evaluation.scores import published
from polyplay.evaluation.scores.of_runs import Score, scores_of_runs

Ends = Mapping[str, tuple[float, float]]  # by game: the scores of random play and of a human
BESIDE = {  # the published columns that stand beside a protocol's scores unless --published names others
    "null-op": ("dqn_noop", "gorila_noop", "ddqn_5min_noop"),
    "null-op-30min": ("dqn57_noop", "rainbow_noop", "apex_noop", "impala_noop", "r2d2_noop"),
    "null-op-1-30": ("dqn57_noop", "rainbow_noop", "apex_noop", "impala_noop", "r2d2_noop"),
    "human-starts": ("dqn_humanstarts", "gorila_humanstarts", "a3c_humanstarts", "apex_humanstarts"),
    "sticky": ("dopamine_dqn_sticky", "dopamine_rainbow_sticky", "dopamine_iqn_sticky"),
}
NOTES = {
    "run": "the run's own protocol: published scores were not measured so",
    "training": "training returns, with exploration: published evaluations were not measured so",
    "sticky": "dopamine's columns are training returns at 200M frames",
}


@dataclass(frozen=True)
class ScoresOptions:
    """Compares runs with published scores. Without a run, prints all published columns and their aggregates."""

    place: Literal["final", "best", "training", "snapshots"] = "final"
    """score of the last weights (final), the best checkpoint, the training games, or other checkpoints (snapshots)"""
    protocol: str | None = None
    """scores of this protocol (none: the only one that the runs have)"""
    baselines: Literal["auto", "nature", "noop57", "human-starts"] = "auto"
    """random and human scores for normalization: those of the protocol (auto), or of this set"""
    pinball: Literal["published", "table"] = "published"
    """random score in video_pinball: 0 as in all published aggregates, or the value of the raw tables"""
    published: tuple[str, ...] = ()
    """published columns to compare with (none: a few of the protocol's)"""
    seed: Seed = 0
    """seed of the bootstrap"""
    json: bool = False
    """print one JSON object"""


def list_published(options: ScoresOptions) -> Row:
    """All published columns, each with the aggregates of its normalised scores."""
    rows = []
    for column in sorted(published.columns().values(), key=lambda c: (c.protocol, c.name)):
        baselines = _baselines(column.protocol, options)
        scores = published.normalise(column.scores, baselines, options.pinball)
        about = {"column": column.name, "protocol": column.protocol, "baselines": baselines.name, "games": len(scores)}
        estimates = aggregate({game: [score] for game, score in scores.items()})
        rows.append({**about, **{k: round(e.value, 1) for k, e in estimates.items()}, "source": column.source})
    return {"columns": rows, "notes": [published.TRAP]}


def compare_runs(runs: Sequence[Path], options: ScoresOptions) -> Row:
    """Runs beside published scores. Raises UserError: nothing was measured so, or several protocols."""
    scores = scores_of_runs(runs, options.place, options.protocol)
    label, name = scores[0].label, scores[0].protocol
    names = options.published or (BESIDE.get(name, ()) if label == name else ())
    columns = [published.column(n) for n in names]
    baselines = _baselines(name, options)
    ends = published.baseline_scores(baselines, options.pinball)
    games = sorted({s.game for s in scores if s.game})
    by_game = {g: [s for s in scores if s.game == g] for g in games}
    rows = [_row(game, of, ends, columns) for game, of in by_game.items()]
    rows += [_row(s.env, [s], {}, []) for s in scores if not s.game]
    notes = [NOTES[name]] if name in NOTES else []
    notes += [f"{label}: no published score was measured so"] if label != name else []
    notes += [published.TRAP] if published.PINBALL in by_game and baselines.pinball is not None else []
    return {
        "protocol": label,
        "place": options.place,
        "baselines": {"name": baselines.name, "what": baselines.what, "pinball": options.pinball},
        "games": rows,
        "aggregates": _aggregates(by_game, columns, ends, options.seed),
        "notes": notes,
    }


def _baselines(protocol: str, options: ScoresOptions) -> published.Baselines:
    """Those that the options name, else the protocol's own."""
    own = PROTOCOLS[protocol].baselines if protocol in PROTOCOLS else ()
    name = options.baselines if options.baselines != "auto" else own[0] if own else "noop57"
    return published.BASELINES[name]


def _row(game: str, of: Sequence[Score], ends: Ends, columns: Sequence[published.Column]) -> Row:
    scores = [s.mean for s in of]
    mean = sum(scores) / len(scores)
    estimate = aggregate({game: scores})["mean"]
    interval = list(of[0].interval) if len(of) == 1 and of[0].interval else [estimate.low, estimate.high]
    low, high = ends.get(game, (None, None))
    normal = None if low is None or high is None else round(published.normalised(mean, low, high), 1)
    return {
        "game": game,
        "runs": len(of),
        "episodes": sum(s.episodes for s in of),
        "epsilon": sorted({s.epsilon for s in of if s.epsilon is not None}),
        "actions": sorted({s.actions for s in of if s.actions}),
        "score": round(mean, 2),
        "interval": interval,  # of one run: of its games' mean; of several: of the mean over runs
        "normalised": normal,
        "random": low,
        "human": high,
        "published": {c.name: c.scores.get(game) for c in columns},
        "of": [s.origin for s in of],
    }


def _aggregates(
    by_game: Mapping[str, Sequence[Score]], columns: Sequence[published.Column], ends: Ends, seed: int
) -> list[Row]:
    """Of the runs, and of the published agents over the same games."""
    own = {g: [published.normalised(s.mean, *ends[g]) for s in of] for g, of in by_game.items() if g in ends}
    agents = {"these runs": own}
    for column in columns:
        agents[column.name] = {g: [published.normalised(column.scores[g], *ends[g])] for g in own if g in column.scores}
    return [
        {"agent": agent, "games": len(of), **{k: asdict(e) for k, e in aggregate(of, seed).items()}}
        for agent, of in agents.items()
        if of
    ]
