"""Published scores, and runs beside them: per game, and aggregates. Every row names its protocol and its baselines."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

import numpy as np
from rich import box
from rich.table import Column, Table

from polyplay.core.errors import Seed, UserError
from polyplay.core.files import Row, is_row, read_lines, read_object
from polyplay.core.numbers import STATISTICS, aggregate, mean_interval
from polyplay.envs.atari import PROTOCOLS, rom
from polyplay.envs.pool import closest_names
from polyplay.runs.directory import origin, read_config
from polyplay.runs.terminal import default_console

# Published Atari scores: 57 games, one column per agent and protocol, and the three sets of baselines, kept apart.
#
# atari_scores.csv: raw game scores; SOURCES.md says where every column was read, and where tables disagree.
# dopamine_sticky_final.csv: Dopamine's, training returns at 200M frames with sticky actions.
# atari_papers.csv: who published a column, by the beginning of its name, the longest that fits.


TABLES = Path(__file__).parent
PINBALL = "video_pinball"
FIVE_MINUTES = ("dqn_noop", "gorila_noop", "ddqn_5min_noop")


@dataclass(frozen=True)
class Baselines:
    """Scores of random play and of a human under one protocol; a score is normalised with one of these sets alone."""

    name: str
    what: str
    columns: str  # of these: "random" and "human" before it
    pinball: float | None = 0.0  # what random[video_pinball] is taken as; None: as the table says


BASELINES = {
    found.name: found
    for found in (
        Baselines("nature", "49 games, no-op starts, Mnih et al. 2015", "_nature", None),
        Baselines("noop57", "57 games, no-op starts, google-deepmind/dqn_zoo atari_data.py", ""),
        Baselines("human-starts", "57 games, human starts, Nair et al. 2015, van Hasselt et al. 2016", "_humanstarts"),
    )
}
TRAP = (
    "video_pinball: the raw tables say random play scores 16,256.9 (no-op) or 20,452 (human starts), newer ones 0; all "
    "published 57-game aggregates only come out with 0, so that is taken here (--pinball table: as the tables say)"
)


@lru_cache(maxsize=1)
def columns() -> Mapping[str, Mapping[str, float]]:
    """Every published agent's scores, by game: the ROM's name."""
    agents = {k: v for k, v in _table("atari_scores.csv").items() if not k.startswith(("random", "human"))}
    return agents | {f"dopamine_{k}_sticky": v for k, v in _table("dopamine_sticky_final.csv").items()}


def _rows(name: str) -> list[dict[str, str]]:
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=2)
def _table(name: str) -> dict[str, dict[str, float]]:
    """{column: {game: score}} of a file, blanks left out."""
    rows = _rows(name)
    return {k: {r["game"]: float(r[k]) for r in rows if r[k]} for k in rows[0] if k != "game"}


def protocol_of(column: str) -> str:
    """Of polyplay.envs.atari."""
    if column.endswith("_humanstarts"):
        return "human-starts"
    if column.endswith("_sticky"):
        return "sticky"
    return "null-op" if column in FIVE_MINUTES else "null-op-30min"


def source_of(column: str) -> str:
    papers = {row["column"]: row["source"] for row in _rows("atari_papers.csv")}
    return papers[max((name for name in papers if column.startswith(name)), key=len)]


def column(name: str) -> Mapping[str, float]:
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


# The scores of runs, as their scores.json has them.


SCHEMA = 1
FILE = "scores.json"
PLACES = ("final", "best", "training", "snapshots")
WINDOW = 100  # games of training that its score is over, as in reports


def scores_of_runs(runs: Sequence[Path], place: str, protocol: str | None) -> list[Row]:
    """One entry of scores.json per run, with `run`, `env`, `label` and `game` (the ROM's name, of an Atari game): of
    several evaluations the newest. Raises UserError: none, or of several protocols.
    """
    found = [_newest(run, place, protocol) for run in runs]
    labels = sorted({score["label"] for score in found})
    if len(labels) > 1:
        raise UserError(f"--protocol: these runs have scores of {', '.join(labels)}; name one, they do not compare")
    return found


def _newest(run: Path, place: str, protocol: str | None) -> Row:
    env, entries = str(read_config(run)["config"]["env"]), _entries(run, place)
    wanted = [e for e in entries if protocol in (None, e["protocol"])]
    names = ", ".join(sorted({e["protocol"] for e in entries}))
    if not wanted:
        have = f"its {place} scores are of {names}" if names else f"it has no {place} score"
        how = f" --protocol {protocol}" if protocol else ""
        raise UserError(f"{run}: {have}; measure one with `polyplay evaluate {run}{how}`")
    if len({e["protocol"] for e in wanted}) > 1:
        raise UserError(f"--protocol: {run} has {place} scores of {names}; name one")
    entry = max(wanted, key=lambda e: str(e.get("finished", "")))
    game = rom(env) if env.startswith("ALE/") else None
    return {"label": entry["protocol"], **entry, "run": str(run), "env": env, "game": game}


def training_score(directory: Path) -> Row:
    """The score of the games that the run learnt from: the last 100, with the exploration of then."""
    if not (games := list(read_lines(directory / "episodes.jsonl", "frames", "episodic_return"))[-WINDOW:]):
        return {}
    returns = np.array([g["episodic_return"] for g in games])
    return {
        "protocol": "training",
        **origin(directory),
        "episodes": len(games),
        "frames": games[-1]["frames"],
        "episodic_return_mean": float(returns.mean()),
        "episodic_return_std": float(returns.std()),
        "interval": mean_interval(returns.tolist()),
    }


def _entries(run: Path, place: str) -> list[Row]:
    if place == "training":
        if score := training_score(run):
            return [score]
        raise UserError(f"{run} has finished no game yet, so it has no training score")
    if not (run / FILE).exists():
        raise UserError(f"{run} has no {FILE}; measure a score with `polyplay evaluate {run}`")
    return list(read_scores(run)[place].values())


def _is_entry(value: object) -> bool:
    score = is_row(value, ("episodic_return_mean", "episodes"))
    return score and isinstance(cast("Row", value).get("protocol"), str)


def read_scores(run: Path) -> Row:
    """{"final", "best", "snapshots": {evaluation: …}, "training": {…}}; empty places where nothing was measured."""
    try:
        scores = read_object(run / FILE)
        for place in ("final", "best", "snapshots"):
            if not all(map(_is_entry, scores.get(place, {}).values())):
                raise ValueError(f"not all in {place} are scores")
    except OSError:
        scores = {}
    except (ValueError, AttributeError) as e:
        raise UserError(f"{run / FILE} is damaged: {e}; remove it and evaluate again") from None
    return {"schema": SCHEMA, **{place: scores.get(place, {}) for place in PLACES}}


Published = Mapping[str, Mapping[str, float]]  # by column and game
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
    for name, published in sorted(columns().items(), key=lambda item: (protocol_of(item[0]), item[0])):
        protocol = protocol_of(name)
        baselines = _baselines(protocol, options)
        scores = normalise(published, baselines, options.pinball)
        about = {"column": name, "protocol": protocol, "baselines": baselines.name, "games": len(scores)}
        estimates = aggregate({game: [score] for game, score in scores.items()})
        rows.append({**about, **{k: round(e.value, 1) for k, e in estimates.items()}, "source": source_of(name)})
    return {"columns": rows, "notes": [TRAP]}


def compare_runs(runs: Sequence[Path], options: ScoresOptions) -> Row:
    """Runs beside published scores. Raises UserError: nothing was measured so, or several protocols."""
    scores = scores_of_runs(runs, options.place, options.protocol)
    label, name = scores[0]["label"], scores[0]["protocol"]
    columns = {n: column(n) for n in options.published or (BESIDE.get(name, ()) if label == name else ())}
    baselines = _baselines(name, options)
    ends = baseline_scores(baselines, options.pinball)
    games = sorted({s["game"] for s in scores if s["game"]})
    by_game = {g: [s for s in scores if s["game"] == g] for g in games}
    rows = [_row(game, of, ends, columns) for game, of in by_game.items()]
    rows += [_row(s["env"], [s], {}, {}) for s in scores if not s["game"]]
    notes = [NOTES[name]] if name in NOTES else []
    notes += [f"{label}: no published score was measured so"] if label != name else []
    notes += [TRAP] if PINBALL in by_game and baselines.pinball is not None else []
    return {
        "protocol": label,
        "place": options.place,
        "baselines": {"name": baselines.name, "what": baselines.what, "pinball": options.pinball},
        "games": rows,
        "aggregates": _aggregates(by_game, columns, ends, options.seed),
        "notes": notes,
    }


def _baselines(protocol: str, options: ScoresOptions) -> Baselines:
    """Those that the options name, else the protocol's own."""
    own = PROTOCOLS[protocol].baselines if protocol in PROTOCOLS else ()
    name = options.baselines if options.baselines != "auto" else own[0] if own else "noop57"
    return BASELINES[name]


def _row(game: str, of: Sequence[Row], ends: Ends, columns: Published) -> Row:
    means = [score["episodic_return_mean"] for score in of]
    mean, estimate = sum(means) / len(means), aggregate({game: means})["mean"]
    interval = of[0].get("interval") if len(of) == 1 else None
    low, high = ends.get(game, (None, None))
    return {
        "game": game,
        "runs": len(of),
        "episodes": sum(score["episodes"] for score in of),
        "epsilon": sorted({score["epsilon"] for score in of if score.get("epsilon") is not None}),
        "actions": sorted({score["actions"] for score in of if score.get("actions")}),
        "score": round(mean, 2),
        "interval": list(interval or (estimate.low, estimate.high)),  # of one run: of its games' mean
        "normalised": None if low is None or high is None else round(normalised(mean, low, high), 1),
        "random": low,
        "human": high,
        "published": {name: column.get(game) for name, column in columns.items()},
        "of": [
            {"run": s["run"], "config_hash": s.get("config_hash"), "machine": (s.get("machine") or {}).get("cpu")}
            for s in of
        ],
    }


def _aggregates(by_game: Mapping[str, Sequence[Row]], columns: Published, ends: Ends, seed: int) -> list[Row]:
    """Of the runs, and of the published agents over the same games."""
    own = {g: [normalised(s["episodic_return_mean"], *ends[g]) for s in of] for g, of in by_game.items() if g in ends}
    agents = {"these runs": own}
    agents |= {
        name: {g: [normalised(scores[g], *ends[g])] for g in own if g in scores} for name, scores in columns.items()
    }
    return [
        {"agent": agent, "games": len(of), **{k: asdict(e) for k, e in aggregate(of, seed).items()}}
        for agent, of in agents.items()
        if of
    ]


WIDEST = 400


def print_scores(result: Row) -> None:
    """Print the result of `compare_runs` or `list_published`."""
    console = default_console()
    for title, table in [_columns(result)] if "columns" in result else [_games(result), _aggregate_table(result)]:
        if table.row_count:
            console.print(title, style="bold", soft_wrap=True)
            wanted = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
            console.width = max(console.width, wanted)  # a figure is never cut
            console.print(table)
    for note in result["notes"]:
        console.print(note, style="bright_black", soft_wrap=True)


def _score_table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    columns = [Column(heading, no_wrap=True) for heading in words]
    columns += [Column(heading, justify="right", no_wrap=True) for heading in numbers]
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _columns(result: Row) -> tuple[str, Table]:
    table = _score_table(["column", "protocol", "baselines"], ["games", *STATISTICS])
    for row in result["columns"]:
        words = (str(row[name]) for name in ("column", "protocol", "baselines", "games"))
        table.add_row(*words, *(_number(row[name]) for name in STATISTICS))
    return "Published scores, human-normalised (%)", table


def _games(result: Row) -> tuple[str, Table]:
    rows, base = result["games"], result["baselines"]
    names = list(rows[0]["published"]) if rows else []
    numbers = ["runs", "games", "ε", "score", "95 %", "norm. %", "random", "human", *names]
    table = _score_table(["game", "actions"], numbers)
    for row in rows:
        epsilon = " ".join(f"{e:g}" for e in row["epsilon"]) or "–"
        words = (row["game"], " ".join(row["actions"]) or "–", str(row["runs"]), str(row["episodes"]), epsilon)
        found = (*(row[k] for k in ("normalised", "random", "human")), *(row["published"].get(k) for k in names))
        table.add_row(*words, _number(row["score"]), _between(*row["interval"]) or "–", *map(_number, found))
    return f"{result['protocol']}, {result['place']} scores; % of {base['name']}: {base['what']}", table


def _aggregate_table(result: Row) -> tuple[str, Table]:
    title = f"Aggregates over the same games, % of {result['baselines']['name']}; in brackets 95 % over runs"
    table = _score_table(["agent"], ["games", *STATISTICS])
    for row in result["aggregates"]:
        cells = [(row[name]["value"], _between(row[name]["low"], row[name]["high"])) for name in STATISTICS]
        found = (_number(value) + (f" [{between}]" if between else "") for value, between in cells)
        table.add_row(row["agent"], str(row["games"]), *found)
    return title, table


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.1f}"


def _between(low: float | None, high: float | None) -> str:
    """Nothing where there is no interval."""
    return "" if low is None or high is None else f"{low:,.1f} … {high:,.1f}"
