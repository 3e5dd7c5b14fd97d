"""Ours against other libraries on Pong and simple_spread in turn, each at its own best settings (contests.py).

    python bench/compare.py a2c-nature a2c-small --peers PEERS --probe      # every setting first, the fastest plays
    python bench/compare.py ppo-nature --peers PEERS --probe 2 --drop 0.6   # the first 2 settings of each
    python bench/compare.py all --peers PEERS --short                       # one round of 8 s windows, to see it work
    python bench/compare.py all --peers PEERS --resume                      # go on after an interruption
    python bench/compare.py --picture                                       # one picture of every contest measured

PEERS holds a virtual environment per peer and src/ with checkouts (bench/peers/README.md); who is not there is left
out. Every round runs each contender once, in turn; ratios are taken within a round, to the peer with the best median.
Rates are agent steps learnt from per second, over a window after the first steps and a warm-up. Every window is kept
at once in bench/results/compare/CONTEST.json. With --parts what the parts of ours allow is measured before and after
each of its windows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import contest_report
from common import QUIET, RESULTS, ROOT, Row, about, command_line, publish
from contest_limits import Limits, around, turn_of
from contests import CONTESTS, PEERS, Contender, Contest, missing, python, words
from measure import measure, versions

from polyplay.core.files import write_json
from polyplay.systems import ordinary

Kept = dict[str, Any]  # what a contest's JSON holds


def one(who: Contender, setting: str, window: float, seed: int, asked: argparse.Namespace) -> Row:
    """A window; a program that does not come that far is a row without a rate."""
    turn = turn_of(who, setting)
    often = asked.report_every if turn == 1 else min(asked.report_every, 0.25)
    row: Row = {"who": who.name, "setting": setting, **({"turn": turn, "report_every": often} if turn > 1 else {})}
    with tempfile.TemporaryDirectory() as place:
        line, log = words(who, setting, Path(place), seed, asked.peers, often)
        try:
            row |= measure(line, log, asked.warm, window, ROOT, True, turn)
            row |= per_update(row.pop("lines"))
        except RuntimeError as e:
            print(f"compare: {neutral(str(e), asked)}", file=sys.stderr)
            row["failed"] = neutral(str(e).splitlines()[0], asked)
    busy = "  (machine not quiet)" if row.get("others_cores", 0.0) > QUIET else ""
    told = f"{row['sps']:7.0f} steps/s{busy}" if "sps" in row else "FAILED"
    print(f"  {who.name:<18} {setting:<50} {told}", flush=True)
    return row


def per_update(lines: list[Row]) -> Row:
    """Agent steps an update, from lines that count both: what a replay's ratio really was."""
    updates = lines[-1].get("updates", 0) - lines[0].get("updates", 0) if lines else 0
    return {"steps_per_update": (lines[-1]["steps"] - lines[0]["steps"]) / updates} if updates > 0 else {}


def neutral(text: str, asked: argparse.Namespace) -> str:
    """Without the places of this machine."""
    for place, name in ((asked.peers, "PEERS"), (asked.out, "OUT")):
        for word in (str(place.absolute()), str(place)):
            text = text.replace(word, name)
    return text.replace(f"{ROOT}/", "")


# ------------------------------------------------------------------------------------------- a contest


def players(contest: Contest, asked: argparse.Namespace) -> list[Contender]:
    """Who can play; a line for each that cannot."""
    answer, systems = [], ordinary()
    for who in contest.contenders:
        why = missing(who, asked.peers, systems)
        if why:
            print(f"compare: {who.name} is left out: {why}", file=sys.stderr)
        elif not asked.only or who.name in asked.only:
            answer.append(who)
    return answer


