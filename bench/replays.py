"""Replay alone at a million transitions against others: insert, sample and update of 512, items a second, one thread.

    python bench/replays.py --peers PEERS            # about 15 min, 8 GB
    python bench/replays.py --peers PEERS --short    # small and brief, to see it work

PEERS holds a virtual environment per peer (bench/peers/README.md); who is not there is left out. Every round runs each
program once, in turn, by itself; ratios are taken within a round, to the best peer in its median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import HERE, RESULTS, ROOT, Row, about, command_line, lines_about, publish, table, verdict
from measure import versions

TITLES = {
    "tree": "A sum tree alone",
    "priorities": "Prioritized transitions of observations of one float",
    "atari": "Full Atari transitions, obs and next: 2 × 4×84×84",
}
OPERATIONS = ("insert", "sample", "update")
PEERS = {  # environment: packages, and what it can do
    "cpprb": (("cpprb", "numpy"), ("priorities", "atari")),
    "tianshou": (("tianshou", "numpy", "numba"), ("tree", "priorities", "atari")),
    "torchrl": (("torchrl", "tensordict", "torch"), ("priorities", "atari")),
}


def python(who: str, peers: Path | None) -> Path | None:
    found = (peers / who / "bin" / "python").absolute() if peers else None
    return found if found and found.exists() else None


def one(who: str, kind: str, asked: argparse.Namespace) -> Row:
    """A program's answer, or why there is none."""
    ours = who == "polyplay"
    program = HERE / "replay_ours.py" if ours else HERE / "peers" / f"replay_{who}.py"
    size = asked.peer_size if kind == "atari" and not ours else asked.size
    runs = sys.executable if ours else str(python(who, asked.peers))
    words = [runs, str(program), kind, "--size", str(size), "--seconds", str(asked.seconds)]
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=os.environ | one_thread)
    row: Row = {"who": who, "kind": kind, "size": size}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        return row | {"failed": last.replace(f"{ROOT}/", "")[:200]}
    return row | json.loads(done.stdout.splitlines()[-1])


def players(asked: argparse.Namespace) -> list[tuple[str, str]]:
    """Who does what."""
    found = []
    for kind in TITLES:
        found.append(("polyplay", kind))
        found += [(who, kind) for who, (_, can) in PEERS.items() if kind in can and python(who, asked.peers)]
    return found


def best(rows: list[Row], kind: str, operation: str) -> tuple[float | None, str, float | None]:
    """(our median ratio to the best peer, that peer, our median rate)."""
    of: dict[str, dict[int, float]] = {}
    for r in rows:
        if r["kind"] == kind and operation in r:
            of.setdefault(r["who"], {})[r["round"]] = r[operation]
    ours = of.pop("polyplay", {})
    rate = statistics.median(ours.values()) if ours else None
    if not of or not ours:
        return None, "", rate
    peer = max(of, key=lambda who: statistics.median(of[who].values()))
    ratios = [ours[k] / v for k, v in of[peer].items() if k in ours]
    return (statistics.median(ratios) if ratios else None), peer, rate


def page(what: Row) -> list[str]:
    rows, lines = what["rows"], ["# Replay alone", "", *lines_about(what)]
    lines += [f"- {who}: {version}" for who, version in what["peers"].items()]
    lines += ["- items a second, one thread, medians of rounds; batches of 512", ""]
    for kind, title in TITLES.items():
        shown = []
        for who in dict.fromkeys(r["who"] for r in rows if r["kind"] == kind):
            mine = [r for r in rows if (r["who"], r["kind"]) == (who, kind)]
            row: Row = {"who": who, "transitions": mine[-1]["size"]}
            for operation in (*OPERATIONS, "memcpy", "bytes"):
                if found := [r[operation] for r in mine if operation in r]:
                    row[operation] = statistics.median(found)
            shown.append(row | {"note": mine[-1].get("failed") or mine[-1].get("drawn", "")})
        lines += [f"## {title}", "", *table(shown), ""]
    return [*lines, "## Against the best peer of each", "", *judged(rows), ""]


def judged(rows: list[Row]) -> list[str]:
    lines = []
    for kind in TITLES:
        for operation in OPERATIONS:
            ratio, peer, rate = best(rows, kind, operation)
            goal = 2.0 if (kind, operation) == ("atari", "sample") else 1.0
            if rate is not None and ratio is not None:
                lines.append(verdict(f"{kind}, {operation}: {rate:,.0f}/s, × {peer}", ratio, least=goal))
    shares = [r["of_memcpy"] for r in rows if "of_memcpy" in r]
    if shares:
        lines.append(verdict("atari, sample: of a memcpy in the same order", statistics.median(shares), least=0.6))
    sizes = [r["bytes"] for r in rows if r["kind"] == "atari" and "bytes" in r]
    return lines + ([verdict("bytes per transition", statistics.median(sizes), most=7200)] if sizes else [])


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peers", type=Path, help="directory of the peers' environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each operation")
    parser.add_argument("--size", type=int, default=1_000_000, help="transitions")
    parser.add_argument("--peer-size", type=int, default=100_000, help="of peers with pictures: 56 kB each")
    parser.add_argument("--short", action="store_true", help="1 round, 20,000 transitions, 0.2 s")
    parser.add_argument("--out", type=Path, default=RESULTS / "replays")
    asked = parser.parse_args()
    if asked.short:
        asked.rounds, asked.seconds, asked.size, asked.peer_size = 1, 0.2, 20_000, 2_000
    where = about()
    where["command"] = where["command"].replace(str(asked.peers), "PEERS").replace(str(asked.out), "OUT")
    peers = {who: versions(str(p), PEERS[who][0]) for who in PEERS if (p := python(who, asked.peers))}
    rows: list[Any] = []
    what: Row = {**where, "peers": peers, "rows": rows}
    for number in range(1, asked.rounds + 1):
        for who, kind in players(asked):
            rows.append({"round": number, **one(who, kind, asked)})
            told = {k: round(v) for k, v in rows[-1].items() if k in OPERATIONS}
            print(f"round {number}: {kind:<10} {who:<9} {told or rows[-1].get('failed')}", flush=True)
    publish(asked.out, what, page(what))


if __name__ == "__main__":
    main()
