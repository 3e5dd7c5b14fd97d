"""Compare the scores of runs with published scores, for each game and aggregated over games.

Each row of the tables names its protocol (how games start and end) and its baselines (random and human scores).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Column

from polyplay.core.errors import UserError
from polyplay.core.files import Row, is_row, read_lines, read_object
from polyplay.core.numbers import STATISTICS, aggregate, interval_name, mean_interval
from polyplay.envs import atari
from polyplay.envs.atari import BASELINES, PINBALL, Ends, baseline_scores, normalize, score_rows, score_table
from polyplay.envs.pool import closest_names, task_words
from polyplay.runs import directory as run_files
from polyplay.runs.terminal import default_console, ruled_table

Published = Mapping[str, Mapping[str, float]]  # column → game → score

# Published Atari scores: 57 games, one column per agent and protocol, and three separate sets of baselines.
#
# atari_scores.csv: raw game scores; SOURCES.md lists each column's source, and disagreements between tables.
# dopamine_sticky_final.csv: Dopamine's training returns at 200M frames with sticky actions.
# atari_papers.csv: sources by prefix of a column's name; the longest fitting prefix counts.


FIVE_MINUTES = ("dqn_noop", "gorila_noop", "ddqn_5min_noop")
TRAP = (
    "video_pinball: random play scores 16,256.9 (no-op) or 20,452 (human starts) in the raw tables, 0 in newer ones; "
    "published 57-game aggregates can be reproduced only with 0, so 0 is used here"
)


@lru_cache(maxsize=1)
def columns() -> Mapping[str, Mapping[str, float]]:
    """Return the published scores as {agent: {game: score}}. A game is named by its ROM."""
    agents = {k: v for k, v in score_table("atari_scores.csv").items() if not k.startswith(("random", "human"))}
    return agents | {f"dopamine_{k}_sticky": v for k, v in score_table("dopamine_sticky_final.csv").items()}


def protocol_of(column: str) -> str:
    """Return the protocol (a name in polyplay.envs.atari) with which a published column was measured."""
    if column.endswith("_humanstarts"):
        return "human-starts"
    if column.endswith("_sticky"):
        return "sticky"
    return "null-op" if column in FIVE_MINUTES else "null-op-30min"


def source_of(column: str) -> str:
    papers = {row["column"]: row["source"] for row in score_rows("atari_papers.csv")}
    return papers[max((name for name in papers if column.startswith(name)), key=len)]


def column(name: str) -> Mapping[str, float]:
    """Return a column of published scores as {game: score}. Raises UserError if there is no column `name`."""
    known = columns()
    if name not in known:
        hint = closest_names(name, known)
        raise UserError(f"--published: {name!r} given{hint}; `polyplay runs --scores` lists all {len(known)}")
    return known[name]


# Scores of runs: from the files of their evaluations, and from training returns.


WINDOW = 100  # training games in a score, as in reports


def scores_of_runs(runs: Sequence[Path], place: str, protocol: str | None) -> list[Row]:
    """Return the newest score of each run and task. Each score also has `run`, `env`, `label` and `game` (the ROM name
    of an Atari game, else None). Raises UserError if a run has no score, or if the scores are of several protocols.
    """
    found = list[Row]()
    for run in runs:
        env, entries = str(run_files.read_config(run)["config"]["env"]), _entries(run, place)
        names = sorted({entry["protocol"] for entry in entries})
        if not names or protocol not in (None, *names):
            have = f"its {place} scores are of {', '.join(names)}" if names else f"it has no {place} score"
            how = f" --protocol {protocol}" if protocol else ""
            raise UserError(f"{run}: {have}; measure one with `polyplay evaluate {run}{how}`")
        if protocol is None and len(names) > 1:
            raise UserError(f"--protocol: {run} has {place} scores of {', '.join(names)}; choose one")
        wanted = [entry for entry in entries if protocol in (None, entry["protocol"])]
        for task in dict.fromkeys(entry.get("task", env) for entry in wanted):
            own = (entry for entry in wanted if entry.get("task", env) == task)
            newest = max(own, key=lambda entry: str(entry.get("finished", "")))
            game = atari.rom(task) if atari.is_game(task, {}) and not task_words(task) else None
            found.append({"label": newest["protocol"], **newest, "run": str(run), "env": task, "game": game})
    if len(labels := sorted({score["label"] for score in found})) > 1:
        raise UserError(f"--protocol: these runs have scores of {', '.join(labels)}, which do not compare; choose one")
    return found


def training_scores(directory: Path) -> list[Row]:
    """Return the score of each task over its last 100 training games, which were played with exploration."""
    games, found = list(read_lines(directory / "episodes.jsonl", "frames", "episodic_return")), list[Row]()
    for task in dict.fromkeys(game.get("task") for game in games):
        returns = [float(game["episodic_return"]) for game in games if game.get("task") == task][-WINDOW:]
        row = {"protocol": "training", **run_files.origin(directory), "episodes": len(returns)}
        row |= {"episodic_return_mean": float(np.mean(returns)), "interval": mean_interval(returns)}
        found.append(row | ({} if task is None else {"task": task}))
    return found


def _entries(run: Path, place: str) -> list[Row]:
    if place == "training":
        return training_scores(run)
    summary = run_files.read_summary(run)
    last = summary.get("checkpoint") if summary.get("exit_code") == 0 else None  # None: still running, or failed

    def fits(score: Row) -> bool:
        final, best = score.get("checkpoint") == last, bool(score.get("chosen_by"))
        return {"final": final, "best": best}.get(place, not (final or best))

    return list(filter(fits, read_evaluations(run)))


def read_evaluations(run: Path) -> list[Row]:
    """Read all evaluations in a run's directory. Raises UserError if a file is damaged."""
    found = list[Row]()
    for path in sorted(run.glob("evaluation-*.json")):
        try:
            score = read_object(path)
            if not is_row(score, ("episodic_return_mean", "episodes")) or not isinstance(score.get("protocol"), str):
                raise ValueError("it is not a score")
        except (OSError, ValueError) as e:
            raise UserError(f"{path} is damaged: {e}; remove it and evaluate again") from None
        found.append(score)
    return found


