"""runs RUN: print and draw rankings of a population's members, a league's agents, or an agent's rated versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from polyplay.cli.plot import COLORS, INK, blank_figure, dress, print_picture, thin
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.numbers import trailing_means
from polyplay.population import league_log, ratings, store
from polyplay.runs import directory as run_files
from polyplay.runs import population_report as report
from polyplay.runs.terminal import default_console, print_all, ruled_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAMES = 10  # games per running mean, as in a member's score; a long run has more games per mean
WINDOWS = 40  # a member's curve has at most this number of means without common games
POINTS = 400  # most points of a curve
GRAY, WINNER, COPY = "#b0b0b0", COLORS[0], COLORS[1]
THIN, STRONG = 0.8, 2.2
TOP, LOW, SQUARE = 3.4, 1.8, 2.4  # heights in inches: top panel, panel of a changing value, of a constant one


def member_curve(directory: Path, population: Row, rows: Sequence[Row], member: int) -> np.ndarray:
    """Return a member's agent steps and scores, float64 [n, 2]. A score is a running mean of games, or an evaluation.
    If the member has neither, its scores are taken from `rows`, the log of the population's decisions.
    """
    games = population["score"] != "evaluations"
    column = "episodic_return" if games else "episodic_return_mean"
    place = store.Store(directory).member(member)
    found = run_files.current_rows(place / ("episodes.jsonl" if games else "evaluations.jsonl"), "steps", column)
    if not found:
        games, column = False, "score"
        found = [row for row in rows if row["member"] == member and row.get("score") is not None]
    curve = np.array([(row["steps"], row[column]) for row in found], float).reshape(-1, 2)
    if games:  # running means restart when the member copies another
        copies = [row["steps"] for row in rows if row["member"] == member and row["donor"] is not None]
        for piece in np.split(curve, np.searchsorted(curve[:, 0], copies, side="right")):
            piece[:, 1] = trailing_means(piece[:, 1], max(GAMES, len(curve) // WINDOWS))
    return curve[thin(curve[:, 0], POINTS)]


def _place(value: Any) -> Any:
    return value if type(value) in (int, float) else str(value)


def draw_scores(
    axes: Axes, rows: Sequence[Row], line: Sequence[store.Segment], curves: Mapping[int, np.ndarray]
) -> None:
    """Draw the members' scores over agent steps, and mark where a member copied another member.
    `line`: segments of the winner's history. The winner is the best member, and it may have copied other members.
    `curves`: the curve of each member, by the member's number.
    """
    for curve in curves.values():
        axes.plot(*curve.T, color=GRAY, linewidth=THIN, zorder=1)
    for row in rows:
        if row["donor"] is not None and row.get("donor_score") is not None:
            ends = [row["donor_score"] if row.get("score") is None else row["score"], row["donor_score"]]
            axes.plot([row["steps"]] * 2, ends, color=COPY, linewidth=THIN, marker="^", markevery=[1], alpha=0.6)
    for segment in line:
        x, y = curves[segment.member].T
        own = (x > segment.begin) & (x <= segment.end)
        axes.plot(x[own], y[own], color=WINNER, linewidth=STRONG, zorder=4)
    label = f"the winner: {report.lineage_text(line)}"
    axes.plot([], [], color=WINNER, linewidth=STRONG, label=label)
    axes.plot([], [], color=COPY, linewidth=THIN, marker="^", label="copies another's weights")
    axes.legend(frameon=False, labelcolor=INK, fontsize=9, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))


def _draw_steps(
    axes: Axes, parts: Sequence[tuple[float, Any]], end: float, color: str, width: float, up: int = 1
) -> None:
    """Draw the values of a hyperparameter as a step function that ends at `end`. `parts` has pairs (begin, value)."""
    if parts:
        begins, values = zip(*parts, strict=True)
        x, y = [*begins, end], [*map(_place, values), _place(values[-1])]
        axes.plot(x, y, color=color, linewidth=width, drawstyle="steps-post", zorder=up)


def draw_population(directory: Path, population: Row, rows: Sequence[Row]) -> Figure:
    """Draw the members' scores over agent steps. A strong line shows the winner and the members from which it was
    copied. Panels below show each hyperparameter over agent steps. If no hyperparameter has changed, they show the
    score over the hyperparameter. Raises UserError if no member has a score yet.
    """
    members, winner = population["members"], store.best_member(population["members"])
    if winner is None:
        raise UserError(f"--picture: no member of {directory} has a score yet; let the population continue")
    line, names = report.winning_line(winner, rows), list(population["vary"])
    changed = any(row["old"] and row["new"] != row["old"] for row in rows)
    figure, scores, panels = _panels(len(names), 1 if changed else 4, LOW if changed else SQUARE)
    curves = {m["member"]: member_curve(directory, population, rows, m["member"]) for m in members}
    draw_scores(scores, rows, line, curves)
    what = "evaluations" if population["score"] == "evaluations" else "running mean of games"
    dress(scores, "agent steps of a member", up=f"score ({what})", counts=True)
    title = f"{report.population_title(population)} · {_env(directory)}"
    scores.set_title(title, loc="left", color=INK, fontsize=11, pad=24)
    for axes, name in zip(panels, names, strict=True):
        for member in members if changed else ():
            own = [row for row in rows if row["member"] == member["member"] and name in row["new"]]
            _draw_steps(axes, [(row["steps"], row["new"][name]) for row in own], member["steps"], GRAY, THIN)
        for member in () if changed else members:
            if member["score"] is not None:
                look: dict[str, Any] = {"color": WINNER, "markersize": 8} if member is winner else {"color": GRAY}
                axes.plot([_place(member["values"][name])], [member["score"]], marker="o", **look)
        if changed:
            _draw_steps(axes, [(part.begin, part.values[name]) for part in line], line[-1].end, WINNER, STRONG, up=4)
        dress(axes, "" if changed else name, up=name if changed else "score", from_zero=changed, counts=changed)
        if str(population["vary"][name]).startswith("log:"):
            (axes.set_yscale if changed else axes.set_xscale)("log")
    return figure


def _env(directory: Path) -> str:
    return str(run_files.read_config(directory, population=True)["config"].get("env", ""))


def _panels(n: int, across: int, height: float) -> tuple[Figure, Axes, list[Axes]]:
    """Return a figure, its wide top panel, and n panels below it in rows of at most `across` panels."""
    across = max(1, min(n, across))
    down = -(-n // across)
    figure = blank_figure("--picture", TOP + height * down)
    grid = figure.add_gridspec(1 + down, across, height_ratios=[TOP, *[height] * down])
    top = figure.add_subplot(grid[0, :])
    return figure, top, [figure.add_subplot(grid[1 + i // across, i % across]) for i in range(n)]


FEW = 8  # most agents with separate colors


def draw_league(directory: Path, history: league_log.LeagueHistory, first: Sequence[Row]) -> Figure:
    """Draw the ratings of a league's agents over matches. Dotted lines mark where an agent copied another agent. Panels
    below show the agents' hyperparameters. `first`: initial hyperparameters of each agent, or [] if they are unknown.
    """
    names = list(first[0]) if first and history.copies else []  # without copies values are constant
    figure, top, panels = _panels(len(names), 3, LOW)
    agents, end = history.elo.shape[1], max(1, int(history.matches[-1]))
    colors = [COLORS[agent % len(COLORS)] if agents <= FEW else "#888888" for agent in range(agents)]
    for agent, color in enumerate(colors):
        top.plot(history.matches, history.elo[:, agent], color=color, label=f"agent {agent}")
    for copy in history.copies:
        ends = [copy["elo"], copy["donor_elo"]]
        top.plot([copy["match"]] * 2, ends, color=INK, linewidth=THIN, linestyle=":")
    if agents <= FEW:
        top.legend(frameon=False, ncols=agents, loc="upper left", fontsize=8)
    copies = f", {len(history.copies)} copies (dotted)" if history.copies else ""
    title = f"{agents} agents{copies} · {_env(directory)}"
    dress(top, "matches", title, "Elo", from_zero=False, counts=True)
    for axes, name in zip(panels, names, strict=True):
        found = list[float]()
        for agent, row in enumerate(first):
            values = history.values_over(agent, row)
            parts = [(begin, float({**row, **had}[name])) for begin, had in values]
            _draw_steps(axes, parts, end, colors[agent], 1.5)
            found += [value for _, value in parts]
        dress(axes, "", name, from_zero=False, counts=True)
        if min(found) > 0 and max(found) > 4 * min(found):
            axes.set_yscale("log")
    for axes in (top, *panels):
        axes.set_xlim(0, end)
    return figure


def draw_ratings(directory: Path, rated: Sequence[ratings.RatedVersion], references: Mapping[str, float]) -> Figure:
    """Draw the TrueSkill of an agent's versions over steps, with a band μ ± 2σ, and lines for reference opponents."""
    figure = blank_figure("--picture", 4.2)
    axes, steps = figure.subplots(), [version.steps for version in rated]
    mu, sigma = np.array([version.skill for version in rated]).T
    axes.fill_between(steps, mu - 2 * sigma, mu + 2 * sigma, color=COLORS[0], alpha=0.18, linewidth=0)
    axes.plot(steps, mu, color=COLORS[0], linewidth=1.8, marker="o", markersize=3)
    for name, level in references.items():
        axes.axhline(level, color=INK, linewidth=0.6, linestyle="--", alpha=0.5)
        look: dict[str, Any] = {"ha": "right", "va": "bottom", "color": INK, "fontsize": 8}
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), **look)
    title = f"{len(rated)} versions, {_matches(rated):,} matches · {_env(directory)}"
    dress(axes, "agent steps", title, "TrueSkill, ± 2σ", counts=True)
    return figure


