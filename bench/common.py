"""What the benchmarks share: where and with what they ran, tables, files."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shlex
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyplay.core import checkpoint
from polyplay.core.files import read_lines, write_json
from polyplay.core.machine import stamp
from polyplay.runs.flags import flag

# What the benchmarks share: where and with what they ran, tables, files


HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT))  # tests/faults.py
RESULTS = HERE / "results"
Row = dict[str, Any]
QUIET = 0.1  # cores that others may take before a row is marked


def command_line(text: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows defaults, and the other parts of a script that has several."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.epilog = PARTS
    return parser


PARTS: str | None = None  # of the script that runs, for its help


def commands(named: Mapping[str, Callable[[], object]]) -> int:
    """Run the part of a script that the first word names, or "". The name becomes a part of the program's name."""
    global PARTS
    others = [f"{Path(sys.argv[0]).name} {name} …" for name in named if name]
    PARTS = f"other parts: {', '.join(others)}"
    name = sys.argv[1] if sys.argv[1:] and sys.argv[1] in named else ""
    if name:
        sys.argv[:2] = [f"{sys.argv[0]} {name}"]
    elif "" not in named:
        print("\n".join(others))
        return 0 if "--help" in sys.argv else 2
    return int(named[name]() or 0)  # type: ignore[call-overload]


def about() -> Row:
    """Command, date, versions, machine, commit."""
    script = Path(sys.argv[0]).resolve()
    words = [*f"bench/{script.name}".split(), *map(neutral, sys.argv[1:])]
    return {"command": f"python {shlex.join(words)}", **stamp()}


def neutral(word: str) -> str:
    """A path inside the checkout relative to it; every other word as it is."""
    return word.replace(f"{ROOT}/", "")


def lines_about(what: Mapping[str, Any]) -> list[str]:
    """The same for a reader, as a Markdown list."""
    machine = what["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in what["versions"].items() if v)
    return [
        f"- command: `{what['command']}`",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['platform']}",
        f"- versions: {versions}",
        f"- commit: {what['commit']}, {what['started']}",
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown; the columns are the keys of all rows in order, what a row lacks is a dash."""
    if not rows:
        return ["nothing measured"]
    heads = list(dict.fromkeys(k for row in rows for k in row))
    right = {k: all(isinstance(row.get(k, 0), int | float) for row in rows) for k in heads}
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join("--:" if right[k] else "---" for k in heads) + "|",
        *("| " + " | ".join(_cell(row.get(k)) for k in heads) + " |" for row in rows),
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return str(value).replace("|", "\\|")


def spread(values: Iterable[float]) -> Row:
    """Median, least, greatest and number of some values."""
    found = sorted(values)
    if not found:
        return {"median": None, "min": None, "max": None, "n": 0}
    return {"median": statistics.median(found), "min": found[0], "max": found[-1], "n": len(found)}


def said(s: Mapping[str, Any], digits: int = 2) -> str:
    """A spread in words."""
    if not s["n"]:
        return "not measured"
    return f"{s['median']:.{digits}f} ({s['min']:.{digits}f} to {s['max']:.{digits}f}, n = {s['n']})"


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n."""
    z = 1.96**2 / n
    half = math.sqrt(z * share * (1 - share) + z * z / 4)
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)


def verdict(name: str, value: float | None, least: float | None = None, most: float | None = None) -> str:
    """A line that says whether a target is met."""
    aim = f"≥ {least:g}" if least is not None else f"≤ {most:g}"
    good = value is not None and (least is None or value >= least) and (most is None or value <= most)
    return f"- {name}: **{_cell(value)}**, target {aim}: {'met' if good else 'NOT met'}"


def publish(out: Path, data: Mapping[str, Any], text: Sequence[str]) -> None:
    """Write OUT.json and OUT.md and print the latter."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out.with_suffix(".json"), data)
    out.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def kept(asked: argparse.Namespace, fixed: Row) -> list[Row]:
    """Rows of an earlier start that --resume goes on from. SystemExit where that had other settings."""
    file = asked.out.with_suffix(".json")
    if not asked.resume or not file.exists():
        return []
    old: Any = json.loads(file.read_text())
    if old.get("settings") != fixed:
        raise SystemExit(f"--resume: {file} is of other settings; leave --resume out to begin anew")
    return [r for r in old["rows"] if r.get("sps")]


def at_once(work: Callable[[Any], Row], given: Sequence[Any], processes: int) -> Iterator[Row]:
    """work(g) of everything given, in so many processes, as they end; 1: here, one after the other."""
    if processes == 1:
        yield from map(work, given)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(work, given)


# What a run directory says of the run: its command, its reports, when it was good


GOAL = 18.0  # mean return of the last
GAMES = 100  # full games
ROWS = 400  # reports kept of a run
GIVEN = ("command line", "keyword", "resume")


def command(config: Row, name: str) -> str:
    """The command line that made this run, from what its config.json says was given."""
    values = {**config["config"], **config["options"]}
    given = [k for k, how in config["sources"].items() if how in GIVEN and k != "run"]
    words = [w for k in given for w in (flag(k), _spell(values[k]))]
    return shlex.join(["polyplay", "train", config["system"], *words, "--run", f"runs/{name}"])


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def commit(config: Row) -> str:
    """Short, with "-dirty" where the code was not as committed."""
    name, dash, dirty = (config["commit"] or "unknown").partition("-")
    return f"{name[:12]}{dash}{dirty}"


def whole(rows: Iterable[Row]) -> list[Row]:
    """Lines of a run; those that a resumption from an earlier checkpoint made void are left out."""
    kept: list[Row] = []
    for row in rows:
        while kept and kept[-1]["frames"] > row["frames"]:
            kept.pop()
        kept.append(row)
    return kept


def reached(run: Path) -> Row | None:
    """The finished game at which the mean return of the last 100 first was 18 or more."""
    last: deque[float] = deque(maxlen=GAMES)
    for game in whole(read_lines(run / "episodes.jsonl")):
        last.append(game["episodic_return"])
        if len(last) == GAMES and statistics.fmean(last) >= GOAL:
            return game
    return None


def evaluation(run: Path) -> Row | None:
    """That of the newest checkpoint, else the newest there is."""
    found = {p.stem.split("-")[1]: p for p in sorted(run.glob("evaluation-*-seed*.json")) if "greedy" not in p.stem}
    if not found:
        return None
    names = [p.name for p in checkpoint.everything(run)]
    newest = max(found.values(), key=lambda p: p.stat().st_mtime)
    return json.loads((found.get(names[-1], newest) if names else newest).read_text())


def thin(rows: list[Row], most: int = ROWS) -> list[Row]:
    """At most `most` rows, evenly, with the first and the last."""
    n = len(rows)
    return rows if n <= most else [rows[round(i * (n - 1) / (most - 1))] for i in range(most)]
