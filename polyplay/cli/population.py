"""population: tables and pictures of members, leagues and rated versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from polyplay.cli.arguments import run_and_options
from polyplay.cli.plot import COLOURS, INK, blank_figure, check_name, dress, print_picture, thin
from polyplay.core import checkpoint
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.numbers import trailing_means
from polyplay.population.league_log import LeagueHistory, has_league, read_history, values_over
from polyplay.population.ratings import RatedVersion, read_rated, read_references
from polyplay.population.store import Segment, Store, best_member, read_lineage
from polyplay.runs.directory import current_rows, read_config, read_population
from polyplay.runs.population_report import member_name, population_report, population_title, winning_line
from polyplay.runs.terminal import default_console, print_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAMES = 10  # of a mean, at least: as many as a score is of
WINDOWS = 40  # means of a member's curve that have no game in common, at most
POINTS = 400  # of a piece of a curve, at most
FILES = {"games": ("episodes.jsonl", "episodic_return"), "evaluations": ("evaluations.jsonl", "episodic_return_mean")}


@dataclass(frozen=True)
class Piece:
    """A part of a curve. x: agent steps of a member."""

    x: np.ndarray
    y: np.ndarray

    def between(self, begin: float, end: float) -> Piece:
        """What of it lies there."""
        inside = (self.x >= begin) & (self.x <= end)
        return Piece(self.x[inside], self.y[inside])


def score_pieces(directory: Path, population: Row, rows: Sequence[Row], member: int) -> list[Piece]:
    """A member's scores, from each of its copies to the next: means of games, or its evaluations; where there are none,
    those of its decisions.
    """
    own = [row for row in rows if row["member"] == member]
    file, column = FILES.get(population["score"], FILES["games"])
    found = current_rows(Store(directory).member(member) / file, "steps", column)
    games = bool(found) and population["score"] == "games"
    if not found:
        found = [{"steps": row["steps"], column: row["score"]} for row in own if row.get("score") is not None]
    x, y = (np.array([row[name] for row in found], float) for name in ("steps", column))
    edges = [-1.0, *(float(row["steps"]) for row in own if row["donor"] is not None), np.inf]
    pieces = [Piece(x, y).between(np.nextafter(begin, end), end) for begin, end in pairwise(edges)]
    return [running_mean(piece, max(GAMES, len(x) // WINDOWS)) for piece in pieces] if games else pieces


def running_mean(piece: Piece, window: int) -> Piece:
    """Means of the last `window` games, or of as many as there are from GAMES on (of all if there are fewer); one for
    games that ended at the same step.
    """
    first = max(0, min(GAMES, len(piece.x)) - 1)
    x, means = piece.x[first:], trailing_means(piece.y, window)[first:]
    kept = thin(x, POINTS)
    return Piece(x[kept], means[kept])


def value_steps(rows: Sequence[Row], member: Row, name: str) -> list[tuple[int, int, Any]]:
    """A hyperparameter of a member: from which of its agent steps, to which, it had what value."""
    own = [row for row in rows if row["member"] == member["member"] and name in row["new"]]
    ends = [*(row["steps"] for row in own[1:]), member["steps"]]
    parts = [(row["steps"], end, row["new"][name]) for row, end in zip(own, ends, strict=False)]
    return [part for part in parts if part[0] < part[1]]


GREY, WINNER, COPY = "#b0b0b0", COLOURS[0], COLOURS[1]
THIN, STRONG = 0.8, 2.2
CLOSE = 0.01  # of the steps of who copies: the donor was there too

Curves = Mapping[int, Sequence[Piece]]  # by member


def draw_scores(axes: Axes, rows: Sequence[Row], line: Sequence[Segment], curves: Curves) -> None:
    """Scores of members over their agent steps, and who copied whom. line: the winner's."""
    for pieces in curves.values():
        for piece in pieces:
            axes.plot(piece.x, piece.y, color=GREY, linewidth=THIN, zorder=1)
    copies = [row for row in rows if row["donor"] is not None and row.get("donor_score") is not None]
    joints = {(after.member, after.begin) for _, after in pairwise(line)}
    for row in copies:
        _draw_copy(axes, row, own=(row["member"], row["steps"]) in joints)
    for segment in line:
        parts = [piece.between(segment.begin, segment.end) for piece in curves[segment.member]]
        for piece in parts:
            axes.plot(piece.x, piece.y, color=WINNER, linewidth=STRONG, solid_capstyle="round", zorder=4)
        _name_ancestor(axes, segment, parts)
    _explain(axes, line, copies)


