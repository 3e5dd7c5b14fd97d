"""The ways to compute a network in the search: evaluations/s of each, in as many processes at once as there are cores.

    python bench/evaluators.py

Each case has the board, network and batch of a preset or of a row in docs/systems/alphago_zero.md. The ways take turns;
a figure is the median of the turns, added up over the processes.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.acting.search.evaluators import BACKENDS, PRECISIONS, NetworkEvaluator
from polyplay.common.errors import UserError
from polyplay.envs import Envs
from polyplay.nets.precision import is_half
from polyplay.nets.residual import BoardNetworkFactory
from polyplay.workers.process import tune

CASES = {  # env, blocks, filters, positions in a batch
    "connect four, `quick`": ("game:connect_four", 4, 48, 64),
    "Go 9×9, 5×64": ("game:go+size=9", 5, 64, 64),
    "Go 9×9, 10×128": ("game:go+size=9", 10, 128, 64),
    "Go 19×19, 20×256": ("game:go", 20, 256, 8),
}


def computing(case: str, backend: str, precision: str) -> NetworkEvaluator | None:
    """None: it isn't here."""
    env, blocks, filters, batch = CASES[case]
    try:
        evaluator = NetworkEvaluator(BoardNetworkFactory(Envs(env, 1).spec, blocks, filters), batch, backend, precision)
    except UserError:
        return None
    evaluator.take(0)
    return evaluator


def work(asked: argparse.Namespace, together: Any, answers: Any) -> None:
    """One process's evaluations/s, at the same time as the others'."""
    tune(1)
    precisions = PRECISIONS if is_half("auto") else PRECISIONS[:1]
    for case in CASES:
        made = {way: computing(case, *way) for way in itertools.product(BACKENDS, precisions)}
        evaluators = {way: evaluator for way, evaluator in made.items() if evaluator is not None}
        rates: dict[tuple[str, str], list[float]] = {way: [] for way in evaluators}
        for _, (way, evaluator) in itertools.product(range(asked.turns), evaluators.items()):
            planes = np.random.default_rng(0).integers(0, 2, (evaluator.batch, *evaluator.network.planes))
            planes = planes.astype(np.float32)
            evaluator.evaluate(planes)
            together.wait()
            n, begun = 0, time.perf_counter()
            while (passed := time.perf_counter() - begun) < asked.seconds:
                evaluator.evaluate(planes)
                n += len(planes)
            rates[way].append(n / passed)
        answers.put((case, {" ".join(way): statistics.median(found) for way, found in rates.items()}))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    cores, context, what = len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"), about()
    together, answers = context.Barrier(cores), context.Queue()
    for _ in range(cores):
        context.Process(target=work, args=(asked, together, answers), daemon=True).start()
    rows: dict[str, Row] = {case: {"network": case} for case in CASES}
    for _ in range(cores * len(CASES)):
        case, found = answers.get(timeout=600)
        for way, rate in found.items():
            rows[case][way] = rows[case].get(way, 0.0) + rate
    for row in rows.values():
        row["winograd, × torch float32"] = row["winograd float32"] / row["torch float32"]
    title = "# Ways to compute a network in the search"
    text = [title, "", *lines_about(what), f"- evaluations/s of {cores} processes at once", ""]
    publish(RESULTS / "evaluators", {**what, "rows": list(rows.values())}, [*text, *table(list(rows.values()))])


if __name__ == "__main__":
    main()
