"""tournament: play matches between trained agents, and print their ratings as two tables or as one JSON object."""

from __future__ import annotations

import json
import sys

from rich.table import Column
from rich.text import Text

from polyplay.cli.arguments import parse_words
from polyplay.core.files import Row, to_plain
from polyplay.evaluation.gtp import program_line
from polyplay.evaluation.tournament import TournamentOptions, play_tournament
from polyplay.runs.terminal import default_console, ruled_table

ABOUT = """RUN: directories of runs or of their checkpoints (all their agents; RUN:N is agent N, RUN:best the
best), files of past agents in RUN/past_agents, and opponents: random, bot:NAME, in board games also mcts:N, in connect
four perfect, in Go gtp:COMMAND, a program that speaks GTP."""


def command(words: list[str]) -> None:
    """Run `polyplay tournament`. Print progress on standard error, and then the ratings, as tables or as JSON."""
    names, options, _ = parse_words(TournamentOptions, words, "polyplay tournament RUN …", ABOUT, several=True)
    result = play_tournament(names, options, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(to_plain(result), indent=2))
    else:
        _print_report(result)


def _print_report(result: Row) -> None:
    """Print two tables: the players with their ratings, the best first, and the points of each pair of players."""
    console, placed = default_console(), ({**row, "at": i} for i, row in enumerate(result["players"]))
    players = sorted(placed, key=lambda row: -row["elo"])
    name = Column("player", overflow="fold", min_width=8)
    table = ruled_table(Column("", no_wrap=True), name, numbers=("Elo", "95 % interval", "points"))
    payoffs = ruled_table("", numbers=map(str, range(1, len(players) + 1)))
    for place, row in enumerate(players, 1):
        interval = "anchor" if row["name"] == result["anchor"] else f"{row['low']:.0f} to {row['high']:.0f}"
        table.add_row(str(place), Text(row["name"]), f"{row['elo']:.0f}", interval, f"{row['points']:g}")
        points = [result["payoff"][row["at"]][other["at"]] for other in players]
        payoffs.add_row(str(place), *("–" if value is None else f"{value:.2f}" for value in points))
    console.print(table)
    console.print(Text("points per match of row against column"))
    console.width = max(console.width, 7 * (len(players) + 1))  # numbers are never cut
    console.print(payoffs)
    opened = "" if result["opening_plies"] is None else f", {result['opening_plies']} random plies first"
    played = f"{result['game']}: {result['matches']} matches per pair of players, half on each side{opened}"
    for line in (played, *map(program_line, result.get("programs", ()))):
        console.print(Text(line), soft_wrap=True)