def _draw_copy(axes: Axes, row: Row, own: bool) -> None:
    """A vertical arrow from the score of who copies to the donor's, and dots from where the donor was. own: it is in
    the winner's line.
    """
    high = row["donor_score"]
    low = high if row.get("score") is None else row["score"]
    look: dict[str, Any] = {"color": WINNER, "zorder": 3} if own else {"color": COPY, "zorder": 2, "alpha": 0.6}
    width = 1.6 if own else THIN
    axes.plot([row["donor_steps"], row["steps"]], [high, high], linestyle=":", linewidth=width, **look)
    axes.plot([row["steps"]] * 2, [low, high], linewidth=width, **look)
    axes.plot(row["steps"], high, marker="^", markersize=5, markeredgewidth=0, **look)
    axes.plot(row["steps"], low, marker="o", markersize=3, markeredgewidth=0, **look)


def _name_ancestor(axes: Axes, segment: Segment, parts: Sequence[Piece]) -> None:
    """The member's number above its part of the winner's line."""
    from matplotlib.patheffects import withStroke

    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    if len(x):
        at = (float(x[len(x) // 2]), float(y[len(x) // 2]))
        text = axes.annotate(member_name(segment.member), at, (0, 7), textcoords="offset points", ha="center")
        text.set(color=WINNER, fontsize=9, fontweight="bold", zorder=5)
        text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


def _explain(axes: Axes, line: Sequence[Segment], copies: Sequence[Row]) -> None:
    """The legend, between the panel and its title."""
    ancestors = len({segment.member for segment in line}) > 1
    label = f"{member_name(line[-1].member)}, the winner"
    axes.plot([], [], color=WINNER, linewidth=STRONG, label=f"{label}{', through its ancestors' * ancestors}")
    axes.plot([], [], color=GREY, linewidth=THIN, label="other members")
    if copies:
        arrow: dict[str, Any] = {"color": COPY, "marker": "^", "markersize": 5, "linewidth": THIN}
        apart = any(abs(row["donor_steps"] - row["steps"]) > CLOSE * row["steps"] for row in copies)
        axes.plot([], [], label=f"copies another's weights{' (dots: of another step)' * apart}", **arrow)
    place: dict[str, Any] = {"ncols": 3, "loc": "lower left", "bbox_to_anchor": (0, 1), "borderpad": 0.2}
    axes.legend(frameon=False, labelcolor=INK, fontsize=9, columnspacing=1.5, **place)


class ValueAxis:
    """Where values of a hyperparameter are on an axis: themselves, or the number of the entry of a list."""

    def __init__(self, population: Row, rows: Sequence[Row], name: str):
        prior = str(population["vary"][name])
        self.log = prior.startswith("log:")
        found = {str(row["new"][name]): row["new"][name] for row in rows if name in row["new"]}
        order = [] if prior.startswith(("log:", "uniform:")) else prior.split(",")
        self.entries = [word for word in order if word in found] + [w for w in found if order and w not in order]

    def place(self, value: Any) -> float:
        return self.entries.index(str(value)) if self.entries else float(value)

    def mark(self, axis: Any, scale: Any, limit: Any) -> None:
        """axis: x or y of axes; scale and limit: what sets its scale, and its limits."""
        if self.entries:
            axis.set_ticks(range(len(self.entries)), self.entries)
            limit(-0.5, len(self.entries) - 0.5)
        elif self.log:
            scale("log")


def draw_values(axes: Axes, population: Row, rows: Sequence[Row], line: Sequence[Segment], name: str) -> None:
    """A hyperparameter over agent steps: every member thin, the winner's line strong."""
    values = ValueAxis(population, rows, name)
    for member in population["members"]:
        parts = value_steps(rows, member, name)
        _draw_steps(axes, [(begin, end, values.place(value)) for begin, end, value in parts], GREY, THIN)
    own = [(segment.begin, segment.end, values.place(segment.values[name])) for segment in line]
    for begin, end, value in own:
        axes.plot([begin, end], [value] * 2, color=WINNER, linewidth=STRONG, solid_capstyle="round", zorder=4)
    for (_, end, before), (begin, _, value) in pairwise(own):
        style = "-" if abs(begin - end) < CLOSE * begin else ":"
        axes.plot([end, begin], [before, value], color=WINNER, linewidth=1.2, linestyle=style, zorder=3)
    dress(axes, "", up=name)
    values.mark(axes.yaxis, axes.set_yscale, axes.set_ylim)


def _draw_steps(axes: Axes, parts: Sequence[tuple[int, int, float]], color: str, width: float) -> None:
    """parts: from where to where there was what value."""
    if parts:
        begins, ends, values = zip(*parts, strict=True)
        axes.hlines(values, begins, ends, color=color, linewidth=width, zorder=1)
        axes.vlines(ends[:-1], values[:-1], values[1:], color=color, linewidth=THIN, alpha=0.35, zorder=1)


def draw_trials(axes: Axes, population: Row, rows: Sequence[Row], winner: Row, name: str) -> None:
    """Scores over a hyperparameter that never changes: a point for every member that has a score."""
    values = ValueAxis(population, rows, name)
    for member in population["members"]:
        if member["score"] is not None:
            best = member["member"] == winner["member"]
            (point,) = axes.plot(values.place(member["values"][name]), member["score"], marker="o", markeredgewidth=0)
            point.set(color=WINNER if best else GREY, markersize=8 if best else 5, zorder=4 if best else 1)
    dress(axes, name, up="score", from_zero=False)
    values.mark(axes.xaxis, axes.set_xscale, axes.set_xlim)


HIGH, LOW, SQUARE = 3.4, 1.8, 2.4  # inches: heights of the uppermost panel, of a hyperparameter, of one without change


def draw_population(directory: Path, population: Row, rows: Sequence[Row]) -> Figure:
    """Every member thin, the winner's line strong through its ancestors; hyperparameters below. If no value ever
    changed, scores over values instead of values over steps. Raises UserError: nothing to draw yet.
    """
    winner = best_member(population["members"])
    if winner is None:
        raise UserError(f"--picture: no member of {directory} has a score yet: let the population go on")
    line, names = winning_line(winner, rows), list(population["vary"])
    found = {m["member"]: score_pieces(directory, population, rows, m["member"]) for m in population["members"]}
    changed = any(row["old"] and row["new"] != row["old"] for row in rows)
    figure, scores, panels = _panels(len(names), 1 if changed else 4, LOW if changed else SQUARE)
    draw_scores(scores, rows, line, found)
    for axes, name in zip(panels, names, strict=True):
        if changed:
            axes.sharex(scores)
            draw_values(axes, population, rows, line, name)
        else:
            draw_trials(axes, population, rows, winner, name)
    what = "evaluations" if population["score"] == "evaluations" else "running mean of games"
    env = read_config(directory, population=True)["config"].get("env", "")
    dress(scores, "", up=f"score ({what})", counts=True)
    scores.set_title(f"{population_title(population)} · {env}", loc="left", color=INK, fontsize=11, pad=24)
    stacked = [scores, *panels] if changed else [scores]
    stacked[-1].set_xlabel("agent steps of a member", color=INK)
    for axes in stacked[:-1]:
        axes.tick_params(labelbottom=False)
    return figure


def _panels(n: int, across: int, height: float) -> tuple[Figure, Axes, list[Axes]]:
    """A figure with a panel over its whole width and n below it, at most so many beside each other."""
    down = -(-n // across)
    across = -(-n // down) if n else 1
    figure = blank_figure("--picture", HIGH + height * down)
    grid = figure.add_gridspec(1 + down, across, height_ratios=[HIGH, *[height] * down])
    top = figure.add_subplot(grid[0, :])
    return figure, top, [figure.add_subplot(grid[1 + i // across, i % across]) for i in range(n)]


FEW = 8  # agents whose lines have colours of their own


def draw_league(directory: Path, history: LeagueHistory, first: Sequence[Row], levels: Mapping[str, float]) -> Figure:
    """Ratings and copies over matches, and below the agents' hyperparameters. first: those that each agent began with,
    {} where they are not known. levels: Elo of opponents.
    """
    names = list(first[0]) if first else []
    figure, ratings, panels = _panels(len(names), 3, LOW)
    agents, end = history.elo.shape[1], max(1, int(history.matches[-1]))
    colours = [COLOURS[agent % len(COLOURS)] if agents <= FEW else "#888888" for agent in range(agents)]
    for agent, colour in enumerate(colours):
        ratings.plot(history.matches, history.elo[:, agent], color=colour, label=f"agent {agent}")
    for copy in history.copies:
        ends = [copy["before"]["elo"], copy["donor_elo"]]
        ratings.plot([copy["match"]] * 2, ends, color=INK, linewidth=THIN, linestyle=":")
    draw_levels(ratings, levels)
    if agents <= FEW:
        ratings.legend(frameon=False, ncols=agents, loc="upper left", fontsize=8)
    env = read_config(directory)["config"].get("env", "")
    title = f"{agents} agents, {len(history.copies)} copies (dotted) · {env}"
    dress(ratings, "matches", title, "Elo", from_zero=False, counts=True)
    for axes, name in zip(panels, names, strict=True):
        found = list[float]()
        for agent, row in enumerate(first):
            parts = values_over(history.copies, agent, row, end)
            steps = [(begin, until, float({**row, **values}[name])) for begin, until, values in parts]
            _draw_steps(axes, steps, colours[agent], 1.5)
            found += [value for _, _, value in steps]
        dress(axes, "", name, from_zero=False, counts=True)
        if min(found) > 0 and max(found) > 4 * min(found):
            axes.set_yscale("log")
    for axes in (ratings, *panels):
        axes.set_xlim(0, end)
    return figure


def draw_levels(axes: Axes, levels: Mapping[str, float]) -> None:
    """Dashed lines with names, of who is no agent of the run."""
    for name, level in levels.items():
        axes.axhline(level, color=INK, linewidth=0.6, linestyle="--", alpha=0.5)
        text = axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom")
        text.set(color=INK, fontsize=8)


def draw_ratings(directory: Path, rated: Sequence[RatedVersion], references: Mapping[str, float]) -> Figure:
    """TrueSkill of versions over agent steps, and references as lines. A band is μ ± 2σ."""
    figure = blank_figure("--picture", 4.2)
    axes, steps = figure.subplots(), [version.steps for version in rated]
    mu, sigma = np.array([version.skill for version in rated]).T
    axes.fill_between(steps, mu - 2 * sigma, mu + 2 * sigma, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(steps, mu, color=COLOURS[0], linewidth=1.8, marker="o", markersize=3)
    draw_levels(axes, references)
    matches, env = sum(version.matches for version in rated), read_config(directory)["config"].get("env", "")
    title = f"{len(rated)} versions, {matches:,} matches · {env}"
    dress(axes, "agent steps", title, "TrueSkill, ± 2σ", counts=True)
    return figure


MATCHES = 40  # of every two, to find levels


@dataclass(frozen=True)
class RankingOptions:
    """Lists the members of a population, best first, and the winner's ancestors; of a run of league or ftw its agents;
    of a run whose versions are rated by TrueSkill the newest one, and the references. Also while it trains.
    """

    picture: str | None = None
    """file of a picture of scores, copies and hyperparameters over agent steps, of a league over matches, of TrueSkill
    over agent steps: .png, .svg or .pdf (none: no picture). Needs polyplay[plots]"""
    levels: tuple[str, ...] = ()
    """with --picture, of a league: whose Elo it shows as lines, by 40 matches of every two of them and its best agent:
    random, bot:NAME, or other runs"""

    def __post_init__(self) -> None:
        if self.picture is not None:
            check_name(self.picture, "--picture")
        elif self.levels:
            raise UserError(f"--levels {' '.join(self.levels)} given, allowed: with --picture FILE, which shows them")


def command(words: list[str]) -> None:
    """Prints the table, and the name of the picture."""
    directory, options, _ = run_and_options(RankingOptions, words, "population")
    if rated := read_rated(directory):
        _show_ratings(directory, rated, options)
        return
    if has_league(directory):
        _show_league(directory, options)
        return
    population, rows = read_population(directory), read_lineage(directory)
    console = default_console()
    print_all(console, [Text(population_title(population), style="bold")])
    print_all(console, population_report(directory, population, rows))
    if options.picture is not None:
        print_picture(draw_population(directory, population, rows), Path(options.picture), "--picture")


def _show_ratings(directory: Path, rated: Sequence[RatedVersion], options: RankingOptions) -> None:
    if options.levels:
        given = f"--levels {' '.join(options.levels)} given, but versions of {directory} are rated against references"
        raise UserError(f"{given}, which the picture shows: leave it out")
    references, console, last = read_references(directory), default_console(), rated[-1]
    (mu, sigma), matches = last.skill, sum(version.matches for version in rated)
    newest = f"TrueSkill {mu:.1f} ± {2 * sigma:.1f} after {last.version:,} updates, {last.steps:,} agent steps"
    print_all(console, [Text(f"{newest} · {len(rated)} versions · {matches:,} matches", style="bold")])
    table = Table("reference", "TrueSkill", "points of that version", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, skill in sorted(references.items(), key=lambda found: -found[1]):
        points = last.points.get(name, [])
        table.add_row(name, f"{skill:.1f}", f"{sum(points):g} of {len(points)}" if points else "not played")
    print_all(console, [table])
    if options.picture is not None:
        print_picture(draw_ratings(directory, rated, references), Path(options.picture), "--picture")


def _show_league(directory: Path, options: RankingOptions) -> None:
    history, console = read_history(directory), default_console()
    agents, rated = history.elo.shape[1], int(history.matches[-1])
    print_all(console, [Text(f"{agents} agents · {rated:,} matches · {len(history.copies)} copies", style="bold")])
    table = Table("agent", "Elo", "copied", "was copied", box=box.SIMPLE_HEAD, pad_edge=False)
    for agent in history.elo[-1].argsort()[::-1].tolist():
        made = [copy["donor"] for copy in history.copies if copy["agent"] == agent]
        last = f"{len(made)} times, agent {made[-1]} last" if made else "nobody"
        times = sum(copy["donor"] == agent for copy in history.copies)
        table.add_row(str(agent), f"{history.elo[-1, agent]:,.0f}", last, f"{times} times")
    print_all(console, [table])
    if options.picture is not None:
        levels = _levels(directory, history, options.levels) if options.levels else {}
        figure = draw_league(directory, history, _first_values(directory, history), levels)
        print_picture(figure, Path(options.picture), "--picture")


def _levels(directory: Path, history: LeagueHistory, names: tuple[str, ...]) -> dict[str, float]:
    """Elo of opponents on the league's scale, where its best agent has the Elo that it has in the league."""
    from polyplay.evaluation.tournament import TournamentOptions, play_tournament

    best = int(history.elo[-1].argmax())
    agent = f"{directory}:{best}"
    try:
        found = play_tournament([agent, *names], TournamentOptions(matches=MATCHES, anchor=agent))
    except UserError as e:
        raise UserError(str(e).replace("tournament:", "--levels:")) from None
    at = float(history.elo[-1, best])
    return {player["name"]: at + player["elo"] for player in found["players"][1:]}


def _first_values(directory: Path, history: LeagueHistory) -> list[Row]:
    """The hyperparameters that each agent began with: those before its first copy, or the present ones."""
    saved = [path for path in checkpoint.everything(directory) if checkpoint.flaw(path) is None]
    if not saved:
        return []
    newest, found = checkpoint.OpenCheckpoint(saved[-1]), list[Row]()
    for agent in range(history.elo.shape[1]):
        mine = next((copy["old"] for copy in history.copies if copy["agent"] == agent), None)
        found.append(mine or newest.json(f"agents/{agent}/learner")["hyperparameters"])
    return found