BESIDE = {  # protocol → published columns shown beside its scores, unless --published names others
    "null-op": ("dqn_noop", "gorila_noop", "ddqn_5min_noop"),
    "null-op-30min": ("dqn57_noop", "rainbow_noop", "apex_noop", "impala_noop", "r2d2_noop"),
    "null-op-1-30": ("dqn57_noop", "rainbow_noop", "apex_noop", "impala_noop", "r2d2_noop"),
    "human-starts": ("dqn_humanstarts", "gorila_humanstarts", "a3c_humanstarts", "apex_humanstarts"),
    "sticky": ("dopamine_dqn_sticky", "dopamine_rainbow_sticky", "dopamine_iqn_sticky"),
}
NOTES = {
    "run": "the run's own protocol: published scores were measured differently",
    "training": "training returns, with exploration: published evaluations were measured differently",
    "sticky": "dopamine's columns are training returns at 200M frames",
}


@dataclass(frozen=True)
class ScoresOptions:
    """Compares runs with published Atari scores. Without a run, prints all published columns and their aggregates."""

    scores: bool = False  # compare with published scores
    place: Literal["final", "best", "training", "snapshots"] = "final"
    # score of the last weights (final), the best checkpoint, the training games, or other checkpoints (snapshots)
    protocol: str | None = None  # protocol of the scores (none: the only one that the runs have)
    published: tuple[str, ...] = ()  # published columns to compare with (none: a few of the same protocol)
    json: bool = False  # print one JSON object


