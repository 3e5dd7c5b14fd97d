"""`polyplay scores`: published scores, or runs beside them: per game, and aggregates. Every line names its protocol and
its baselines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from polyplay.common.statistics import Estimate, aggregate
from polyplay.envs.atari.protocols import PROTOCOLS
from polyplay.evaluation.scores import published
from polyplay.evaluation.scores.of_runs import Score, scores_of_runs
from polyplay.runs import flags

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
    """Runs beside published scores. Without a run: all published columns and their aggregates."""

    place: Literal["final", "best", "training", "snapshots"] = "final"
    """whose score: of the run's last weights, its best snapshot, or the games it learnt from"""
    protocol: str | None = None
    """scores of this protocol (none: the only one there is)"""
    baselines: Literal["auto", "nature", "noop57", "human-starts"] = "auto"
    """random and human scores to normalise with: the protocol's (auto), or this set"""
    pinball: Literal["published", "table"] = "published"
    """random play's score in video_pinball: 0 as all published aggregates have it, or as the raw tables say"""
    published: tuple[str, ...] = ()
    """columns to stand beside (none: a few of the protocol's)"""
    seed: int = 0
    """of the bootstrap"""
    json: bool = False
    """print one JSON object"""


def command(words: Sequence[str]) -> int:
    """The exit status."""
    runs = _leading(words)
    if flags.wants_help(words):
        flags.show_help({"scores": ScoresOptions()}, "polyplay scores [RUN …]", "RUN: directories of runs.")
    asked, _ = flags.read_flags(ScoresOptions, words[len(runs) :], "polyplay scores [RUN …]")
    result = compared([Path(r) for r in runs], asked) if runs else listed(asked)
    if asked.json:
        print(json.dumps(result, indent=2))
    else:
        from polyplay.evaluation.scores.tables import print_scores

        print_scores(result)
    return 0


def _leading(words: Sequence[str]) -> list[str]:
    n = next((i for i, w in enumerate(words) if w.startswith("-")), len(words))
    return list(words[:n])


def listed(asked: ScoresOptions) -> dict[str, Any]:
    """All published columns, each with the aggregates of its normalised scores."""
    rows = []
    for column in sorted(published.columns().values(), key=lambda c: (c.protocol, c.name)):
        kept = _baselines(asked, PROTOCOLS[column.protocol].baselines[0])
        normal = published.normalise(column.scores, kept, asked.pinball)
        found = aggregate({game: [score] for game, score in normal.items()})
        rows.append(
            {
                "column": column.name,
                "protocol": column.protocol,
                "baselines": kept.name,
                "games": len(normal),
                **{k: round(e.value, 1) for k, e in found.items()},
                "source": column.source,
            }
        )
    return {"columns": rows, "notes": [published.TRAP]}


def compared(runs: Sequence[Path], asked: ScoresOptions) -> dict[str, Any]:
    """Runs beside published scores. Raises UserError: nothing was measured so, or several protocols."""
    scores = scores_of_runs(runs, asked.place, asked.protocol)
    label, name = scores[0].label, scores[0].protocol
    names = asked.published or (BESIDE.get(name, ()) if label == name else ())
    kept = _baselines(asked, _own(name))
    games = sorted({s.game for s in scores if s.game})
    beside = [published.column(n) for n in names]
    ends = published.baseline_scores(kept, asked.pinball)
    own: dict[str, list[float]] = {g: [s.mean for s in scores if s.game == g] for g in games}
    rows = [_row(g, [s for s in scores if s.game == g], ends, beside) for g in games]
    rows += [_row(s.env, [s], {}, []) for s in scores if not s.game]
    notes = [NOTES[name]] if name in NOTES else []
    notes += [f"{label}: no published score was measured so"] if label != name else []
    notes += [published.TRAP] if published.PINBALL in games and kept.pinball is not None else []
    return {
        "protocol": label,
        "place": asked.place,
        "baselines": {"name": kept.name, "what": kept.what, "pinball": asked.pinball},
        "games": rows,
        "aggregates": _aggregates(own, beside, kept, asked),
        "notes": notes,
    }


def _baselines(asked: ScoresOptions, own: str) -> published.Baselines:
    return published.baselines(own if asked.baselines == "auto" else asked.baselines)


def _own(name: str) -> str:
    known = PROTOCOLS.get(name)
    return known.baselines[0] if known is not None and known.baselines else "noop57"


def _row(
    game: str, of: list[Score], ends: Mapping[str, tuple[float, float]], beside: Sequence[published.Column]
) -> dict[str, Any]:
    scores = [s.mean for s in of]
    mean = sum(scores) / len(scores)
    found = aggregate({game: scores})["mean"]
    interval = list(of[0].interval) if len(of) == 1 and of[0].interval else [found.low, found.high]
    low, high = ends.get(game, (None, None))
    normal = None if low is None or high is None else round(published.normalised(mean, low, high), 1)
    return {
        "game": game,
        "runs": len(of),
        "episodes": sum(s.episodes for s in of),
        "epsilon": sorted({s.epsilon for s in of if s.epsilon is not None}),
        "score": round(mean, 2),
        "interval": interval,  # of one run: of its games' mean; of several: of the mean over runs
        "normalised": normal,
        "random": low,
        "human": high,
        "published": {c.name: c.scores.get(game) for c in beside},
        "of": [{"run": s.run, "config_hash": s.config_hash, "machine": s.machine} for s in of],
    }


def _aggregates(
    own: Mapping[str, list[float]],
    beside: Sequence[published.Column],
    kept: published.Baselines,
    asked: ScoresOptions,
) -> list[dict[str, Any]]:
    """Of the runs, and of the published agents over the same games."""
    ends = published.baseline_scores(kept, asked.pinball)
    known = {g: [published.normalised(x, *ends[g]) for x in xs] for g, xs in own.items() if g in ends}
    if not known:
        return []
    rows = [_told("these runs", known, aggregate(known, asked.seed))]
    for column in beside:
        same = {g: [x] for g, x in published.normalise(column.scores, kept, asked.pinball).items() if g in known}
        rows += [_told(column.name, same, aggregate(same))] if same else []
    return rows


def _told(who: str, games: Mapping[str, Any], found: Mapping[str, Estimate]) -> dict[str, Any]:
    return {"agent": who, "games": len(games), **{k: asdict(e) for k, e in found.items()}}