def probe(who: list[Contender], kept: Kept, asked: argparse.Namespace, save: Any) -> None:
    """One short window for each setting; those of --setting need none, peers far behind no further ones."""
    there = {(r["who"], r["setting"]) for r in kept["probe"]}
    who = [c for c in who if c.name not in named(asked)]
    for number in range(asked.probe or max((len(c.settings) for c in who), default=0)):
        out = dropped(who, kept, asked.drop)
        for c in who:
            fresh = number < len(c.settings) and (c.name, c.settings[number]) not in there
            if fresh and c.name not in out:
                kept["probe"].append(one(c, c.settings[number], asked.probe_window, 1000 + number, asked))
                save()


def named(asked: argparse.Namespace) -> dict[str, str]:
    """What --setting says."""
    return dict(word.split(": ", 1) for word in asked.setting)


def choices(who: list[Contender], kept: Kept, asked: argparse.Namespace) -> dict[str, str]:
    """The setting of each: what it has played, or --setting, or the fastest of the probe, or its first."""
    said = named(asked) | {r["who"]: r["setting"] for r in kept["rows"]}
    answer: dict[str, str] = {}
    for c in who:
        tried = [r for r in kept["probe"] if r["who"] == c.name and r.get("sps")]
        first = c.settings[0] if c.settings else ""
        answer[c.name] = said.get(c.name) or (max(tried, key=lambda r: r["sps"])["setting"] if tried else first)
    every = {c.name: c for contest in CONTESTS.values() for c in contest.contenders}
    for c in who:
        if c.like and c.name not in said:
            answer[c.name] = answer.get(c.like) or said.get(c.like) or every[c.like].settings[0]
    return answer


def dropped(who: list[Contender], kept: Kept, share: float) -> set[str]:
    """Peers that reached less than this share of the best peer, in probe or round 1: they do not play on."""
    best: dict[str, float] = {}
    for row in [*kept["probe"], *(r for r in kept["rows"] if r["round"] == 1)]:
        best[row["who"]] = max(best.get(row["who"], 0.0), row.get("sps", 0.0))
    theirs = {c.name: best[c.name] for c in who if c.peer and c.name in best}
    return {name for name, rate in theirs.items() if rate < share * max(theirs.values())}


def rounds(who: list[Contender], contest: Contest, kept: Kept, asked: argparse.Namespace, save: Any) -> None:
    window = asked.window or contest.window
    parts = asked.parts if contest.parts else 0.0
    with Limits(parts) if parts else contextlib.nullcontext() as limits:
        for number in range(1, asked.rounds + 1):
            there = {r["who"] for r in kept["rows"] if r["round"] == number and r.get("sps")}
            out = dropped(who, kept, asked.drop) if number > 1 else set()
            for c in who:
                if c.name not in there | out:
                    setting = kept["choices"][c.name]
                    parted = limits if c.ours else None
                    before = parted.row(c, setting) if parted else {}
                    row = one(c, setting, window, number, asked)
                    kept["rows"].append({"round": number, **row})
                    save()
                    if parted and row.get("sps"):
                        kept["rows"][-1] |= around(before, parted.row(c, setting))
                        save()


