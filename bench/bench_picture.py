"""What `polyplay bench --json FILE` measured, as a picture: a bar per system beside its limit.

`python bench/bench_picture.py FILE --out machine.png`; needs polyplay[plots].
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polyplay.cli.bench.main import read_document
from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.common.files import Row

PARTS = {
    "environment": (("env",), COLOURS[2]),
    "acting": (("infer",), COLOURS[5]),
    "learning": (("learn",), COLOURS[0]),
    "dearer than alone": (("dearer_infer", "dearer_learn", "dearer_env"), COLOURS[4]),
    "overhead": (("overhead",), COLOURS[1]),
    "other programs": (("others",), COLOURS[3]),
    "idle": (("idle",), "#d0d0d0"),
}
LIMIT = ("environment", "acting", "learning")


def draw_picture(document: Row, out: Path) -> Path:
    """µs of core time per agent step: above what a system takes, below it what its parts would take alone."""
    rows = [r for r in document["systems"] if "error" not in r]
    figure = Figure(figsize=(10, 1.6 + 0.75 * len(rows)), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, row in enumerate(rows):
        end = _bar(axes, i - 0.17, 0.38, _where(row), 1.0)
        label = f" {row['sps']:,.0f}/s, {row['fraction']:.0%} of its limit: {row['bottleneck']}"
        axes.text(end, i - 0.17, label, va="center", color=INK, fontsize=9)
        costs = row["costs_us"]
        alone = {k: costs[PARTS[k][0][0]] for k in LIMIT}
        end = _bar(axes, i + 0.2, 0.22, alone, 0.55)
        axes.text(end, i + 0.2, f" limit {row['limit']:,.0f}/s", va="center", color="#777777", fontsize=8)
    _dress(axes, document, rows)
    figure.savefig(out)
    return Path(out)


def _where(row: Row) -> dict[str, float]:
    return {k: sum(row["where_us"].get(n, 0.0) for n in of) for k, (of, _) in PARTS.items()}


def _bar(axes: Axes, at: float, height: float, parts: Mapping[str, float], alpha: float) -> float:
    left = 0.0
    for name, us in parts.items():
        axes.barh(at, us, height, left, color=PARTS[name][1], alpha=alpha, edgecolor="white", linewidth=0.6)
        left += us
    return left


def _dress(axes: Axes, document: Row, rows: list[Row]) -> None:
    most = max((r["whole_us"] for r in rows), default=1.0)
    axes.set_xlim(0, 1.45 * most)
    axes.set_yticks(range(len(rows)), [r["system"] for r in rows], color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("µs of core time per agent step (narrow bars: the parts alone)", color=INK)
    title = f"{document['env']}, {document['network']}, {document['precision']}, {document['cores']} cores"
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    drawn = [k for k in PARTS if any(_where(r)[k] > 0 for r in rows)]
    axes.legend(
        [Patch(color=PARTS[k][1]) for k in drawn],
        drawn,
        frameon=False,
        labelcolor=INK,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.75 / (1.6 + 0.75 * len(rows)) * 1.0),
        ncols=len(drawn),
        fontsize=8,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="a document of `polyplay bench --json FILE`")
    parser.add_argument("--out", type=Path, default=Path("bench.png"), help="picture (.png, .svg, .pdf)")
    options = parser.parse_args()
    print(draw_picture(read_document(options.file), options.out))


if __name__ == "__main__":
    main()
