"""The ways to compute a network in the search: evaluations/s of each, in as many processes at once as there are cores.

    python bench/evaluators.py

Each case has the board, network and batch of a preset or of a row in docs/systems/alphago_zero.md. The ways take turns;
a figure is the median of the turns, added up over the processes, which are new ones each time.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table

from polyplay.envs import Envs
from polyplay.nets.device import is_half
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.search.evaluators import BACKENDS, PRECISIONS, NetworkEvaluator
from polyplay.workers.process import tune

CASES = {  # env, blocks, filters, positions in a batch
    "connect four, `quick`": ("game:connect_four", 4, 48, 64),
    "Go 9×9, 5×64": ("game:go+size=9", 5, 64, 64),
    "Go 9×9, 10×128": ("game:go+size=9", 10, 128, 64),
    "Go 19×19, 20×256": ("game:go", 20, 256, 8),
}


def work(case: str, way: tuple[str, str], seconds: float, together: Any, answers: Any) -> None:
    """Evaluations/s of one process, at the same time as the others'."""
    tune(1)
    env, blocks, filters, batch = CASES[case]
    evaluator = NetworkEvaluator(BoardNetworkFactory(Envs(env, 1).spec, blocks, filters), batch, *way)
    evaluator.take(0)
    planes = np.random.default_rng(0).integers(0, 2, (batch, *evaluator.network.planes)).astype(np.float32)
    evaluator.evaluate(planes)
    together.wait()
    n, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        evaluator.evaluate(planes)
        n += len(planes)
    answers.put(n / passed)


def rate(case: str, way: tuple[str, str], cores: int, seconds: float) -> float:
    """Of `cores` new processes: where its arrays lie in memory changes it, as for a worker of a run."""
    context = multiprocessing.get_context("spawn")
    together, answers = context.Barrier(cores), context.Queue()
    processes = [context.Process(target=work, args=(case, way, seconds, together, answers)) for _ in range(cores)]
    for process in processes:
        process.start()
    found = sum(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    cores, what, rows, measured = len(os.sched_getaffinity(0)), about(), list[Row](), Row()
    backends = [name for name in BACKENDS if name != "openvino" or importlib.util.find_spec("openvino")]
    ways = list(itertools.product(backends, PRECISIONS if is_half("auto") else PRECISIONS[:1]))
    for case in CASES:
        turns = [{way: rate(case, way, cores, asked.seconds) for way in ways} for _ in range(asked.turns)]
        row: Row = {"network": case}
        row |= {" ".join(way): statistics.median(turn[way] for turn in turns) for way in ways}
        for way in ways[len(PRECISIONS) :]:
            ratios = [turn[way] / turn["torch", way[1]] for turn in turns]
            row[f"{way[0]} over torch, {way[1]}"] = said(spread(ratios))
        rows.append(row)
        measured[case] = {" ".join(way): [turn[way] for turn in turns] for way in ways}
        print(rows[-1], flush=True)
    title = "# Ways to compute a network in the search"
    text = [title, "", *lines_about(what), f"- evaluations/s of {cores} processes at once", "", *table(rows)]
    publish(RESULTS / "evaluators", {**what, "rows": rows, "turns": measured}, text)


if __name__ == "__main__":
    main()
