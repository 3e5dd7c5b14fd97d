"""The command line of `polyplay population`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from polyplay.cli.arguments import run_and_options
from polyplay.cli.plot import check_name, print_picture
from polyplay.common import checkpoint
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.population.league_history import LeagueHistory, read_history
from polyplay.population.lineage import read_lineage
from polyplay.population.match_log import has_league
from polyplay.population.rated_versions import RatedVersion, read_rated
from polyplay.population.references import read_references
from polyplay.runs.population_file import read_population
from polyplay.runs.reports.population_table import population_report, population_title
from polyplay.runs.reports.screen import default_console, print_all

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
        from polyplay.cli.population.picture import draw_population

        print_picture(draw_population(directory, population, rows), Path(options.picture), "--picture")


def _show_ratings(directory: Path, rated: Sequence[RatedVersion], options: RankingOptions) -> None:
    from rich import box
    from rich.table import Table

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
        from polyplay.cli.population.rating_picture import draw_ratings

        print_picture(draw_ratings(directory, rated, references), Path(options.picture), "--picture")


def _show_league(directory: Path, options: RankingOptions) -> None:
    from rich import box
    from rich.table import Table

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
        from polyplay.cli.population.league_picture import draw_league

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
