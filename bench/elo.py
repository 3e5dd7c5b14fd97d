"""Elo of a run's checkpoints and of opponents by name, from a tournament: every two meet, with both colours.

    python bench/elo.py runs/go9 --checkpoints 6 --games 20 --simulations 100 --anchor mcts:1000 \\
        --others random "gtp:gnugo --mode gtp --chinese-rules --capture-all-dead --positional-superko --level 1"

Elo is relative to the anchor's, whose Elo is 0.
"""

from __future__ import annotations

from pathlib import Path

from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.core import checkpoint
from polyplay.evaluation.tournament import TournamentOptions, play_tournament


def spread(paths: list[Path], n: int) -> list[Path]:
    """n of them at even distances, the last one among them; fewer if there are fewer."""
    n = min(n, len(paths))
    return [paths[round((i + 1) * len(paths) / n) - 1] for i in range(n)]


def row_of(player: Row, games: int) -> Row:
    name, low, high = str(player["name"]), player["low"], player["high"]
    counters = checkpoint.manifest(Path(name))["counters"] if Path(name).is_dir() else {}
    row: Row = {"player": "" if counters else name, "moves played": "", "minutes": ""}
    if counters:
        row |= {"moves played": int(counters["steps"]), "minutes": round(counters["wall_seconds"] / 60)}
    interval = "anchor" if low is None or low == high else f"{low:.0f} to {high:.0f}"
    return row | {"Elo": round(player["elo"]), "95 % interval": interval, f"points of {games}": player["points"]}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoints", type=int, default=6)
    parser.add_argument("--games", type=int, default=20, help="of every two, an even number")
    parser.add_argument("--simulations", type=int, default=100, help="of each move of the run's")
    parser.add_argument("--anchor", default="mcts:1000")
    parser.add_argument("--others", nargs="*", default=["random"])
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    chosen = spread(checkpoint.everything(asked.run), asked.checkpoints)
    options = TournamentOptions(asked.games, asked.anchor, asked.simulations)
    names = [*map(str, chosen), *asked.others]
    found = play_tournament(names, options, lambda line: print(line, flush=True))
    best = sorted(found["players"], key=lambda player: -player["elo"])
    rows, what = [row_of(player, asked.games * (len(best) - 1)) for player in best], about()
    text = [f"# {asked.run.name}: Elo of its checkpoints", "", *lines_about(what), ""]
    text += [f"Every two players met in {asked.games} games, with both colours, after {found['opening_plies']} random"]
    text += [f"plies; {asked.simulations} simulations a move of the run's. Elo is relative to {asked.anchor}.", ""]
    publish(asked.out or RESULTS / f"{asked.run.name}_elo", {**what, **found}, [*text, *table(rows)])


if __name__ == "__main__":
    main()
