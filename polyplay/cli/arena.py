"""`polyplay arena`."""

from __future__ import annotations

import json
import sys

from polyplay.cli.arguments import parse_words
from polyplay.common.files import Row, to_plain
from polyplay.evaluation.arena import ArenaOptions, play_arena


def command(words: list[str]) -> None:
    """Prints the table of ratings, the best player first, after a line on standard error for each match."""
    about = "RUN: directories of runs or of their checkpoints, and opponents: random, mcts:N, perfect."
    names, options, _ = parse_words(ArenaOptions, words, "polyplay arena RUN …", about, several=True)
    result = play_arena(names, options, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(to_plain(result), indent=2))
    else:
        _print_ratings(result)


def _print_ratings(result: Row) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from polyplay.runs.reports.screen import default_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("player", overflow="fold")
    for heading in ("Elo", "95 % interval", "points", "games"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(result["players"], key=lambda row: -row["elo"]):
        fixed = row["name"] == result["anchor"]
        interval = "anchor" if fixed else f"{row['low']:.0f} to {row['high']:.0f}"
        played = f"{row['points']:g}", f"{row['games']:g}"
        table.add_row(Text(row["name"]), f"{row['elo']:.0f}", interval, *played)
    default_console().print(table)
    print(
        f"{result['game']}: {result['games']} games of every two players, {result['opening_plies']} random plies first"
    )