def list_published() -> Row:
    """Return all published columns, each with aggregates (such as the median) of its normalized scores."""
    rows = []
    for name, published in sorted(columns().items(), key=lambda item: (protocol_of(item[0]), item[0])):
        protocol = protocol_of(name)
        baselines = _baselines(protocol)
        scores = normalize(published, baseline_scores(baselines))
        about = {"column": name, "protocol": protocol, "baselines": baselines, "games": len(scores)}
        estimates = aggregate({game: [score] for game, score in scores.items()})
        rows.append({**about, **{k: round(e.value, 1) for k, e in estimates.items()}, "source": source_of(name)})
    return {"columns": rows, "notes": [TRAP]}


def compare_runs(runs: Sequence[Path], options: ScoresOptions) -> Row:
    """Compare runs with published scores. Raises UserError if a run has no such score, or if protocols differ."""
    scores = scores_of_runs(runs, options.place, options.protocol)
    label, name = scores[0]["label"], scores[0]["protocol"]
    beside = {n: column(n) for n in options.published or (BESIDE.get(name, ()) if label == name else ())}
    baselines = _baselines(name)
    ends = baseline_scores(baselines)
    by_game = {g: [s for s in scores if s["game"] == g] for g in sorted({s["game"] for s in scores if s["game"]})}
    rows = [_row(game, of, ends, beside) for game, of in by_game.items()]
    rows += [_row(s["env"], [s], {}, {}) for s in scores if not s["game"]]
    notes = [NOTES[name]] if name in NOTES else []
    notes += [f"{label}: no published score was measured like this"] if label != name else []
    notes += [TRAP] if PINBALL in by_game and baselines != "nature" else []
    return {
        "protocol": label,
        "place": options.place,
        "baselines": {"name": baselines, "what": BASELINES[baselines][0]},
        "games": rows,
        "aggregates": _aggregates(by_game, beside, ends),
        "notes": notes,
    }


def _baselines(protocol: str) -> str:
    """Return the name of the baselines (random and human scores) that a protocol uses."""
    own = atari.PROTOCOLS[protocol].baselines if protocol in atari.PROTOCOLS else ()
    return own[0] if own else "noop57"


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
        "interval": list(interval or (estimate.low, estimate.high)),  # one run: the interval of its games' mean
        "normalized": round(normalize({game: mean}, ends)[game], 1) if game in ends else None,
        "random": low,
        "human": high,
        "published": {name: column.get(game) for name, column in columns.items()},
        "of": [
            {"run": s["run"], "config_hash": s.get("config_hash"), "machine": (s.get("machine") or {}).get("cpu")}
            for s in of
        ],
    }


def _aggregates(by_game: Mapping[str, Sequence[Row]], columns: Published, ends: Ends) -> list[Row]:
    """Return aggregates of the runs' scores, and of the published agents' scores over the same games."""
    own = {
        g: [normalize({g: s["episodic_return_mean"]}, ends)[g] for s in of] for g, of in by_game.items() if g in ends
    }
    agents = {"these runs": own}
    for name, scores in columns.items():
        agents[name] = {g: [x] for g, x in normalize(scores, ends).items() if g in own}
    return [
        {"agent": agent, "games": len(of), **{k: asdict(e) for k, e in aggregate(of).items()}}
        for agent, of in agents.items()
        if of
    ]


WIDEST = 400
Cells = Sequence[object]


def print_scores(result: Row) -> None:
    """Print the result of `compare_runs` or `list_published` as tables."""
    console = default_console()
    if "columns" in result:
        names = ("column", "protocol", "baselines", "games", *STATISTICS)
        rows = [[row[name] for name in names] for row in result["columns"]]
        _print_table(console, "Published scores, human-normalized (%)", names[:3], names[3:], rows)
    else:
        base, games = result["baselines"], result["games"]
        published = list(games[0]["published"])
        numbers = ("runs", "games", "ε", "score", "95 %", "norm. %", "random", "human", *published)
        rows = [[*_game_cells(row), *(row["published"].get(name) for name in published)] for row in games]
        title = f"{result['protocol']}, {result['place']} scores; % of {base['name']}: {base['what']}"
        _print_table(console, title, ("game", "actions"), numbers, rows)
        rows = [[row["agent"], row["games"], *(_estimate(row[k]) for k in STATISTICS)] for row in result["aggregates"]]
        title = f"Aggregates over the same games, % of {base['name']}; in brackets 95 % over runs"
        _print_table(console, title, ("agent",), ("games", *STATISTICS), rows)
    for note in result["notes"]:
        console.print(note, style="bright_black", soft_wrap=True)