def hold(name: str, asked: argparse.Namespace) -> None:
    """A whole contest; Ctrl-C writes the page with what there is."""
    contest, out = CONTESTS[name], asked.out / name
    who = players(contest, asked)
    where = about()
    where["command"] = neutral(where["command"], asked)
    fixed = {"commit": where["commit"], "warm": asked.warm, "window": asked.window or contest.window}
    fixed |= {"probe_window": asked.probe_window, "report_every": asked.report_every, "parts": asked.parts}
    kept: Kept = {"contest": name, **where, "peers": inventory(who, asked), "settings": fixed}
    kept |= earlier(out, fixed, asked)

    def save() -> None:
        write_json(out.with_suffix(".json"), kept)

    print(f"{contest.title}: {', '.join(c.name for c in who)}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if asked.probe is not None:
            probe(who, kept, asked, save)
        kept["choices"] = choices(who, kept, asked)
        rounds(who, contest, kept, asked, save)
    finally:
        if kept["rows"] or kept["probe"]:
            publish(out, kept, contest_report.page(name, contest, kept))


def earlier(out: Path, fixed: Row, asked: argparse.Namespace) -> Kept:
    """Rows to go on from with --resume. SystemExit where they had other settings."""
    file = out.with_suffix(".json")
    if not asked.resume or not file.exists():
        return {"rows": [], "probe": [], "choices": {}}
    old = json.loads(file.read_text())
    if old["settings"] != fixed:
        raise SystemExit(f"--resume: {file.name} is of other settings or another commit; leave --resume out")
    good = {k: [r for r in old[k] if r.get("sps")] for k in ("rows", "probe")}
    return {**good, "choices": old["choices"]}


def inventory(who: list[Contender], asked: argparse.Namespace) -> dict[str, str]:
    """What each peer is: versions of its packages, commit of its checkout."""
    answer = {}
    for key in dict.fromkeys(c.program for c in who if c.peer):
        peer = PEERS[key]
        try:
            answer[key] = versions(str(python(peer, asked.peers)), peer.packages)
        except (OSError, subprocess.CalledProcessError):
            answer[key] = "versions unknown"
        if peer.checkout:
            place = str(asked.peers / "src" / peer.checkout)
            found = subprocess.run(["git", "-C", place, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
            answer[key] += f"; checkout of {peer.checkout} at {found.stdout.strip() or 'unknown commit'}"
    return answer


# ------------------------------------------------------------------------------------------------ main


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("contests", nargs="*", metavar="CONTEST", help=f"{', '.join(CONTESTS)}; all")
    parser.add_argument("--peers", type=Path, help="directory of the peers' environments, see bench/peers/README.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=5.0, help="seconds after the first steps that do not count")
    parser.add_argument("--window", type=float, help="seconds that do (default: the contest's own)")
    parser.add_argument(
        "--parts", type=float, default=1.0, help="seconds for each part of ours alone (0: not measured)"
    )
    parser.add_argument("--report-every", type=float, default=1.0, help="of polyplay")
    parser.add_argument("--probe", type=int, nargs="?", const=0, help="try this many settings of each (default: all)")
    parser.add_argument("--probe-window", type=float, default=10.0)
    parser.add_argument(
        "--drop", type=float, default=0.0, help="peers below this share of the best peer try and play no more"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these contenders")
    parser.add_argument("--setting", nargs="+", default=[], metavar="'NAME: flags'", help="instead of the probe's")
    parser.add_argument("--short", action="store_true", help="1 round, windows of 8 s after 2 s")
    parser.add_argument("--resume", action="store_true", help="keep the windows of CONTEST.json")
    parser.add_argument("--picture", action="store_true", help="draw what is there")
    parser.add_argument("--out", type=Path, default=RESULTS / "compare", help="directory")
    asked = parser.parse_args()
    asked.contests = list(CONTESTS) if "all" in asked.contests else asked.contests
    unknown = [c for c in asked.contests if c not in CONTESTS]
    if unknown or not (asked.contests or asked.picture):
        parser.error(f"CONTEST: {shlex.join(unknown) or 'none'} given, allowed: {', '.join(CONTESTS)}, all")
    if asked.contests and (asked.peers is None or not asked.peers.is_dir()):
        parser.error(f"--peers: {asked.peers} is no directory; see bench/peers/README.md")
    if any(": " not in word for word in asked.setting):
        parser.error("--setting: 'NAME: flags' is allowed, as --setting 'a2c: lanes=64'")
    if asked.short:
        asked.rounds, asked.warm, asked.window, asked.probe_window, asked.parts = 1, 2.0, 8.0, 8.0, 0.3
    return asked


def main() -> None:
    asked = arguments()
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)  # measure() ends what it started
    try:
        for name in asked.contests:
            hold(name, asked)
    except KeyboardInterrupt:
        print("compare: interrupted; --resume goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    if asked.picture:
        print(contest_report.picture(asked.out))


if __name__ == "__main__":
    main()
