"""A scripted run of faults: its workers are killed at random until there were N; a run that this ends is resumed, every
time, and looked at: see lives.wrong.

    python bench/chaos.py impala --faults kill=act:3,kill=learn:20 --events 100
    python bench/chaos.py r2d2 --faults kill=act:3,kill=learn:20 -- --actors 3
    python bench/chaos.py impala --replay          # then do all of it again in one thread: every loss to the bit
    python bench/chaos.py impala --faults kill=act:1,kill=host:60 --events 1000 -- --hosts pretend:8 --host-wait 1

Words after `--` are options of `polyplay train`. The game is toy:catch, the network one that looks at every board
(witness.py). What is written: OUT.json with every life and fault, OUT.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import lives
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.core.files import read_lines
from tests.faults import percentiles

TOY = "--env toy:catch --network witness:Witness --tensorboard false --trace --keep 2 --steps 1000M"
SYSTEMS = {  # small enough that memory is full soon and updates are many
    "impala": "--lanes 4 --batch 8 --unroll 5",
    "appo": "--lanes 4 --batch 8 --unroll 5",
    "apex": "--actors 4 --memories 2 --lanes 2 --unroll 5 --batch 16 --capacity 10k --start 500 --target 50",
    "gorila": "--learners 3 --shards 2 --lanes 2 --unroll 2 --batch 16 --capacity 5k --start 200 --target 100",
    "r2d2": "--lanes 4 --unroll 10 --sequence 10 --burn-in 5 --core-size 32 --batch 16 --capacity 20k --start 1k",
}
FLAT = 1.1  # memory in the last third of a run over that in its first


def main() -> int:
    asked = arguments()
    place = Path(tempfile.mkdtemp(prefix="polyplay-chaos-"))
    try:
        report = scripted(asked, place)
    finally:
        if not asked.keep:
            shutil.rmtree(place, ignore_errors=True)
    out = asked.out or RESULTS / f"chaos_{asked.system}"
    publish(out, report, text(report))
    return 1 if report["wrong"] else 0


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("system")
    parser.add_argument("--faults", default="kill=act:3,kill=learn:20", help="see tests/faults.py")
    parser.add_argument("--events", type=int, default=100, help="faults")
    parser.add_argument("--minutes", type=float, default=30.0, help="end after so long in any case")
    parser.add_argument("--checkpoint-every", type=float, default=2.0, help="seconds")
    parser.add_argument("--replay", action="store_true", help="at the end `polyplay reproduce` (impala, appo)")
    parser.add_argument("--keep", action="store_true", help="leave the run's directory")
    parser.add_argument("--out", type=Path, default=None, help="without suffix (default: bench/results/chaos_SYSTEM)")
    own, dashes, more = sys.argv[1:], "--", []
    if dashes in own:
        own, more = own[: own.index(dashes)], own[own.index(dashes) + 1 :]
    asked = parser.parse_args(own)
    asked.words = more
    return asked


def scripted(asked: argparse.Namespace, place: Path) -> Row:
    """All lives of the run, and what was wrong with any."""
    run, begun = place / "run", time.monotonic()
    often = ["--checkpoint-every", str(asked.checkpoint_every), "--report-every", "1"]
    words = ["train", asked.system, *TOY.split(), *SYSTEMS.get(asked.system, "").split(), *asked.words, *often]
    words += ["--run", str(run)]
    seen: list[Row] = []
    wrong: list[str] = []

    def ends() -> str:
        if len(lives.faults(run)) >= asked.events:
            return "enough"
        return "no time left" if time.monotonic() - begun > 60 * asked.minutes else ""

    while not wrong and (not seen or not seen[-1]["asked"]):
        life = lives.live(asked.faults, words, run, place / f"said-{len(seen)}", ends)
        wrong = [f"life {len(seen)}: {text}" for text in lives.wrong(run, life)]
        seen.append(told(run, life))
        print(f"life {len(seen) - 1}: {seen[-1]}", flush=True)
        words = ["resume", str(run)]
    if asked.replay and not wrong:
        wrong += replayed(run, place)
    return summed(asked, run, seen, wrong)


def told(run: Path, life: lives.Life) -> Row:
    counters: Any = lives.newest(run) or life.base
    return {
        "status": life.status,
        "asked": life.asked,
        "seconds": round(life.seconds, 1),
        "first_update": None if life.first is None else round(life.first, 1),
        "faults": len(lives.faults(run)),
        "updates": counters["updates"],
        "steps": counters["steps"],
        "processes": len(life.family),
    }


def replayed(run: Path, place: Path) -> list[str]:
    with open(place / "said-replay", "w+") as said:
        command = [sys.executable, "-m", "polyplay", "reproduce", str(run)]
        status = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, cwd=lives.HERE).returncode
        said.seek(0)
        text = said.read()
    print(text)
    return [] if status == 0 else [f"the replay differs: {text[-800:]}"]


def summed(asked: argparse.Namespace, run: Path, seen: list[Row], wrong: list[str]) -> Row:
    found = lives.faults(run)
    memory = [row["memory_mb"] for row in read_lines(run / "metrics.jsonl") if row["memory_mb"]]
    third = max(1, len(memory) // 3)
    first, last = (median(part) if part else 0.0 for part in (memory[:third], memory[-third:]))
    if len(memory) >= 9 and last > FLAT * first:
        wrong = [*wrong, f"memory grew from {first:.0f} to {last:.0f} MB"]
    restarts = [row["first_update"] for row in seen[1:] if row["first_update"] is not None]
    return {
        **about(),
        "system": asked.system,
        "rules": asked.faults,
        "faults": found,
        "roles": roles(found),
        "lives": seen,
        "machines_lost": sum(row["event"] == "lost" for row in read_lines(run / "hosts.jsonl")),
        "resumed": percentiles(restarts),
        "memory_mb": {"first_third": first, "last_third": last, "reports": len(memory)},
        "replayed": asked.replay,
        "wrong": wrong,
    }


def roles(found: list[Row]) -> list[Row]:
    """A row per role and kind of fault."""
    rows = []
    for role, what in sorted({(f["role"], f["what"]) for f in found}):
        mine = [f for f in found if (f["role"], f["what"]) == (role, what)]
        seconds = percentiles(f["seconds"] for f in mine if f["seconds"] is not None)
        row: Row = {
            "role": role,
            "fault": what,
            "times": len(mine),
            "over": sum(f["seconds"] is not None for f in mine),
        }
        row |= {f"{k} s": v for k, v in (seconds or dict.fromkeys(("median", "p95", "max"))).items()}
        rows.append(row)
    return rows


def text(report: Row) -> list[str]:
    memory, resumed = report["memory_mb"], report["resumed"]
    lines = [f"# {report['system']}: {len(report['faults'])} faults", "", *lines_about(report), ""]
    lines += [*table(report["roles"]), ""]
    last = report["lives"][-1]
    lines.append(f"- {len(report['lives'])} lives, {last['updates']:,} updates, {last['steps']:,} agent steps")
    if report["machines_lost"]:
        lines.append(f"- {report['machines_lost']} machines were lost, with all that worked there")
    if resumed:
        lines.append(f"- from `polyplay resume` to the first report of a new update: median {resumed['median']:.1f} s")
    lines.append(f"- memory: {memory['first_third']:.0f} MB in the first third, {memory['last_third']:.0f} in the last")
    if report["replayed"]:
        lines.append(
            "- done again in one thread: " + ("differs" if report["wrong"] else "every loss the same, to the bit")
        )
    lines += [f"- **wrong**: {w}" for w in report["wrong"]] or ["- nothing was wrong"]
    return lines


if __name__ == "__main__":
    sys.exit(main())
