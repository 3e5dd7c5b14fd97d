"""What `polyplay bench` found, as a picture: a bar per system beside its limit. Needs polyplay[plots]."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.common.errors import UserError

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


def check_picture(file: str) -> None:
    """Raises UserError: no place to draw, or nothing to draw with."""
    if Path(file).suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--picture: {file} given, allowed: a file .png, .svg or .pdf")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError("--picture needs matplotlib, which is not installed: pip install 'polyplay[plots]'") from None


def draw_picture(document: Mapping[str, Any], out: Path) -> Path:
    """µs of core time per agent step: above what a system takes, below it what its parts would take alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [r for r in document["systems"] if "error" not in r]
    figure = Figure(figsize=(10, 1.6 + 0.75 * len(rows)), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, row in enumerate(rows):
        end = _bar(axes, i - 0.17, 0.38, _where(row), 1.0)
        told = f" {row['sps']:,.0f}/s, {row['fraction']:.0%} of its limit: {row['bottleneck']}"
        axes.text(end, i - 0.17, told, va="center", color=INK, fontsize=9)
        costs = row["costs_us"]
        alone = {k: costs[PARTS[k][0][0]] for k in LIMIT}
        end = _bar(axes, i + 0.2, 0.22, alone, 0.55)
        axes.text(end, i + 0.2, f" limit {row['limit']:,.0f}/s", va="center", color="#777777", fontsize=8)
    _dress(axes, document, rows)
    figure.savefig(out)
    return Path(out)


def _where(row: Mapping[str, Any]) -> dict[str, float]:
    return {k: sum(row["where_us"].get(n, 0.0) for n in of) for k, (of, _) in PARTS.items()}


def _bar(axes: Any, at: float, height: float, parts: Mapping[str, float], alpha: float) -> float:
    left = 0.0
    for name, us in parts.items():
        axes.barh(at, us, height, left, color=PARTS[name][1], alpha=alpha, edgecolor="white", linewidth=0.6)
        left += us
    return left


def _dress(axes: Any, document: Mapping[str, Any], rows: Any) -> None:
    from matplotlib.patches import Patch

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
    seen = [k for k in PARTS if any(_where(r)[k] > 0 for r in rows)]
    axes.legend(
        [Patch(color=PARTS[k][1]) for k in seen],
        seen,
        frameon=False,
        labelcolor=INK,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.75 / (1.6 + 0.75 * len(rows)) * 1.0),
        ncols=len(seen),
        fontsize=8,
    )