Shown = tuple[str, Iterable[RenderableType], Callable[[], "Figure"]]  # title, lines, function that draws the chart


def print_ranking(directory: Path, picture: str | None) -> bool:
    """Print the ranking of a run, and return whether the run has one. If `picture` is given, also draw a chart.

    - population: its members, best first, and the history of the winner
    - league or ftw: its agents
    - run with TrueSkill ratings: the newest rated version, and the opponents that it is compared with
    """
    if rated := ratings.read_rated(directory):
        title, lines, draw = _show_ratings(directory, rated)
    elif league_log.has_league(directory):
        title, lines, draw = _show_league(directory)
    elif run_files.has_members(run_files.read_config(directory, population=True)):
        population, rows = run_files.read_population(directory), store.read_lineage(directory)
        title, lines = report.population_title(population), report.population_report(directory, population, rows)
        draw = lambda: draw_population(directory, population, rows)  # noqa: E731
    else:
        return False
    print_all(default_console(), [Text(title, style="bold"), *lines])
    if picture is not None:
        print_picture(draw(), Path(picture), "--picture")
    return True


def _matches(rated: Sequence[ratings.RatedVersion]) -> int:
    return sum(version.matches for version in rated)


def _show_ratings(directory: Path, rated: Sequence[ratings.RatedVersion]) -> Shown:
    references, last = ratings.read_references(directory), rated[-1]
    mu, sigma = last.skill
    newest = f"TrueSkill {mu:.1f} ± {2 * sigma:.1f} after {last.version:,} updates, {last.steps:,} agent steps"
    table = ruled_table("reference", "TrueSkill", "points of that version")
    for name, skill in sorted(references.items(), key=lambda found: -found[1]):
        points = last.points.get(name, [])
        table.add_row(name, f"{skill:.1f}", f"{sum(points):g} of {len(points)}" if points else "not played")
    title = f"{newest} · {len(rated)} versions · {_matches(rated):,} matches"
    return title, [table], lambda: draw_ratings(directory, rated, references)


