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
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import QUIET, RESULTS, ROOT, Row, about, command_line, lines_about, publish, said, spread, table, verdict
from contests import CONTESTS, PEERS, Contender, Contest, missing, python, words
from measure import Limits, around, measure, turn_of, versions

from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core.files import write_json
from polyplay.systems import ordinary

# The page of a contest of compare.py, and one picture of all of them


KINDS = {"Polyplay": COLORS[0], "Polyplay, float32": COLORS[5], "a peer": COLORS[1], "a limit": "#999999"}

Spread = dict[str, Any]


def rates(rows: list[Row]) -> dict[str, Spread]:
    """Agent steps/s of each contender over the rounds, fastest first."""
    names = dict.fromkeys(r["who"] for r in rows)
    found = {w: spread(r["sps"] for r in rows if r["who"] == w and r.get("sps")) for w in names}
    return dict(sorted(found.items(), key=lambda item: -(item[1]["median"] or 0.0)))


def best_peer(found: dict[str, Spread], contest: Contest) -> str | None:
    """The peer with the greatest median."""
    theirs = {c.name for c in contest.contenders if c.peer}
    return next((w for w, s in found.items() if w in theirs and s["n"]), None)


def highest(found: dict[str, Spread], contest: Contest) -> str | None:
    """The limit with the greatest median."""
    limits = {c.name for c in contest.contenders if c.limit}
    return next((w for w, s in found.items() if w in limits and s["n"]), None)


def ratios(rows: list[Row], a: str, b: str) -> list[float]:
    """sps of `a` over that of `b`, round by round, where both ran."""
    of = {(r["who"], r["round"]): r["sps"] for r in rows if r.get("sps")}
    return [of[a, k] / of[b, k] for w, k in of if w == a and (b, k) in of]


def page(name: str, contest: Contest, kept: Row) -> list[str]:
    """Markdown: ratios to the best peer against the target, rates, every window."""
    rows, found = kept["rows"], rates(kept["rows"])
    peer = best_peer(found, contest)
    text = [f"# {contest.title}: {contest.game}", "", *lines_about(kept)]
    text += [f"- {who}: {what}" for who, what in kept["peers"].items()]
    text += ["", *judged(rows, contest, found, peer), "", *table(medians(rows, contest, found, peer, kept))]
    every = [*rows, *kept["probe"]]
    busy = sum(r.get("others_cores", 0.0) > QUIET for r in every)
    text += ["", f"Others took more than {QUIET} core (marked BUSY) in {busy} of {len(every)} windows.", ""]
    text += ["Rates: agent steps/s, median (least to greatest) of the rounds. CPU: cores that all processes of the"]
    text += ["contender used, of those of the machine. Memory: the peak of the sum of PSS over its processes.", ""]
    text += ["## Rounds", "", *table([cells(r) for r in rows])]
    if kept["probe"]:
        seconds = kept["settings"]["probe_window"]
        text += ["", f"## Settings tried first, {seconds:g} s each", "", *table([cells(r) for r in kept["probe"]])]
    return [
        *text,
        "",
        "Always the same:",
        "",
        *(f"- {c.name}: `{c.fixed}`" for c in contest.contenders if c.name in found),
    ]


def judged(rows: list[Row], contest: Contest, found: dict[str, Spread], peer: str | None) -> list[str]:
    """A line for each of ours."""
    if peer is None:
        return ["No peer was measured.", *shares(rows, contest, found)]
    text = []
    for c in contest.contenders:
        if not c.ours or c.name not in found:
            continue
        s = spread(ratios(rows, c.name, peer))
        told = f"{c.name} / {peer}, the best peer, round by round {said(s)}"
        if contest.least is None:
            text.append(f"- {told}")
        else:
            text.append(verdict(f"{told}; median", s["median"], least=contest.least) + enough(rows, c.name, contest))
        for other, least in contest.aims.items():
            if other in found and not c.like:
                s = spread(ratios(rows, c.name, other))
                text.append(verdict(f"{c.name} / {other}, round by round {said(s)}; median", s["median"], least=least))
    return text + shares(rows, contest, found)


