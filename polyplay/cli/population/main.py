"""The command line of `polyplay population`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from polyplay.cli.arguments import run_and_options
from polyplay.cli.plot import check_name, print_picture
from polyplay.population.lineage import read_lineage
from polyplay.runs.population_file import read_population
from polyplay.runs.reports.population_table import population_report, population_title
from polyplay.runs.reports.screen import default_console, print_all


@dataclass(frozen=True)
class RankingOptions:
    """Lists the members of a population, best first, and the winner's ancestors; also while it trains."""

    picture: str | None = None
    """file of a picture of scores, copies and hyperparameters over agent steps: .png, .svg or .pdf (none: no picture).
    Needs polyplay[plots]"""

    def __post_init__(self) -> None:
        if self.picture is not None:
            check_name(self.picture, "--picture")


def command(words: list[str]) -> None:
    """Prints the table, and the name of the picture."""
    directory, options, _ = run_and_options(RankingOptions, words, "population")
    population, rows = read_population(directory), read_lineage(directory)
    console = default_console()
    print_all(console, [Text(population_title(population), style="bold")])
    print_all(console, population_report(directory, population, rows))
    if options.picture is not None:
        from polyplay.cli.population.picture import draw_population

        print_picture(draw_population(directory, population, rows), Path(options.picture), "--picture")
