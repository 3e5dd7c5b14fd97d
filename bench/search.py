"""Speed of the tree search alone: simulations/s on one core, with an evaluator that always says the same.

    python bench/search.py

A row is one search from the start of every game, repeated. Repetitions do the same to the bit, so each round has a
least and a median time among them; a speed is all simulations over the sum of those times. The least one is that of a
core that nobody else disturbs; where others compute, the median is below it. For `self-play`, games are played to their
end and begun anew, with noise at the root: moves, choices and kept subtrees are included, per second of CPU time.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict

from polyplay.games.boards import game
from polyplay.games.records import GOES_ON
from polyplay.search import Search, SearchOptions
from polyplay.search.evaluators import UniformEvaluator

SPEED = "simulations/s, least time"
TARGET = 2.5e6  # simulations/s
WARM = 12  # searches of every game before those of self-play count: by then games are at different plies
SECONDS = 3.0  # of self-play


def one_search(search: Search) -> list[float]:
    """Seconds of each round of one search of all games."""
    search.restart()
    seconds = []
    while not len(search.finished().games):
        begun = time.perf_counter()
        planes = search.round()
        search.answer(*search.evaluator.evaluate(planes))
        seconds.append(time.perf_counter() - begun)
    return seconds


def alone(name: str, games: int, leaves: int, asked: argparse.Namespace) -> Row:
    """One row: searches of so many games at once."""
    board = game(name)
    options = SearchOptions(simulations=asked.simulations, leaves=leaves)
    uniform = UniformEvaluator(board.actions)
    search = Search(board, games, options, uniform)
    one_search(search)  # compiles
    times = np.array([one_search(search) for _ in range(asked.repeats)])
    n = int(search.tree.plays["done"].sum())
    return {
        "game": name,
        "games": games,
        "leaves per game": leaves,
        SPEED: n / times.min(0).sum(),
        "median": n / np.median(times, 0).sum(),
        "µs/round": 1e6 * times.min(0).mean(),
        "self-play": plays(Search(board, games, replace(options, noise=0.25, inherited="added"), uniform)),
    }


def plays(search: Search) -> float:
    """Simulations per second of CPU time, games played from start to end; a while goes by before it counts."""
    search.restart()
    n, begun = 0, 0.0
    while True:
        now = time.thread_time()
        if not begun and search.tree.plays["searches"].min() > WARM:
            n, begun = 0, now
        if begun and now - begun > SECONDS:
            return n / (now - begun)
        done = search.step()
        if len(done.games):
            n += len(done.games) * search.options.simulations  # inherited ones do not count
            results = search.advance(done.games, search.choose(done))
            search.restart(done.games[results != GOES_ON])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--game", nargs="+", default=["connect_four", "tic_tac_toe"])
    parser.add_argument("--games", type=int, nargs="+", default=[32, 128, 256, 512])
    parser.add_argument("--leaves", type=int, nargs="+", default=[1, 8], help="per game and round")
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS / "search")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    cases = [(name, games, leaves) for name in asked.game for games in asked.games for leaves in asked.leaves]
    rows = [alone(*case, asked) for case in cases]
    data = {**about(), "load": load, "simulations": asked.simulations, "repeats": asked.repeats, "rows": rows}
    fewest = min(asked.leaves)
    best = {
        name: max(r[SPEED] for r in rows if (r["game"], r["leaves per game"]) == (name, fewest)) for name in asked.game
    }
    text = [
        "# Tree search alone",
        "",
        *lines_about(data),
        f"- {asked.simulations} simulations per search, {asked.repeats} repetitions; load average before: {load:.1f}",
        "",
        *table(rows),
        "",
        *(verdict(f"{name}, leaves per game {fewest}, simulations/s", v, least=TARGET) for name, v in best.items()),
    ]
    publish(asked.out, data, text)


if __name__ == "__main__":
    main()