def enough(rows: list[Row], who: str, contest: Contest) -> str:
    """The other half of the target, the smaller of both: so much of what its own parts allow."""
    s = spread(parted(rows, who))
    if not contest.parts or s["median"] is None:
        return ""
    good = "met" if s["median"] >= contest.parts else "NOT met"
    return f"; or of what its parts allow ≥ {contest.parts:g}: **{s['median']:.2f}**: {good}"


def parted(rows: list[Row], who: str) -> list[float]:
    """Round by round the share of what its parts allowed there, on both sides of its window (limits); where they were
    measured on one side only, of the most that they allowed in any round.
    """
    mine = [r for r in rows if r["who"] == who and r.get("sps") and r.get("limit")]
    most = max((r["limit"] for r in mine), default=0.0)
    return [r["sps"] / (r["limit"] if len(r.get("limits", [])) > 1 else most) for r in mine]


def shares(rows: list[Row], contest: Contest, found: dict[str, Spread]) -> list[str]:
    """A line for each of ours against the highest limit, or against every limit where there is no target."""
    limit, text = highest(found, contest), []
    if contest.share is None:
        pairs = [(c.name, one.name) for c in contest.contenders if c.ours for one in contest.contenders if one.limit]
        here = [(who, one, spread(ratios(rows, who, one))) for who, one in pairs]
        return [f"- {who} / {one}, round by round {said(s)}" for who, one, s in here if s["n"]]
    for c in contest.contenders if limit and contest.share else ():
        if c.ours and c.name in found:
            s = spread(ratios(rows, c.name, limit or ""))
            told = f"{c.name} / {limit}, the highest limit, round by round {said(s)}; median"
            text.append(verdict(told, s["median"], least=contest.share))
    return text


def medians(rows: list[Row], contest: Contest, found: dict[str, Spread], peer: str | None, kept: Row) -> list[Row]:
    """A row per contender."""
    kind = {c.name: "Polyplay" if c.ours else "peer" if c.peer else "limit" for c in contest.contenders}
    limit = highest(found, contest) if contest.share else None

    def middle(who: str, key: str) -> float | None:
        return spread(r[key] for r in rows if r["who"] == who and r.get(key) is not None)["median"]

    return [
        {
            "": kind[w],
            "who": w,
            "setting": f"`{kept['choices'].get(w, '')}`",
            "agent steps/s": said(s, 0),
            "/ best peer": said(spread(ratios(rows, w, peer))) if peer else None,
            **({"/ limit": said(spread(ratios(rows, w, limit)))} if limit else {}),
            **({"/ its parts": said(spread(parted(rows, w)))} if parted(rows, w) else {}),
            **({"steps/update": middle(w, "steps_per_update")} if contest.share else {}),
            "CPU, cores": middle(w, "own_cores"),
            "core-ms/step": middle(w, "core_ms_per_step"),
            "peak PSS MB": max((r.get("pss_mb", 0.0) for r in rows if r["who"] == w), default=None),
            "processes": middle(w, "processes"),
        }
        for w, s in found.items()
    ]


def cells(r: Row) -> Row:
    others = r.get("others_cores", 0.0)
    return {
        **({"round": r["round"]} if "round" in r else {}),
        "who": r["who"],
        "setting": f"`{r['setting']}`",
        "agent steps/s": r["sps"] if r.get("sps") else f"failed: {r.get('failed', 'no steps')}",
        **({"its parts allow": r["limit"]} if r.get("limit") else {}),
        "window s": r.get("window_s"),
        "own cores": r.get("own_cores"),
        "core-ms/step": r.get("core_ms_per_step"),
        "peak PSS MB": r.get("pss_mb"),
        "processes": r.get("processes"),
        "others' cores": f"{others:.2f}{' BUSY' if others > QUIET else ''}" if "sps" in r else None,
    }


# --------------------------------------------------------------------------------------------- picture


