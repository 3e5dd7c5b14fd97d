"""The GA3C talk's first plot on this machine: agent steps/s of A3C and of GA3C for small and large networks, Pong.

    python bench/pps.py
    python bench/pps.py --resume                      # go on after an interruption
    python bench/pps.py --only a3c --networks ga3c    # a part of it

Each round runs every network under A3C, then under GA3C; where a system is given several settings, each gets a window
and its fastest counts. Ratios are taken within a round. Steps are those of metrics.jsonl: actions of finished
predictions, counted by the workers, after a warm-up that does not count.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import QUIET, RESULTS, ROOT, Row, about, command_line, kept, lines_about, publish, said, spread, table
from measure import measure
from originals import ours

from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.core.files import write_json

NETWORKS = {"ga3c": "small", **{f"ga3c_large{s}": f"large, stride {s}" for s in (4, 3, 2, 1)}}
TALK = {"ga3c": 4, "ga3c_large4": 11, "ga3c_large3": 12, "ga3c_large2": 20, "ga3c_large1": 45}  # GA3C / A3C
SETTINGS = {"a3c": ["workers=2 unroll=5"], "ga3c": ["agents=16 predictors=1 trainers=1 unroll=5 schedule=off"]}


def one(system: str, network: str, setting: str, number: int, asked: argparse.Namespace) -> Row:
    """A window; what does not come that far is a row without a rate."""
    row: Row = {"round": number + 1, "system": system, "network": network, "setting": setting}
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        words = ours(system, f"network={network} {setting}", run, number, asked)
        try:
            row |= measure(words, run / "metrics.jsonl", asked.warm, asked.window, ROOT, stop=True)
            del row["lines"]
        except RuntimeError as e:
            print(f"pps: {e}", file=sys.stderr)
            row["failed"] = str(e).splitlines()[0]
    noise = "  (machine not quiet)" if row.get("others_cores", 0.0) > QUIET else ""
    print(f"pps: round {number + 1}, {system:<5} {network:<12} {row.get('sps', 0.0):7.1f} steps/s{noise}", flush=True)
    return row


def best(rows: list[Row], system: str, network: str) -> dict[int, float]:
    """Of each round, the fastest setting's rate."""
    found: dict[int, float] = {}
    for r in rows:
        if (r["system"], r["network"]) == (system, network) and r.get("sps"):
            found[r["round"]] = max(found.get(r["round"], 0.0), r["sps"])
    return found


def results(rows: list[Row]) -> list[Row]:
    """One row per network that was measured."""
    answer = []
    for network, name in NETWORKS.items():
        a3c, ga3c = best(rows, "a3c", network), best(rows, "ga3c", network)
        if a3c or ga3c:
            ratios = spread(ga3c[k] / a3c[k] for k in a3c if k in ga3c)
            rates = {"a3c": spread(a3c.values()), "ga3c": spread(ga3c.values())}
            answer.append({"network": network, "name": name, **rates, "ratio": ratios, "talk": TALK[network]})
    return answer


