"""Published Atari scores: 57 games, one column per agent and protocol, and the three sets of baselines, kept apart.

atari_scores.csv: raw game scores; SOURCES.md says where every column was read, and where tables disagree.
dopamine_sticky_final.csv: Dopamine's, training returns at 200M frames with sticky actions.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyplay.common.errors import UserError
from polyplay.envs.pool import closest_names

HERE = Path(__file__).parent
PINBALL = "video_pinball"
FIVE_MINUTES = ("dqn_noop", "gorila_noop", "ddqn_5min_noop")
SOURCES = {  # by the beginning of a column's name, the longest that fits
    "dqn": "Mnih et al. 2015, extended data table 2 (human starts: Nair et al. 2015)",
    "dqn57": "Bellemare et al. 2017, appendix",
    "gorila": "Nair et al. 2015, tables 3 and 4",
    "ddqn": "van Hasselt et al. 2016",
    "ddqn_noop": "Bellemare et al. 2017, appendix",
    "dueling": "Wang et al. 2016",
    "prior_dueling": "Wang et al. 2016",
    "per": "Schaul et al. 2016",
    "a3c": "Mnih et al. 2016, table S3",
    "c51": "Hessel et al. 2018",
    "c51_noop": "Bellemare et al. 2017, appendix",
    "rainbow": "Hessel et al. 2018",
    "noisy": "Fortunato et al. 2018",
    "qr_dqn": "Dabney et al. 2018a",
    "iqn": "Dabney et al. 2018b",
    "reactor": "Gruslys et al. 2018",
    "acktr": "Wu et al. 2017",
    "apex": "Horgan et al. 2018",
    "impala": "Espeholt et al. 2018",
    "r2d2": "Kapturowski et al. 2019, by Schrittwieser et al. 2020",
    "simple": "Kaiser et al. 2020, by Schrittwieser et al. 2020",
    "muzero": "Schrittwieser et al. 2020, tables S1 and S2",
    "dopamine": "google/dopamine baselines/atari: the last 5 iterations, 5 seeds, training returns",
}


@dataclass(frozen=True)
class Baselines:
    """Scores of random play and of a human under one protocol; a score is normalised with one of these sets alone."""

    name: str
    what: str
    columns: str  # of these: "random" and "human" before it
    pinball: float | None = 0.0  # what random[video_pinball] is taken as; None: as the table says


_SETS = (
    Baselines("nature", "49 games, no-op starts, Mnih et al. 2015", "_nature", None),
    Baselines("noop57", "57 games, no-op starts, google-deepmind/dqn_zoo atari_data.py", ""),
    Baselines("human-starts", "57 games, human starts, Nair et al. 2015 and van Hasselt et al. 2016", "_humanstarts"),
)
BASELINES = {b.name: b for b in _SETS}
TRAP = (
    "video_pinball: the raw tables say random play scores 16,256.9 (no-op) or 20,452 (human starts), newer ones 0; all "
    "published 57-game aggregates only come out with 0, so that is taken here (--pinball table: as the tables say)"
)


@dataclass(frozen=True)
class Column:
    name: str
    protocol: str  # of polyplay.envs.atari.protocols
    source: str
    scores: Mapping[str, float]  # by game: the ROM's name


@lru_cache(maxsize=1)
def columns() -> dict[str, Column]:
    """Every published agent's scores."""
    agents = {k: v for k, v in _table("atari_scores.csv").items() if not k.startswith(("random", "human"))}
    sticky = {f"dopamine_{k}_sticky": v for k, v in _table("dopamine_sticky_final.csv").items()}
    return {k: Column(k, _protocol(k), _source(k), v) for k, v in {**agents, **sticky}.items()}


@lru_cache(maxsize=2)
def _table(name: str) -> dict[str, dict[str, float]]:
    """{column: {game: score}} of a file, blanks left out."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {k: {r["game"]: float(r[k]) for r in rows if r[k]} for k in rows[0] if k != "game"}


def _protocol(column: str) -> str:
    if column.endswith("_humanstarts"):
        return "human-starts"
    if column.endswith("_sticky"):
        return "sticky"
    return "null-op" if column in FIVE_MINUTES else "null-op-30min"


def _source(column: str) -> str:
    return SOURCES[max((s for s in SOURCES if column.startswith(s)), key=len)]


def column(name: str) -> Column:
    """Raises UserError: there is none of that name."""
    known = columns()
    if name not in known:
        hint = closest_names(name, known)
        raise UserError(f"--published: {name!r} given{hint}; `polyplay scores` lists all {len(known)}")
    return known[name]


def baseline_scores(baselines: Baselines, pinball: str = "published") -> dict[str, tuple[float, float]]:
    """{game: (random play's score, the human's)}. pinball: "published", see TRAP, or "table"."""
    table = _table("atari_scores.csv")
    low, high = dict(table[f"random{baselines.columns}"]), table[f"human{baselines.columns}"]
    if pinball == "published" and baselines.pinball is not None:
        low[PINBALL] = baselines.pinball
    return {game: (low[game], high[game]) for game in high if game in low}


def normalised(score: float, random: float, human: float) -> float:
    """Per cent: 0 is random play, 100 the human."""
    return 100.0 * (score - random) / (human - random)


def normalise(scores: Mapping[str, float], baselines: Baselines, pinball: str = "published") -> dict[str, float]:
    """{game: per cent} of those games that the baselines have."""
    known = baseline_scores(baselines, pinball)
    return {game: normalised(score, *known[game]) for game, score in scores.items() if game in known}
