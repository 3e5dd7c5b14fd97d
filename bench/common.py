"""What the benchmarks share: where and with what they ran, tables, files."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyplay.core.files import write_json
from polyplay.core.machine import stamp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT))  # tests/faults.py
RESULTS = HERE / "results"
Row = dict[str, Any]
QUIET = 0.1  # cores that others may take before a row is marked


def command_line(text: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows defaults."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)


def about() -> Row:
    """Command, date, versions, machine, commit."""
    script = Path(sys.argv[0]).resolve()
    words = [f"bench/{script.name}", *map(neutral, sys.argv[1:])]
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