def _show_league(directory: Path) -> Shown:
    history = league_log.read_history(directory)
    agents, rated = history.elo.shape[1], int(history.matches[-1])
    table = ruled_table("agent", "Elo", "copied", "was copied")
    for agent in history.elo[-1].argsort()[::-1].tolist():
        made = [copy["donor"] for copy in history.copies if copy["agent"] == agent]
        last = f"{len(made)} times, agent {made[-1]} last" if made else "no agent"
        times = sum(copy["donor"] == agent for copy in history.copies)
        table.add_row(str(agent), f"{history.elo[-1, agent]:,.0f}", last, f"{times} times")

    title = f"{agents} agents · {rated:,} matches · {len(history.copies)} copies"
    return title, [table], lambda: draw_league(directory, history, _first_values(directory, history))


def _first_values(directory: Path, history: league_log.LeagueHistory) -> list[Row]:
    """Return the hyperparameters of each agent before its first copy, or [] if no checkpoint is intact."""
    saved = [path for path in checkpoint.everything(directory) if checkpoint.flaw(path) is None]
    if not saved:
        return []
    newest, found = checkpoint.OpenCheckpoint(saved[-1]), list[Row]()
    for agent in range(history.elo.shape[1]):
        mine = next((copy["old"] for copy in history.copies if copy["agent"] == agent), None)
        found.append(mine or newest.json(f"agents/{agent}/learner")["hyperparameters"])
    return found