def print_tasks(result: Row) -> None:
    """Print the result of `evaluate` for several tasks: each task beside published scores, then aggregates."""
    console, protocol = default_console(), result["protocol"]
    base = _baselines(protocol)
    ends = baseline_scores(base)
    known = ("impala_multitask_noop",) * protocol.startswith("null-op") + BESIDE.get(protocol, ())
    beside = {name: column(name) for name in known if name in columns()}
    rows = []
    for task, found in result["tasks"].items():
        game, mean = found["game"], found["episodic_return_mean"]
        normal = normalize({game: mean}, ends).get(game) if game else None
        interval = _between(found["interval"], found["episodes"])
        low, high = ends.get(game, (None, None))
        published = (scores.get(game) for scores in beside.values())
        rows.append([task, found["episodes"], mean, interval, normal, low, high, *published])
    numbers = ("games", "score", "95 %", "norm. %", "random", "human", *beside)
    how = f"{result['actions']} actions, ε {result['epsilon']:g}, protocol {result['label']}"
    title = f"{how}; % of {base}: {BASELINES[base][0]}" if any(row[4] is not None for row in rows) else how
    _print_table(console, title, ("task",), numbers, rows)
    if "human_normalized" in result:
        texts = []
        for name, (value, low, high) in result["human_normalized"].items():
            texts.append(f"{name} {value:.1f} %" + ("" if low is None else f" ({low:.1f} … {high:.1f})"))
        of_all = "by noop57; intervals are over the games played"
        console.print(f"human-normalized: {', '.join(texts)}, {of_all}", soft_wrap=True)
    else:
        console.print(f"mean over tasks {_cell(result['episodic_return_mean'])}", soft_wrap=True)
    if "ended" in result:
        console.print(f"{result['ended']}: the last task is incomplete, and later tasks were not played")


def _print_table(
    console: Console, title: str, words: Sequence[str], numbers: Sequence[str], rows: Sequence[Cells]
) -> None:
    if not rows:
        return
    table = ruled_table(*(Column(heading, no_wrap=True) for heading in words), numbers=numbers)
    for row in rows:
        table.add_row(*map(_cell, row))
    console.print(title, style="bold", soft_wrap=True)
    wanted = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
    console.width = max(console.width, wanted)  # so that no number is cut
    console.print(table)


def _game_cells(row: Row) -> Cells:
    epsilon, found = " ".join(f"{e:g}" for e in row["epsilon"]), [row[k] for k in ("normalized", "random", "human")]
    interval = _between(row["interval"], row["runs"] if row["runs"] > 1 else row["episodes"])
    actions = " ".join(row["actions"]) or None
    return [row["game"], actions, row["runs"], row["episodes"], epsilon or None, row["score"], interval, *found]


def _between(interval: Sequence[float | None] | None, n: int) -> str | None:
    """Format an interval of n values for a table. Add `(range)` if the interval is the range of the values."""
    if interval is None or None in interval:
        return None
    name = interval_name(n)
    return " … ".join(map(_cell, interval)) + f" ({name})" * (name == "range")


def _estimate(of: Row) -> str:
    between = "" if of["low"] is None else f" [{_cell(of['low'])} … {_cell(of['high'])}]"
    return f"{_cell(of['value'])}{between}"


def _cell(x: object) -> str:
    return "–" if x is None else f"{x:,.1f}" if isinstance(x, float) else str(x)
