"""The page of a contest of compare.py, and one picture of all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import QUIET, Row, lines_about, said, spread, table, verdict
from contests import CONTESTS, Contest

from polyplay.cli.plot import COLOURS, FAINT, INK

KINDS = {"Polyplay": COLOURS[0], "Polyplay, float32": COLOURS[5], "a peer": COLOURS[1], "a limit": "#999999"}

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
        told = f"{c.name} / {peer}, the best peer, round by round {said(s)}; median"
        if contest.least is None:
            text.append(f"- {told}")
        else:
            text.append(verdict(told, s["median"], least=contest.least) + enough(rows, c.name, contest))
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
    """A line for each of ours against the highest limit, where the contest has limits."""
    limit, text = highest(found, contest), []
    for c in contest.contenders if limit and contest.share else ():
        if c.ours and c.name in found:
            s = spread(ratios(rows, c.name, limit or ""))
            told = f"{c.name} / {limit}, the highest limit, round by round {said(s)}; median"
            text.append(verdict(told, s["median"], least=contest.share))
    return text


def medians(rows: list[Row], contest: Contest, found: dict[str, Spread], peer: str | None, kept: Row) -> list[Row]:
    """A row per contender."""
    kind = {c.name: "Polyplay" if c.ours else "peer" if c.peer else "limit" for c in contest.contenders}
    limit = highest(found, contest)

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
    found = {w: s for w, s in rates(rows).items() if s["n"]}
    ours = {c.name for c in contest.contenders if c.ours}
    own = {w: "Polyplay, float32" if "float32" in w else "Polyplay" for w in ours}
    own |= {c.name: "a limit" for c in contest.contenders if c.limit}
    kind = [own.get(w, "a peer") for w in found]
    colour = [KINDS[k] for k in kind]
    middle = [s["median"] for s in found.values()]
    reach = [[s["median"] - s["min"] for s in found.values()], [s["max"] - s["median"] for s in found.values()]]
    style = {"ecolor": INK, "elinewidth": 1.0, "capsize": 2}
    axes.barh(range(len(found)), middle, color=colour, height=0.72, xerr=reach, error_kw=style)
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