def draw(found: list[Row], out: Path) -> Path:
    """Left both rates over the size of the network, right their ratio here and in the talk."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for system, colour in (("a3c", COLOURS[1]), ("ga3c", COLOURS[0])):
        _line(left, [f[system] for f in found], colour, system.upper(), ".0f")
    _line(right, [f["ratio"] for f in found], COLOURS[2], "this machine", ".2f")
    talk = [spread([f["talk"]]) for f in found]
    _line(right, talk, COLOURS[6], "the talk: 16 cores and a GPU", ".0f")
    _dress(left, found, "agent steps per second", "A3C and GA3C by size of the network, Pong")
    _dress(right, found, "GA3C / A3C", "")
    figure.savefig(out)
    return out


def _line(axes: Any, some: list[Row], colour: str, label: str, form: str) -> None:
    """Medians, with bars from the least to the greatest."""
    at = [i for i, s in enumerate(some) if s["n"]]
    kept = [some[i] for i in at]
    middle = [s["median"] for s in kept]
    reach = [[s["median"] - s["min"] for s in kept], [s["max"] - s["median"] for s in kept]]
    axes.errorbar(at, middle, yerr=reach, color=colour, label=label, marker="o", markersize=4, linewidth=1.6, capsize=2)
    for x, y in zip(at, middle, strict=True):
        axes.annotate(f"{y:{form}}", (x, y), (0, 6), textcoords="offset points", ha="center", color=colour, fontsize=8)


def _dress(axes: Any, found: list[Row], up: str, title: str) -> None:
    axes.set_xticks(range(len(found)), [f["name"].replace(", ", "\n") for f in found])
    axes.set_xlim(-0.5, len(found) - 0.5)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel(up, color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0, which="both")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.legend(frameon=False, labelcolor=INK)


def summary(rows: list[Row], where: Row, asked: argparse.Namespace) -> list[str]:
    """The page."""
    found = results(rows)
    draw(found, asked.out.with_suffix(".png"))
    text = ["# A3C and GA3C by size of the network: Pong", "", *lines_about(where)]
    text += [f"- {s}: `{x}`" for s in asked.only for x in getattr(asked, s)]
    text += ["", f"![steps per second]({asked.out.name}.png)", ""]
    text += [f"Agent steps/s: median (least to greatest) of the rounds, {asked.window:g} s each. The talk's ratios are"]
    text += ["those of 16 cores and a GPU, where GA3C's model is on the GPU and A3C's are on the cores.", ""]
    main = [
        {
            "network": f"{f['network']} ({f['name']})",
            "A3C": said(f["a3c"], 0),
            "GA3C": said(f["ga3c"], 0),
            "GA3C / A3C": said(f["ratio"]),
            "talk": f"{f['talk']}×",
        }
        for f in found
    ]
    each = [
        {
            **{k: r[k] for k in ("round", "system", "network", "setting")},
            "agent steps/s": r.get("sps"),
            "window s": r.get("window_s"),
            "own cores": r.get("own_cores"),
            "others' cores": r.get("others_cores"),
            "peak PSS MB": r.get("pss_mb"),
        }
        for r in rows
    ]
    return [*text, *table(main), "", "## Rounds", "", *table(each)]


def main() -> None:
    parser = command_line(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=float, default=12.0, help="seconds that do not count")
    parser.add_argument("--window", type=float, default=25.0, help="seconds that do")
    parser.add_argument("--report-every", type=float, default=2.0, help="of polyplay")
    parser.add_argument("--resume", action="store_true", help="keep the rows of OUT.json")
    for system, settings in SETTINGS.items():
        parser.add_argument(f"--{system}", nargs="+", default=settings, help="settings: flags of polyplay train")
    parser.add_argument("--out", type=Path, default=RESULTS / "pps")
    asked = parser.parse_args()
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)  # measure() ends what it started
    where = about()
    fixed = {"commit": where["commit"], **{k: getattr(asked, k) for k in ("warm", "window", *SETTINGS)}}
    rows = kept(asked, fixed)
    there = {(r["round"], r["system"], r["network"], r["setting"]) for r in rows}
    turns = [(k, s, n) for k in range(asked.rounds) for n in asked.networks for s in asked.only]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for k, system, network in turns:
            for setting in getattr(asked, system):
                if (k + 1, system, network, setting) not in there:
                    rows.append(one(system, network, setting, k, asked))
                    write_json(asked.out.with_suffix(".json"), {**where, "settings": fixed, "rows": rows})
    except KeyboardInterrupt:
        print("pps: interrupted; --resume goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        if any(r.get("sps") for r in rows):
            publish(asked.out, {**where, "settings": fixed, "rows": rows}, summary(rows, where, asked))


if __name__ == "__main__":
    main()
