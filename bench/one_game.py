"""One game, as when a person waits: several leaves at a time with virtual loss, against one leaf at a time.

    python bench/one_game.py --champion bench/champions/connect_four

Speed: searches from the start of connect four, 5 blocks of 64 filters, one game, one process; batches of as many
positions as there are leaves. Strength: the champion on the committed decisive positions at equal simulations, by the
share of positions whose value its move keeps; its standard error is about 1 point.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict
from positions import decisive_positions, moves_kept

from polyplay.acting import play
from polyplay.core import checkpoint
from polyplay.envs import Envs
from polyplay.games.boards import GAMES
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.runs.directory import read_config
from polyplay.search import Search, SearchOptions
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.search.search import SearchPolicy
from polyplay.systems import load
from polyplay.workers.crew import Crew

BOARD = GAMES["connect_four"]
CASES = [("torch", "float32"), ("torch", "bfloat16"), ("openvino", "bfloat16")]
TARGET = 4.0  # × one leaf at a time


def speed(backend: str, precision: str, leaves: int, threads: int, seconds: float) -> float:
    """Simulations/s of one game's searches of 400 simulations, one after the other."""
    factory = BoardNetworkFactory(Envs("game:connect_four", 1).spec, 5, 64)
    evaluator = NetworkEvaluator(factory, leaves, backend, precision, threads=threads)
    evaluator.take(0)
    options = SearchOptions(400, "alphago_zero", leaves=leaves, reuse=False)
    search = Search(BOARD, 1, options, evaluator)
    n, begun = -1, time.perf_counter()  # the first one warms up
    while n < 1 or time.perf_counter() - begun < seconds:
        search.restart()
        while not len(search.step().games):
            pass
        n += 1
        begun = time.perf_counter() if n == 0 else begun
    return n * options.simulations / (time.perf_counter() - begun)


def strength(champion: Path, leaves: int, simulations: int, positions: int) -> float:
    """Share of decisive positions whose value its move keeps."""
    page, config = load("alphago_zero"), read_config(champion)["config"]
    wired = page.build(page.Config(**config | {"simulations": simulations}), Crew(0))
    player = play.load_player(wired, checkpoint.everything(champion)[-1])
    assert isinstance(player, SearchPolicy)
    player.simulate(simulations, leaves)
    asked = decisive_positions(BOARD).first(positions)
    kept = moves_kept(lambda records, random, at: player.choose(records[at])[0], asked)
    return sum(kept) / len(kept)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--champion", type=Path, default=Path(__file__).parent / "champions" / "connect_four")
    parser.add_argument("--leaves", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--simulations", type=int, nargs="+", default=[100, 400], help="of the searches for strength")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1, help="that compute")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each speed")
    parser.add_argument("--out", type=Path, default=RESULTS / "one_game")
    asked = parser.parse_args()
    what, rows = about(), list[Row]()
    here = [c for c in CASES if c[0] == "torch" or importlib.util.find_spec("openvino")]
    for leaves in asked.leaves:
        row: Row = {"leaves": leaves}
        for case in here:
            row[f"{' '.join(case)}, simulations/s"] = speed(*case, leaves, asked.threads, asked.seconds)
        for n in asked.simulations:
            row[f"kept with {n}, %"] = 100 * strength(asked.champion, leaves, n, asked.positions)
        rows.append(row)
        print(row, flush=True)
    names = [f"{' '.join(case)}, simulations/s" for case in here]
    first = rows[0]
    lines = [verdict(f"{k}, × one leaf", max(r[k] for r in rows) / first[k], least=TARGET) for k in names]
    text = ["# One game", "", *lines_about(what), "", *table(rows), "", *lines]
    publish(asked.out, {**what, "rows": rows}, text)


if __name__ == "__main__":
    main()