def picture(place: Path) -> Path:
    """compare.png: a panel per contest measured, bars from the fastest to the slowest. SystemExit if there is none."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = [n for n in CONTESTS if (place / f"{n}.json").exists()]
    kept = {n: json.loads((place / f"{n}.json").read_text()) for n in there}
    kept = {n: k for n, k in kept.items() if k["rows"]}
    if not kept:
        raise SystemExit(f"--picture: no contest measured in {place.name}/")
    across = min(3, len(kept))
    down = -(-len(kept) // across)
    figure = Figure(figsize=(5.2 * across, 3.9 * down), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, (name, k) in zip(panels, kept.items(), strict=False):
        _bars(axes, CONTESTS[name], k["rows"])
    for axes in panels[len(kept) :]:
        axes.set_axis_off()
    keys = [Patch(color=c, label=label) for label, c in KINDS.items()]
    keys.append(Line2D([], [], color=INK, linestyle="--", linewidth=1.0, label="target"))
    figure.legend(handles=keys, loc="outside upper left", ncols=4, frameon=False, labelcolor=INK, fontsize=10)
    out = place / "compare.png"
    figure.savefig(out)
    return out


def _bars(axes: Any, contest: Contest, rows: list[Row]) -> None:
    far = {c.name for c in contest.contenders if c.limit and contest.share is None}  # limits that nobody comes near
    found = {w: s for w, s in rates(rows).items() if s["n"] and w not in far}
    ours = {c.name for c in contest.contenders if c.ours}
    own = {w: "Polyplay, float32" if "float32" in w else "Polyplay" for w in ours}
    own |= {c.name: "a limit" for c in contest.contenders if c.limit}
    kind = [own.get(w, "a peer") for w in found]
    color = [KINDS[k] for k in kind]
    middle = [s["median"] for s in found.values()]
    reach = [[s["median"] - s["min"] for s in found.values()], [s["max"] - s["median"] for s in found.values()]]
    style = {"ecolor": INK, "elinewidth": 1.0, "capsize": 2}
    axes.barh(range(len(found)), middle, color=color, height=0.72, xerr=reach, error_kw=style)
    peer = best_peer(found, contest)
    for i, (w, s) in enumerate(found.items()):
        share = spread(ratios(rows, w, peer))["median"] if peer and w in ours else None
        told = f"{s['median']:.0f}" + (f"  {share:.2f}×" if share else "")
        back = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
        place: Any = {"textcoords": "offset points", "va": "center", "color": INK, "fontsize": 8, "bbox": back}
        axes.annotate(told, (s["max"], i), (5, 0), **place)
    axes.set_yticks(range(len(found)), list(found), fontsize=9)
    axes.invert_yaxis()
    aim = (contest.least or 0.0) * (found[peer]["median"] if peer else 0.0)
    axes.set_xlim(0, max(1.25 * max(s["max"] for s in found.values()), 1.05 * aim))
    if aim:
        axes.axvline(aim, color=INK, linestyle="--", linewidth=1.0, zorder=0)
    axes.set_xlabel("agent steps/s, and × the best peer", color=INK, fontsize=8)
    axes.set_title(contest.title.split(" (")[0], loc="left", color=INK, fontsize=10)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0, labelsize=8)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(FAINT)


Kept = dict[str, Any]  # what a contest's JSON holds


def one(who: Contender, setting: str, window: float, seed: int, asked: argparse.Namespace) -> Row:
    """A window; a program that does not come that far is a row without a rate."""
    turn = turn_of(who, setting)
    fill_cache(who, setting, asked)
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


FILLED = set[tuple[str, str]]()  # contenders and settings whose compiled updates lie in the cache


def fill_cache(who: Contender, setting: str, asked: argparse.Namespace) -> None:
    """Run one of ours that compiles once, waiting for the compiler, so that its windows begin with compiled updates."""
    key = who.program + who.fixed, setting
    if not who.ours or "compile=auto" not in who.fixed or key in FILLED:
        return
    FILLED.add(key)
    waits = replace(who, fixed=who.fixed.replace("compile=auto", "compile=on"))
    with tempfile.TemporaryDirectory() as place, contextlib.suppress(RuntimeError):  # its window says what is wrong
        line, log = words(waits, setting, Path(place), 0, asked.peers, 0.25)
        measure(line, log, 0.0, 0.6, ROOT, True)


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
            publish(out, kept, page(name, contest, kept))


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
        print(picture(asked.out))


if __name__ == "__main__":
    main()
